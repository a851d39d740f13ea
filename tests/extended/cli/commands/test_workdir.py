"""The working folder: the one in which the command is typed, below the project, or the one that is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from remote_tool import FanOutRequest, LaunchRequest, StartRequest, Workspace
from remote_tool.errors import ConfigError, UsageError
from tests.program import remote_tool
from tests.project import make_project, write_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import TestServer

ODD = "data sets/it's $HOME"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, servers: tuple[TestServer, TestServer]) -> Path:
    """A project with its programs in folders, on two servers that share nothing."""
    root = make_project(tmp_path_factory.mktemp("workdir") / "project", servers, name="in-folders")
    for folder in ("imagenet", ODD):
        (root / folder).mkdir(parents=True)
        (root / folder / "main.py").write_text("import os; print(os.getcwd(), os.environ['PWD'])\n")
    prepared = remote_tool("prepare", cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    return root


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = remote_tool(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


def place_of(servers: tuple[TestServer, TestServer], folder: str = "") -> str:
    return str(servers[0].home / "in-folders" / folder).rstrip("/")


@pytest.mark.row(161)
def test_a_command_begins_in_the_folder_in_which_it_is_typed(
    root: Path, servers: tuple[TestServer, TestServer]
) -> None:
    show = ("run", "--server", "first", "--cmd", 'pwd; echo "$PWD"; ls *.py')
    for folder in ("imagenet", ODD):
        place = place_of(servers, folder)
        assert typed(root / folder, *show).stdout.splitlines() == [place, place, "main.py"]
    assert typed(root, *show).stdout.startswith(f"{place_of(servers)}\n")
    # What is here only is not on the servers.
    assert typed(root / ".remote" / "logs", *show).stdout.startswith(f"{place_of(servers)}\n")


@pytest.mark.row(161)
@pytest.mark.parametrize(
    ("typed_in", "option", "folder"),
    [
        ("", "imagenet", "imagenet"),
        ("imagenet", "..", ""),
        ("imagenet", ".", "imagenet"),
        ("imagenet", f"../{ODD}", ODD),
    ],
)
def test_workdir_is_named_from_here_and_counts_more(
    typed_in: str, option: str, folder: str, root: Path, servers: tuple[TestServer, TestServer]
) -> None:
    words = ("--server", "first", "--workdir", option, "--cmd", "pwd")
    assert typed(root / typed_in, "run", *words).stdout == f"{place_of(servers, folder)}\n"
    followed = typed(root / typed_in, "job-run", *words, "--follow")
    assert followed.stdout == f"{place_of(servers, folder)}\n"


@pytest.mark.row(161)
def test_a_job_records_its_folder_here_and_on_its_server(root: Path, servers: tuple[TestServer, TestServer]) -> None:
    words = ("job-run", "--server", "first", "--cmd", "pwd", "--json")
    (started,) = json.loads(typed(root / "imagenet", *words).stdout)["jobs"]
    (other,) = json.loads(typed(root, *words).stdout)["jobs"]
    typed(root, "job-wait", started["id"], other["id"])
    assert (started["workdir"], other["workdir"]) == ("imagenet", ".")
    assert 'workdir: "imagenet"\n' in (root / ".remote" / "jobs" / started["id"] / "job.yaml").read_text()
    # A second laptop knows the job from its server alone.
    again = make_project(root.parent / "again", servers, name="in-folders")
    listed = json.loads(typed(again, "job-list", "--stopped", "--json").stdout)["jobs"]
    assert {job["id"]: job["workdir"] for job in listed}.items() >= {
        started["id"]: "imagenet",
        other["id"]: ".",
    }.items()


@pytest.mark.row(161)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed_in", "words"),
    [
        ("imagenet", ["--cmd", "main.py"]),
        ("", ["--cmd", "main.py", "--workdir", "imagenet"]),
        (ODD, ["--cmd", "cd ../../imagenet && python main.py"]),
        ("imagenet", ["--cmd", "-m main"]),
    ],
)
def test_a_launch_begins_there(
    typed_in: str, words: list[str], root: Path, servers: tuple[TestServer, TestServer]
) -> None:
    done = typed(root / typed_in, "helper-torch-launch", *words, "--follow")
    lines = sorted(line.partition(" | ")[2] for line in done.stdout.splitlines())
    places = [str(server.home / "in-folders" / "imagenet") for server in servers]
    assert lines == sorted(f"{place} {place}" for place in places), done.stdout


@pytest.mark.row(161)
def test_shards_start_there_when_the_fan_out_is_resumed_from_elsewhere(
    root: Path, servers: tuple[TestServer, TestServer]
) -> None:
    # Each shard fails the first time; then another command of ours goes on, in another folder.
    command = "pwd >>~/begun; [ -e ~/tried ] || (touch ~/tried; exit 1)"
    words = ("helper-fan-out", "--total", "2", "--per-server", "1", "--cmd", command, "--retries", "0", "--follow")
    done = remote_tool(*words, cwd=root / "imagenet")
    assert done.returncode == 1, done.stderr
    name = done.stderr.partition("--resume ")[2].split()[0]
    typed(root, "helper-fan-out", "--resume", name)
    for server in servers:
        begun = (server.home / "begun").read_text().splitlines()
        assert set(begun) == {str(server.home / "in-folders" / "imagenet")}
        assert len(begun) == 2


@pytest.mark.row(161)
def test_a_folder_that_is_not_there_is_named_and_nothing_begins(
    root: Path, servers: tuple[TestServer, TestServer]
) -> None:
    for command in ("run", "job-run", "helper-torch-launch", "helper-fan-out", "helper-mpi-launch"):
        ran = remote_tool(command, "--workdir", "no/such", "--server", "first", "--cmd", "touch ~/it-ran", cwd=root)
        assert ran.returncode == 1, (command, ran.stderr)
        assert f"{place_of(servers)}/no/such does not exist" in ran.stderr, (command, ran.stderr)
    assert not (servers[0].home / "it-ran").exists()


@pytest.mark.row(161)
@pytest.mark.parametrize("option", ["..", "/tmp", "imagenet/../../x"])
def test_a_folder_outside_of_the_project_is_refused(option: str, root: Path) -> None:
    ran = remote_tool("run", "--workdir", option, "--cmd", "true", cwd=root)
    assert ran.returncode == 2
    assert f"--workdir {option} is not in the project" in ran.stderr


def test_python_begins_in_the_projects_folder_wherever_it_runs(
    root: Path, servers: tuple[TestServer, TestServer]
) -> None:
    workspace = Workspace.find(root / "imagenet")
    job = workspace.start("first", "pwd")
    job.wait()
    assert list(job.tail()) == [place_of(servers)]
    job = workspace.start("first", "pwd", workdir=ODD)
    job.wait()
    assert list(job.tail()) == [place_of(servers, ODD)]
    seen: list[bytes] = []
    workspace.run("pwd", ["first"], workdir="./imagenet/", on_output=lambda _, __, data: seen.append(data))
    assert b"".join(seen).decode() == f"{place_of(servers, 'imagenet')}\n"


@pytest.mark.parametrize("make", [StartRequest, LaunchRequest, FanOutRequest])
@pytest.mark.parametrize("workdir", ["/etc", "..", "a/../..", "~/x"])
def test_python_takes_folders_of_the_project_only(make: type[StartRequest], workdir: str) -> None:
    with pytest.raises(UsageError, match="--workdir must be a folder in the project"):
        make("true", workdir=workdir)


@pytest.mark.row(161)
def test_the_configured_folder_counts_wherever_one_types_and_the_setup_script_begins_in_the_project(
    root: Path, servers: tuple[TestServer, TestServer]
) -> None:
    mine = root.parent / "configured" / "project"
    make_project(mine, servers, name="in-folders", workdir="./imagenet", setup="FROM=$(pwd)")
    for command in ("run", "job-run"):
        follow = ["--follow", "--no-sync"] if command == "job-run" else []
        done = typed(mine / ".remote", command, "--server", "first", "--cmd", 'echo "$FROM"; pwd', *follow)
        assert done.stdout.splitlines() == [place_of(servers), place_of(servers, "imagenet")]
    words = ("run", "--server", "first", "--workdir", "..", "--cmd", 'echo "$FROM"; pwd')
    assert typed(mine / ".remote", *words).stdout.splitlines() == [place_of(servers)] * 2
    write_configuration(mine, servers, name="in-folders", workdir=".")
    (mine / "imagenet").mkdir()
    assert typed(mine / "imagenet", "run", "--server", "first", "--cmd", "pwd").stdout == f"{place_of(servers)}\n"


@pytest.mark.parametrize("workdir", ["/data", "../x", "~/x", "a/../b"])
def test_a_configured_folder_outside_of_the_project_is_refused(
    workdir: str, tmp_path: Path, servers: tuple[TestServer, TestServer]
) -> None:
    write_configuration(make_project(tmp_path / "project", servers), servers, workdir=workdir)
    with pytest.raises(ConfigError, match="workdir: must be a folder in the project"):
        Workspace.find(tmp_path / "project")


def test_a_script_that_is_elsewhere_in_the_project_is_found_for_the_hint(root: Path) -> None:
    ran = remote_tool("helper-torch-launch", "--cmd", "main.py", cwd=root)
    assert ran.returncode == 2
    assert "hint: --workdir imagenet starts in its folder" in ran.stderr
    ran = remote_tool("helper-torch-launch", "--cmd", "hello.py", cwd=root / "imagenet")
    assert "hint: --workdir .. starts in its folder" in ran.stderr
    ran = remote_tool("helper-torch-launch", "--cmd", "cd $HOME && main.py", cwd=root)
    assert (ran.returncode, "--workdir DIR" in ran.stderr) == (2, True), ran.stderr
    ran = remote_tool("helper-torch-launch", "--cmd", "cd .. && main.py", cwd=root)
    assert (ran.returncode, "must be a folder in the project, found '..'" in ran.stderr) == (2, True), ran.stderr


def test_the_shell_is_offered_folders(root: Path) -> None:
    asked = {"_REMOTE_TOOL_COMPLETE": "complete_bash", "COMP_WORDS": "remote-tool run --workdir im", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "remote_tool"], cwd=root, env={**asked}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["imagenet"]
