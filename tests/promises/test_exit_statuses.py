"""Every exit status that the documents name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running, open_files, parents
from tests.promises.conftest import PATIENCE, until
from tests.sshd import free_port
from tests.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk

FIRST = ("--server", "first")
AWAY = ("--server", "away")
LAUNCH = ("helper-torch-launch", "--nproc-per-node", "1", "--follow")
STATUSES = {
    "a command that ends well": (0, ("run", *FIRST, "--cmd", "true")),
    "a command with a status of its own": (7, ("run", *FIRST, "--cmd", "exit 7")),
    "the highest of several servers": (
        9,
        ("run", *FIRST, "--server", "second", "--cmd", "test $REMOTE_TOOL_SERVER = first || exit 9"),
    ),
    "a command that a signal ends": (128 + 15, ("run", *FIRST, "--cmd", "kill -TERM $$")),
    "a program of a shell": (5, ("shell", *FIRST, "--", "sh", "-c", "exit 5")),
    "a job that is followed": (3, ("job-run", "--follow", *FIRST, "--cmd", "exit 3")),
    "a job that a signal ends": (128 + 9, ("job-run", "--follow", *FIRST, "--cmd", "kill -KILL $$")),
    "a command that is not found": (127, ("job-run", "--follow", *FIRST, "--cmd", "no-such-command")),
    "a launch": (1, (*LAUNCH, *FIRST, "--cmd", "fails.py")),
    "an option that does not exist": (2, ("run", "--no-such-option")),
    "a server that is not configured": (2, ("run", "--server", "elsewhere", "--cmd", "true")),
    "a job that does not exist": (2, ("job-wait", "999")),
    "no connection": (4, ("run", *AWAY, "--cmd", "true")),
    "a server of several that does not answer": (3, ("rsync", *FIRST, *AWAY)),
    "checks that a server fails to answer": (3, ("check", *FIRST, *AWAY)),
    "checks that no server answers": (4, ("check", *AWAY)),
    "shards that are done": (0, ("helper-fan-out", *FIRST, "--total", "1", "--follow", "--cmd", "echo {shard}")),
    "a shard that fails": (
        1,
        ("helper-fan-out", *FIRST, "--total", "1", "--retries", "0", "--follow", "--cmd", "exit 5 # {shard}"),
    ),
    "a fan-out whose server does not answer": (
        3,
        ("helper-fan-out", *FIRST, *AWAY, "--total", "2", "--follow", "--cmd", "echo {shard}"),
    ),
    "a sweep that is queued": (0, ("helper-sweep", *FIRST, "--per-server", "1", "--grid", "n=1", "--cmd", "exit {n}")),
    "a sweep with a server that does not answer": (
        3,
        ("helper-sweep", *FIRST, *AWAY, "--per-server", "1", "--grid", "n=1,2", "--cmd", "true {n}"),
    ),
}


@pytest.fixture
def desk(desk_of_all: Desk) -> Desk:
    """A project with a third server that does not answer; commands name those that they mean."""
    servers = desk_of_all.settings()["servers"]
    servers.setdefault("away", servers["first"] | {"port": free_port()})
    desk_of_all.configure(servers=servers)
    (desk_of_all.root / "fails.py").write_text("raise SystemExit(5)\n")
    return desk_of_all


def state(desk: Desk, key: str) -> str | None:
    """Return the state of a job of the first server, None if there is no such job."""
    return next((job["state"] for job in desk.jobs("--stopped", *FIRST) if str(job["key"]) == key), None)


def started(desk: Desk, command: str) -> str:
    """Start a job on the first server, and return its key."""
    (job,) = json.loads(desk.does("job-run", *FIRST, "--json", "--cmd", command))["jobs"]
    return str(job["key"])


@pytest.mark.parametrize("what", STATUSES)
def test_the_exit_status_is_as_documented(desk: Desk, what: str) -> None:
    status, words = STATUSES[what]
    ran = desk.tries(*words)
    assert ran.returncode == status, f"{ran.stdout}\n{ran.stderr}"


def test_job_wait_job_attach_and_job_diff_end_as_documented(desk: Desk) -> None:
    failed, other, slow = started(desk, "exit 6"), started(desk, "true"), started(desk, "sleep 1000")
    assert desk.tries("job-wait", failed, other).returncode == 6
    assert desk.tries("job-wait", failed, "--json").returncode == 6
    assert desk.tries("job-diff", failed, other).returncode == 0
    assert desk.tries("job-wait", slow, "--timeout", "0").returncode == 1
    assert state(desk, slow) == "running"
    with Terminal("job-attach", tty_job(desk), cwd=desk.root) as terminal:
        terminal.until("ready")
        terminal.type("\n")
        assert terminal.end() == 4
    desk.does("job-kill", slow, "--grace", "0")


def tty_job(desk: Desk) -> str:
    command = "echo ready; read line; exit 4"
    (job,) = json.loads(desk.does("job-run", *FIRST, "--tty", "--json", "--cmd", command))["jobs"]
    return str(job["key"])


def test_without_a_yes_nothing_is_removed_or_ended_and_the_status_is_1(desk: Desk) -> None:
    key = started(desk, "true")
    desk.does("job-wait", key)
    refused = desk.tries("clean", *FIRST)
    assert (refused.returncode, state(desk, key)) == (1, "succeeded"), refused.stderr
    assert desk.tries("clean", *FIRST, "--yes", "--json").returncode == 0
    assert state(desk, key) is None


def test_waiting_for_a_job_whose_end_is_not_known_is_1(desk: Desk) -> None:
    key = started(desk, "touch begun; sleep 1000")
    until((desk.there() / "begun").exists, "the job runs")
    (job,) = [each for each in desk.jobs("--stopped", *FIRST) if str(each["key"]) == key]
    folder = desk.there() / ".jobs" / job["id"]

    def kill() -> bool:
        holding = [pid for pid in parents() if any(path.startswith(f"{folder}/") for path in open_files(pid).values())]
        for pid in holding:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not holding

    until(kill, "its supervisor and its processes are gone")
    assert desk.tries("job-wait", key).returncode == 1
    assert state(desk, key) == "lost"


def test_processes_that_a_job_left_behind_are_only_listed_without_a_terminal(desk: Desk, tmp_path: Path) -> None:
    there = desk.there()
    started(desk, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    until((tmp_path / "pid").exists, "the job runs")
    (there / ".jobs").rename(there / ".jobs-away")
    try:
        listed = desk.tries("job-kill", *FIRST, "--orphans")
        assert listed.returncode == 1, listed.stderr
        pid = int((tmp_path / "pid").read_text())
        assert is_running(pid)
        ended = json.loads(desk.does("job-kill", *FIRST, "--orphans", "--yes", "--json"))
        assert pid in [stray["pid"] for stray in ended["strays"]]
        assert not is_running(pid)
    finally:
        if (there / ".jobs").exists():
            shutil.rmtree(there / ".jobs")
        (there / ".jobs-away").rename(there / ".jobs")
    desk.does("job-kill", *FIRST, "--orphans")


@pytest.mark.row(14)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_program_and_not_the_job(desk: Desk, number: int, status: int) -> None:
    key = started(desk, "echo up; sleep 1000")
    with following(desk, key) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(number)
        _, said = program.communicate(timeout=PATIENCE)
    assert (program.returncode, "Traceback" in said) == (status, False), said
    assert state(desk, key) == "running"
    desk.does("job-kill", key, "--grace", "0")


def test_a_reader_that_goes_away_ends_the_program_and_not_the_job(desk: Desk) -> None:
    key = started(desk, "while echo line; do sleep 0.1; done")
    with following(desk, key) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "line\n"
        program.stdout.close()
        assert program.wait(PATIENCE) == 141
        assert program.stderr is not None
        assert program.stderr.read() == ""
    assert state(desk, key) == "running"
    desk.does("job-kill", key, "--grace", "0")


def following(desk: Desk, key: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "remote_tool", "job-tail", key],
        cwd=desk.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_failure_on_every_server_is_1(desk: Desk) -> None:
    """As an existing environment that is nowhere."""
    environment = desk.settings()["environment"]
    desk.configure(environment={"existing": "/nowhere"})
    try:
        assert "/nowhere" in desk.refuses("setup", *FIRST, status=1)
        assert json.loads(desk.tries("setup", *FIRST, "--server", "second").stdout or "{}") == {}
    finally:
        desk.configure(environment=environment)
