from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from remote_tool.agent.proc import processes
from remote_tool.agent.proc.processes import ProcessSnapshot, find_alive, read_process, send_signal
from remote_tool.protocol.marks import JOB_MARKER
from tests.extended.agent.conftest import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with us."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.row(4)
def test_a_process_with_the_pid_but_another_start_time_is_not_signalled(victim: subprocess.Popen[bytes]) -> None:
    """A reused pid."""
    process = read_process(victim.pid)
    assert process is not None
    assert not send_signal(process._replace(start_time=process.start_time - 1), signal.SIGKILL)
    assert victim.poll() is None
    assert send_signal(process, signal.SIGKILL)
    assert victim.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.row(4)
def test_without_descriptors_of_processes_the_start_time_decides_as_well(
    victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Python 3.8 and old kernels."""
    monkeypatch.delattr(os, "pidfd_open")
    process = read_process(victim.pid)
    assert process is not None
    assert not send_signal(process._replace(start_time=process.start_time - 1), signal.SIGKILL)
    assert victim.poll() is None
    assert send_signal(process, signal.SIGKILL)
    assert victim.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.row(19)
def test_a_zombie_is_not_alive(victim: subprocess.Popen[bytes]) -> None:
    process = read_process(victim.pid)
    assert process is not None
    found = find_alive(process.as_record())
    # It may have fallen asleep meanwhile.
    assert found is not None
    assert found.as_record() == process.as_record()
    victim.kill()
    wait_until(lambda: find_alive(process.as_record()) is None, "a dead process")
    assert not send_signal(process, signal.SIGTERM)


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    program = (
        "import ctypes, threading, time, os\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "os.write(1, b'x'); ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        found = wait_until(lambda: (p := read_process(process.pid)) and p.state == "Z" and p, "the end of a thread")
        assert found.is_alive
        process.kill()


def test_any_process_name_can_be_read(tmp_path: Path) -> None:
    name = tmp_path / ") R 1 (x"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", name)
    with subprocess.Popen([str(name), "600"]) as process:
        found = read_process(process.pid)
        process.kill()
    assert found is not None
    assert found.parent == os.getpid()


@pytest.mark.row(16, 20)
def test_members_are_found_by_marker_and_descent_but_not_beyond_another_job() -> None:
    shell = (
        # A child without any environment; another job's, with a child without one; a supervisor with a child.
        "env -i sleep 601 & "
        "env REMOTE_TOOL_JOB_ID=other sh -c 'env -i sleep 602 & sleep 603 & wait' & "
        "env REMOTE_TOOL_SUPERVISOR=1 sh -c 'env -i sleep 604 & wait' & "
        "setsid sleep 605 & echo ready; wait"
    )
    environment = {**os.environ, "REMOTE_TOOL_JOB_ID": "mine"}
    with subprocess.Popen(["sh", "-c", shell], env=environment, stdout=subprocess.PIPE) as process:
        try:
            everything = wait_until(lambda: (found := _sleeps()) and len(found) == 5 and found, "five processes")
            snapshot = ProcessSnapshot()
            mine = {pid.pid for pid in snapshot.members("mine", "")}
            other = {pid.pid for pid in snapshot.members("other", "")}
            assert process.pid in mine
            assert {everything["601"], everything["605"]} <= mine
            assert not mine & {everything[name] for name in ("602", "603", "604")}
            assert {everything["602"], everything["603"]} <= other
            assert process.pid not in other
        finally:
            for pid in _sleeps().values():
                os.kill(pid, signal.SIGKILL)


def _sleeps() -> dict[str, int]:
    found = {}
    for process in ProcessSnapshot().processes.values():
        try:
            with open(f"/proc/{process.pid}/cmdline", "rb") as stream:  # noqa: PTH123
                words = stream.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0] == "sleep" and words[1] in {"601", "602", "603", "604", "605"}:
            found[words[1]] = process.pid
    return found


def test_a_place_is_this_boot_and_this_namespace() -> None:
    place = processes.place()
    assert place["boot_id"]
    assert place["pid_namespace"].startswith("pid:[")


def test_what_is_older_than_a_run_is_not_looked_into(victim: subprocess.Popen[bytes]) -> None:
    """It cannot be of the run, and a machine has many such processes."""
    old = read_process(victim.pid)
    assert old is not None
    environment = {**os.environ, JOB_MARKER: "run-1"}
    started = []

    def start_a_younger_one() -> bool:
        started.append(subprocess.Popen(["sleep", "600"], env=environment))
        young = read_process(started[-1].pid)
        return young is not None and young.start_time > old.start_time

    try:
        wait_until(start_a_younger_one)
        young = read_process(started[-1].pid)
        assert young is not None
        # Of a process that has just become its program, the kernel does not show the variables yet.
        wait_until(lambda: young.pid in {process.pid for process in ProcessSnapshot().members("run-1", "")})
        with mock.patch.object(processes, "read_mark", wraps=processes.read_mark) as scan:
            found = ProcessSnapshot().members("run-1", "", since=young.start_time)
        assert young.pid in {process.pid for process in found}
        assert mock.call(victim.pid) not in scan.mock_calls
    finally:
        for process in started:
            process.kill()
            process.wait()
