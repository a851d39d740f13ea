"""The whole journey as a user types it: two servers with nothing on them, until the model is trained."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import processes_of
from tests.program import remote_tool

if TYPE_CHECKING:
    from tests.sshd import TestServer

REPOSITORY = Path(__file__).parents[2]
WHEELS = REPOSITORY / ".cache" / "wheels"
TORCH = "torch-*-cp{}{}-*.whl".format(*sys.version_info)


def give_packages(server: TestServer) -> None:
    """Put uv and this Python on the server, and have uv take packages from a folder instead of the network."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}")
    assert uv is not None
    programs = server.home / ".local" / "bin"
    programs.mkdir(parents=True)
    (programs / "uv").symlink_to(uv)
    (programs / "python{}.{}".format(*sys.version_info)).symlink_to(Path(sys.executable).resolve())
    (server.home / ".config" / "uv").mkdir(parents=True)
    (server.home / ".config" / "uv" / "uv.toml").write_text(f'no-index = true\nfind-links = ["{WHEELS}"]\n')


LAUNCH = ("helper-torch-launch", "--cmd", "train_digits.py", "--follow", "--nproc-per-node")


@pytest.mark.slow
@pytest.mark.skipif(
    not any(WHEELS.glob(TORCH)), reason=f"no {TORCH} in .cache/wheels: make test brings that of its own Python"
)
def test_from_an_empty_folder_to_a_trained_model(two_servers: tuple[TestServer, TestServer], tmp_path: Path) -> None:
    project = tmp_path / "digits"
    shutil.copytree(REPOSITORY / "sample", project, ignore=shutil.ignore_patterns("checkpoints", "__pycache__"))
    initialize(project, two_servers)
    assert prepare(project) == [True, True]
    assert prepare(project) == [False, False]
    train(project)
    (first, second) = list_jobs(project)
    assert (first["server"], first["state"], first["node_rank"]) == ("first", "succeeded", 0)
    assert (second["server"], second["state"], second["node_rank"]) == ("second", "succeeded", 1)
    assert any("accuracy" in path.read_text() for path in Path(first["log"]).glob("ranks/*/*/out"))
    assert "accuracy" in remote_tool("job-tail", "--no-follow", "--job", str(first["key"]), cwd=project).stdout
    start_and_kill(project)
    assert "resum" in remote_tool(*LAUNCH, "1", cwd=project, timeout=180).stdout.lower()


def initialize(project: Path, servers: tuple[TestServer, TestServer]) -> None:
    for server in servers:
        give_packages(server)
    wanted = [f"--server={server.name}={server.username}@127.0.0.1:{server.port}" for server in servers]
    made = remote_tool("init", "--name", "digits", *wanted, f"--private-key={servers[0].key}", cwd=project)
    assert made.returncode == 0, made.stderr
    configuration = project / ".remote" / "configs.yaml"
    text = re.sub(r"(?m)^environment:.*\n", "", configuration.read_text())
    configuration.write_text(f"environment: uv\n{text}")


def prepare(project: Path) -> list[bool]:
    prepared = remote_tool("prepare", "--json", cwd=project, timeout=300)
    assert prepared.returncode == 0, prepared.stderr
    return [each["changed"] for each in json.loads(prepared.stdout)["servers"]]


def train(project: Path) -> None:
    trained = remote_tool(*LAUNCH, "2", cwd=project, timeout=180)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    accuracies = re.findall(r"accuracy (\d+\.\d+) ?%", trained.stdout)
    assert float(accuracies[-1]) > 95
    assert re.search(r"^first:0 *\|", trained.stdout, re.MULTILINE)


def list_jobs(project: Path) -> list[dict[str, Any]]:
    listed = remote_tool("job-list", "--rsync", "--stopped", "--json", cwd=project)
    jobs: list[dict[str, Any]] = json.loads(listed.stdout)["jobs"]
    return jobs


def start_and_kill(project: Path) -> None:
    started = remote_tool("job-run", "--server", "first", "--cmd", "python hello_world.py", "--json", cwd=project)
    (job,) = json.loads(started.stdout)["jobs"]
    killed = remote_tool("job-kill", "--job", str(job["key"]), cwd=project)
    assert killed.returncode == 0, killed.stderr
    assert processes_of(job["id"]) == []
