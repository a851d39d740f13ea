"""Servers whose commands begin behind a launch command or in a container: the whole way from here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from remote_tool import JobSelection, JobState, StartRequest, Workspace
from tests.containers import IMAGE, OPTIONS, Podman
from tests.processes import processes_of
from tests.program import remote_tool
from tests.project import make_project
from tests.sshd import TestServer
from tests.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LONG = 60.0
UNSHARE = "unshare --pid --mount --fork --mount-proc"


@pytest.fixture(scope="module", autouse=True)
def _permitted() -> None:
    if subprocess.run([*UNSHARE.split(), "true"], check=False, capture_output=True).returncode:
        pytest.skip("unshare is not permitted here")


def write_entries(root: Path, *entries: Mapping[str, object]) -> None:
    """Say of each server where its commands begin, and leave the environment to that."""
    file = root / ".remote" / "configs.yaml"
    values = yaml.safe_load(file.read_text())
    del values["environment"]
    for server, entry in zip(values["servers"].values(), entries, strict=True):
        server.update(entry)
    file.write_text(yaml.safe_dump(values, sort_keys=False))


@pytest.fixture
def entered(tmp_path: Path, ssh_key: Path, podman: Podman) -> Iterator[Workspace]:
    """A server behind a launch command, and one with containers; without podman a second one behind a command."""
    search = f"{podman.bin}:{os.environ['PATH']}"
    home = tmp_path / "second" / "home"
    with (
        TestServer("first", tmp_path / "first", ssh_key) as first,
        TestServer("second", tmp_path / "second", ssh_key, {"SetEnv": f"HOME={home} PATH={search}"}) as second,
    ):
        root = make_project(tmp_path / "project", [first, second])
        container = {"container": " ".join([*OPTIONS, IMAGE])} if not podman.problem else {"launch": UNSHARE}
        write_entries(root, {"launch": f"{UNSHARE} env FROM={{project}}"}, container)
        (root / "requirements.txt").write_text("nothing-that-exists==1.0\n")
        yield Workspace.find(root)


@pytest.mark.slow
def test_prepare_run_and_jobs_go_through_it(entered: Workspace, podman: Podman) -> None:
    root = entered.config.local.root
    prepared = remote_tool("prepare", cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    assert "first: packages: unchanged, those inside" in prepared.stderr
    again = remote_tool("prepare", cwd=root)
    assert (again.returncode, "done (" in again.stderr) == (0, False), again.stderr

    ran = remote_tool("run", "--cmd", 'echo "$REMOTE_TOOL_SERVER $LR $$"; exit 3', "--env", "LR", "0.1", cwd=root)
    assert ran.returncode == 3, ran.stderr
    lines = sorted(line.split(" | ")[1].split() for line in ran.stdout.splitlines())
    assert [line[:2] for line in lines] == [["first", "0.1"], ["second", "0.1"]]
    assert all(int(line[2]) < 10 for line in lines), "they are in process namespaces of their own"

    ended = remote_tool("job-run", "--cmd", "echo $FROM here; exit 4", "--server", "first", "--follow", cwd=root)
    assert (ended.returncode, ended.stdout) == (4, f"{root.parent}/first/home/project here\n")

    for command in (["run"], ["job-run", "--no-sync", "--follow"]):
        ran = remote_tool(*command, "--workdir", ".remote-scripts", "--cmd", "pwd", cwd=root)
        assert ran.stdout.count("/home/project/.remote-scripts\n") == 2, (ran.stdout, ran.stderr)

    jobs = entered.start_jobs(StartRequest("trap '' TERM; while :; do sleep 1; done", sync=False)).jobs
    assert [job.state for job in jobs] == [JobState.RUNNING] * 2
    chosen = JobSelection(jobs=tuple(job.id for job in jobs))
    stopped = entered.stop_jobs(chosen, grace=0.5)
    assert [job.state for job in stopped.jobs] == [JobState.KILLED] * 2
    assert [processes_of(job.id) for job in jobs] == [[], []]
    if not podman.problem:
        _look_at_container(root, podman)


def _look_at_container(root: Path, podman: Podman) -> None:
    ran = remote_tool("run", "--cmd", "echo $HOME; exit 5", "--server", "second", cwd=root)
    assert (ran.returncode, ran.stdout.endswith("/project/.remote-scripts/home\n")) == (5, True)
    assert podman.names() == []
    file = root / ".remote" / "configs.yaml"
    file.write_text(file.read_text().replace(IMAGE, "localhost/no-such-image"))
    prepared = remote_tool("prepare", "--server", "second", cwd=root)
    assert prepared.returncode == 1
    assert "second: Pulling localhost/no-such-image failed" in prepared.stderr


@pytest.mark.slow
def test_a_launch_trains_behind_launch_commands(tmp_path: Path, ssh_key: Path) -> None:
    with (
        TestServer("first", tmp_path / "first", ssh_key) as first,
        TestServer("second", tmp_path / "second", ssh_key) as second,
    ):
        root = make_project(tmp_path / "project", [first, second])
        launch = {"launch": f"{UNSHARE} env 'PATH={sys.prefix}/bin:{os.environ['PATH']}'"}
        write_entries(root, launch, launch)
        (root / "rank.py").write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
        assert remote_tool("prepare", cwd=root).returncode == 0
        ran = remote_tool("helper-torch-launch", "--cmd", "rank.py", "--follow", cwd=root)
        assert ran.returncode == 0, ran.stderr
        lines = {" ".join(line.split()) for line in ran.stdout.splitlines()}
        assert {"first:0 | rank 0 of 2", "second:1 | rank 1 of 2"} <= lines, ran.stdout


@pytest.mark.slow
def test_a_launch_command_with_a_terminal_works_as_it_was_pasted(tmp_path: Path, ssh_key: Path, podman: Podman) -> None:
    if podman.problem:
        pytest.skip(podman.problem)
    search = f"{podman.bin}:{os.environ['PATH']}"
    home = tmp_path / "first" / "home"
    options = {"SetEnv": f"HOME={home} PATH={search}"}
    mount = f"type=bind,source={tmp_path},target={tmp_path}"
    with TestServer("first", tmp_path / "first", ssh_key, options) as first:
        ran = podman.run(
            *("run", "--detach", "--name", "box", "--network", "host", *OPTIONS, "--mount", mount),
            *(IMAGE, "sleep", "600"),
        )
        assert ran.returncode == 0, ran.stderr
        root = make_project(tmp_path / "project", [first])
        write_entries(root, {"launch": "podman exec -it -w {project} box"})
        prepared = remote_tool("prepare", cwd=root)
        assert prepared.returncode == 0, prepared.stderr
        assert prepared.stderr.count("first: ignoring -t in launch: jobs have no terminal") == 1
        ran = remote_tool("run", "--cmd", "[ -t 0 ] || printf 'no terminal\\n'; exit 3", cwd=root)
        assert (ran.returncode, ran.stdout) == (3, "no terminal\n"), ran.stderr
        assert "ignoring" not in ran.stderr
    podman.run("rm", "--force", "--time", "0", "box")


@pytest.mark.row(238)
@pytest.mark.slow
def test_terminals_in_a_container(entered: Workspace, podman: Podman) -> None:
    if podman.problem:
        pytest.skip(podman.problem)
    root = entered.config.local.root
    prepared = remote_tool("prepare", cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    with Terminal("shell", "--server", "second", "--env", "MARK=a'b", cwd=root) as terminal:
        terminal.type('echo "$((40+2)) $MARK $REMOTE_TOOL_SERVER"; [ -t 0 ] && [ -t 1 ] && echo te""rminal\r')
        terminal.until("42 a'b second", seconds=LONG)
        terminal.until("terminal", seconds=LONG)
        # While the shell edits a line, Ctrl-C would be a character of it; while it starts a program, it would be lost.
        terminal.type("sh -c \"echo rea''dy; exec cat\"\r")
        terminal.until("ready", seconds=LONG)
        prompts = terminal.text.count("/project ")
        terminal.type("\x03")
        # The shell drops what is typed before it is back.
        terminal.until("/project ", prompts + 1, LONG)
        terminal.type("echo $((6*9))x; exit 5\r")
        terminal.until("54x", seconds=LONG)
        assert terminal.end(LONG) == 5
    with Terminal("shell", "--server", "second", "--", "sh", "-c", "echo h''ere; kill -9 $$", cwd=root) as terminal:
        assert terminal.end(LONG) == 128 + signal.SIGKILL
        assert "here" in terminal.text
    command = "echo be''gun; read line; echo got-$line; exit 7"
    started = remote_tool("job-run", "--server", "second", "--no-sync", "--tty", "--cmd", command, cwd=root)
    assert started.returncode == 0, started.stderr
    with Terminal("job-attach", cwd=root) as terminal:
        terminal.until("begun", seconds=LONG)
        terminal.type("this\r")
        assert terminal.end(LONG) == 7
        assert "got-this" in terminal.text
    assert podman.names() == []
