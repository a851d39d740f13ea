"""What people do most, over logins of its own and over logins that are kept."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.kept_logins import keeping_logins, masters, wait_for_logins
from tests.processes import processes_of
from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.sshd import TestServer


@pytest.fixture(params=["own logins", "kept logins"])
def desk(
    request: pytest.FixtureRequest,
    two_servers: tuple[TestServer, TestServer],
    tmp_path: Path,
    own_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """A project that is prepared on two servers."""
    if request.param == "own logins":
        yield prepared(make_project(tmp_path / "project", two_servers, keep_connections=0))
        assert masters(own_home) == []
        return
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh program here")
    with keeping_logins(monkeypatch) as folder:
        root = prepared(make_project(tmp_path / "project", two_servers))
        wait_for_logins(folder, 2)
        yield root


def prepared(root: Path) -> Path:
    succeeds(root, "prepare")
    return root


def succeeds(root: Path, *words: str) -> str:
    ran = remote_tool(*words, cwd=root, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.row(190)
def test_a_command_runs_with_its_output_and_its_own_exit_status(desk: Path) -> None:
    ran = remote_tool("run", "--cmd", "echo out-$((40 + 2)); echo err-$((40 + 3)) >&2; exit 7", cwd=desk)
    assert ran.returncode == 7
    assert sorted(ran.stdout.split()) == sorted(["first", "|", "out-42", "second", "|", "out-42"])
    assert ran.stderr.count("err-43") == 2


@pytest.mark.row(190)
def test_a_sync_sends_changes_and_removes_what_is_gone(desk: Path, two_servers: tuple[TestServer, TestServer]) -> None:
    (desk / "big.bin").write_bytes(bytes(range(256)) * 8192)
    succeeds(desk, "rsync")
    (desk / "big.bin").rename(desk / "moved.bin")
    succeeds(desk, "rsync", "--relay")
    for server in two_servers:
        assert (server.home / "project" / "moved.bin").read_bytes() == (desk / "moved.bin").read_bytes()
        assert not (server.home / "project" / "big.bin").exists()


@pytest.mark.row(190)
def test_a_job_is_followed_and_its_files_come_home(desk: Path) -> None:
    command = "echo line-$((40 + 2)); echo data > made.txt; exit 3"
    words = ("job-run", "--server", "first", "--follow", "--artifact", "*.txt", "--cmd", command)
    followed = remote_tool(*words, cwd=desk, timeout=120)
    assert followed.returncode == 3, followed.stderr
    assert "line-42" in followed.stdout
    (job,) = json.loads(succeeds(desk, "job-list", "--stopped", "--json"))["jobs"]
    assert (job["state"], job["exit_code"]) == ("failed", 3)
    assert "line-42" in succeeds(desk, "job-tail", "--no-follow", "--job", str(job["key"]))
    succeeds(desk, "job-pull", "--job", str(job["key"]))
    (made,) = (desk / ".remote" / "jobs").rglob("made.txt")
    assert made.read_text() == "data\n"


@pytest.mark.row(190)
def test_a_launch_runs_on_both_servers(desk: Path) -> None:
    ran = succeeds(desk, "helper-launch", "--cmd", "echo node-$NODE_RANK-of-$NNODES", "--follow")
    assert "node-0-of-2" in ran
    assert "node-1-of-2" in ran


@pytest.mark.row(190)
def test_a_job_is_stopped_with_all_its_processes(desk: Path) -> None:
    started = succeeds(desk, "job-run", "--server", "second", "--cmd", "sleep 600 & sleep 600; true", "--json")
    (job,) = json.loads(started)["jobs"]
    succeeds(desk, "job-kill", "--job", str(job["key"]))
    assert processes_of(job["id"]) == []
    (ended,) = json.loads(succeeds(desk, "job-list", "--stopped", "--json"))["jobs"]
    assert ended["state"] == "killed"
