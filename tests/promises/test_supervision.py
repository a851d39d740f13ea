"""What a server says of a job is true, and a stop leaves nothing of it, whatever goes wrong there."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running, parents, read_of
from tests.promises.conftest import before_each_request, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk

# Its end is up to the test, which knows its process.
WAITS = "echo $$ > pid; until [ -e end ]; do sleep 0.05; done; exit 7"
# A server whose program that answers cannot open some path.
TRACED = 'exec strace -o /dev/null -e trace=openat -e inject=openat:error={error} -P {path} "$python" "$@"'


def numbers(path: Path, count: int = 1) -> list[int]:
    """Wait until a command has written down as many processes, and return them."""
    until(lambda: path.exists() and path.read_text().count("\n") >= count, f"{count} processes are known", 60)
    return [int(each) for each in path.read_text().split()]


def begin(desk: Desk) -> tuple[int, int]:
    """Start a job that runs until it is told to end; return the processes of its command and of its supervisor."""
    desk.does("job-run", "--no-sync", "--cmd", WAITS)
    (command,) = numbers(desk.there() / "pid")
    return command, parents()[command]


def ends(desk: Desk) -> None:
    """Let the job end; all is known of it."""
    (desk.there() / "end").touch()
    job = desk.waits_for(1, "failed", "lost", "killed", "succeeded")
    assert (job["state"], job["exit_code"], job["reason"]) == ("failed", 7, None)


def folder_of(desk: Desk, key: int = 1) -> Path:
    return desk.there() / ".jobs" / str(desk.job(key)["id"])


@pytest.mark.row(2)
def test_a_launch_gets_45_seconds_to_end_unless_the_stop_names_others(desk: Desk) -> None:
    desk.does("helper-launch", "--no-sync", "--server", "first", "--cmd", "exec sleep 1000")
    desk.does("job-kill", "1", "--yes")
    assert json.loads((folder_of(desk) / "stop.json").read_text())["grace"] == 45.0


@pytest.mark.row(6)
def test_a_status_that_looks_like_that_of_a_signal_is_passed_on_and_recorded_as_it_is(desk: Desk) -> None:
    assert desk.tries("job-run", "--no-sync", "--follow", "--cmd", "exit 137").returncode == 137
    job = desk.job(1)
    assert (job["exit_code"], job["signal"]) == (137, None)


@pytest.mark.row(7)
def test_a_core_dump_is_told(desk: Desk) -> None:
    crash = "ulimit -c unlimited; kill -SEGV $$; sleep 60"
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", f"cd {desk.there()}; {crash}"], os.environ)
    if not os.WCOREDUMP(os.waitpid(pid, 0)[1]):
        pytest.skip("no core is dumped here")
    desk.tries("job-run", "--no-sync", "--follow", "--cmd", crash)
    job = desk.job(1)
    assert job["signal"] == "SIGSEGV"
    assert "core dumped" in job["reason"]


@pytest.mark.row(1, 14)
def test_neither_a_hangup_nor_a_server_that_can_open_no_more_files_ends_a_job(desk: Desk) -> None:
    _, supervisor = begin(desk)
    before = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (0, before[1]))
    # Then it looks whether a stop is wished, as it does now and then.
    os.kill(supervisor, signal.SIGHUP)
    until(lambda: is_idle(supervisor), "it has looked", 60)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, before)
    ends(desk)


@pytest.mark.row(11)
def test_a_disk_that_does_not_tell_its_room_for_a_while_ends_no_job(desk: Desk, tmp_path: Path) -> None:
    _, supervisor = begin(desk)
    log = tmp_path / "calls"
    if shutil.which("strace") is None:
        pytest.skip("strace is missing")
    words = ["strace", "-o", str(log), "-e", "trace=fstatfs", "-e", "inject=fstatfs:error=EIO", "-p", str(supervisor)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as tracing:
        assert tracing.stderr is not None
        if "attached" not in tracing.stderr.readline():
            pytest.skip("strace may not look at processes here")
        until(lambda: "EIO" in log.read_text(), "it has asked", 60)
        tracing.terminate()
    ends(desk)


def is_idle(pid: int) -> bool:
    """Whether a process has taken every signal, and waits."""
    fields = dict(line.split(b":\t", 1) for line in read_of(pid, "status").splitlines())
    pending = int(fields.get(b"SigPnd", b"0"), 16) | int(fields.get(b"ShdPnd", b"0"), 16)
    return not pending and fields.get(b"State", b"S")[:1] == b"S"


@pytest.mark.row(3, 16)
def test_what_a_lost_job_has_left_is_stopped_though_it_has_nothing_of_its_environment(
    desk: Desk, tmp_path: Path
) -> None:
    left = f"env -i sh -c 'echo $$ >> {tmp_path}/pids; exec sleep 1000'"
    command = f"echo $$ >> {tmp_path}/pid; ({left} &); {left} >/dev/null 2>&1; true"
    desk.does("job-run", "--no-sync", "--cmd", command)
    pids = numbers(tmp_path / "pids", 2)
    pids += numbers(tmp_path / "pid")
    os.kill(parents()[pids[-1]], signal.SIGKILL)
    assert desk.waits_for(1, "lost")["exit_code"] is None
    assert all(is_running(pid) for pid in pids)
    desk.does("job-kill", "1", "--yes")
    assert [pid for pid in pids if is_running(pid)] == []


@pytest.mark.row(1, 16)
def test_a_stop_that_does_not_reach_what_runs_behind_a_launch_command_says_so(desk: Desk, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_text('#!/bin/sh\n[ -e "$0.begun" ] && exit 1\ntouch "$0.begun"\nexec "$@"\n')
    engine.chmod(0o700)
    servers = desk.settings()["servers"]
    servers["first"]["launch"] = str(engine)
    desk.configure(servers=servers)
    desk.does("job-run", "--no-sync", "--cmd", WAITS)
    numbers(desk.there() / "pid")
    desk.does("job-kill", "1", "--yes")
    assert desk.job(1)["reason"] == (
        "stopped with SIGTERM; processes behind engine could not be reached and may still be running"
    )


@pytest.mark.row(3, 153)
@pytest.mark.parametrize(
    ("path", "error"),
    [("{id}", "EIO"), ("/proc/sys/kernel/random/boot_id", "EMFILE")],
    ids=["a disk that does not answer", "too many open files to know its boot"],
)
def test_a_job_that_its_server_cannot_look_at_now_is_not_lost(desk: Desk, path: str, error: str) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is missing")
    begin(desk)
    path = path.format(id=desk.job(1)["id"])
    program = before_each_request(desk, TRACED.format(error=error, path=path))
    listed = desk.tries("job-list", "--stopped")
    assert "last seen running" in listed.stdout + listed.stderr
    assert "lost" not in listed.stdout
    program.rename(program.with_name("python"))
    assert desk.job(1)["state"] == "running"
    ends(desk)
