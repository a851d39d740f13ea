"""What is said while jobs are followed over links that fall silent, go, and come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from remote_tool.workflows.selection import JobSelection
from tests.extended.workflows.jobs.test_jobs import until
from tests.figures import record_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from remote_tool import Workspace
    from remote_tool.jobs.job import Job
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost

PROMISED = 5.0
# So long nothing is to be said, and so much later at most: a machine does other things too.
SLACK = 2.0
ROOM = 10.0


class Program:
    """The real program, and the moments at which it said something on stderr."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.said: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "remote_tool", *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append((time.monotonic(), line.rstrip("\n")))

    def end(self) -> None:
        """Kill it, and read what it has said."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def wait_for(self, words: str, seconds: float) -> float:
        """Return when a line with these words came."""

        def moments() -> list[float]:
            return [moment for moment, line in self.said if words in line]

        until(moments, seconds)
        return moments()[0]

    @property
    def lines(self) -> list[str]:
        return [line for _, line in self.said]


@contextmanager
def followed(workspace: Workspace, hosts: Sequence[NetworkHost], *arguments: str) -> Iterator[Program]:
    """A program that follows jobs on these servers; it has said nothing for as long as would be told of."""
    program = Program(*arguments, cwd=workspace.root)
    try:
        for host in hosts:
            until(partial(is_asked, host), 60)
        time.sleep(PROMISED + SLACK)
        assert program.process.poll() is None
        assert program.lines == []
        yield program
    finally:
        program.end()


def is_asked(host: NetworkHost) -> bool:
    """Whether a program of ours answers there, beside the one that watches over the job."""
    return sum("run_control" in command for command in host.pids().values()) > 1


def start_quiet(workspace: Workspace) -> list[Job]:
    """Start a job on each server that prints nothing until there is a file ``end`` in its home."""
    command = "until test -e ~/end; do sleep 0.2; done"
    return [workspace.start(name, command, sync=False).job for name in ("far", "near")]


def stop_sshd(host: NetworkHost, number: int) -> None:
    for pid in host.session_pids():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.row(169)
@pytest.mark.slow
@pytest.mark.parametrize("command", ["job-tail", "job-wait"])
@pytest.mark.parametrize("fault", ["cut", "stopped"])
def test_a_link_that_falls_silent_is_told_of_in_time_and_once_and_so_is_its_return(
    network: Network, make_workspace: MakeWorkspace, command: str, fault: str
) -> None:
    far, near = network.hosts("far", "near")
    workspace = make_workspace(far, near)
    jobs = start_quiet(workspace)
    faults: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "cut": (far.cut, far.mend),
        "stopped": (lambda: stop_sshd(far, signal.SIGSTOP), lambda: stop_sshd(far, signal.SIGCONT)),
    }
    begin, end = faults[fault]
    with followed(workspace, (far, near), command, *(str(job.key) for job in jobs)) as program:
        begin()
        began = time.monotonic()
        told = program.wait_for("far: no answer for 5 s", PROMISED + ROOM) - began
        record_figure("link silent until it is told while jobs are followed (s)", told)
        time.sleep(3)
        end()
        program.wait_for("far: is answering again after ", 60)
        for host in (far, near):
            (host.home / "end").touch()
        assert program.process.wait(60) == 0
        assert [line for line in program.lines if "no answer" in line or "again" in line] == program.lines[:2]
        assert all("near" not in line for line in program.lines[:2])


@pytest.mark.row(169)
@pytest.mark.slow
def test_a_server_that_does_not_answer_at_all_is_told_of_before_the_connection_is_given_up(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    notices: list[str] = []
    far = network.host("far")
    workspace = make_workspace(far, notices=notices)
    job = workspace.start("far", "sleep 1000", sync=False)
    far.cut()
    waiting = threading.Thread(target=workspace.list_jobs, args=[JobSelection(jobs=(job.id,))], daemon=True)
    began = time.monotonic()
    waiting.start()
    notices.clear()
    until(lambda: notices, PROMISED + ROOM)
    assert notices == ["far: no answer for 5 s"]
    assert time.monotonic() - began >= PROMISED - 0.5
    waiting.join(60)
    far.mend()


@pytest.mark.row(172)
@pytest.mark.slow
def test_a_stop_whose_link_goes_before_the_answer_says_so(network: Network, make_workspace: MakeWorkspace) -> None:
    far = network.host("far")
    workspace = make_workspace(far)
    # It ignores SIGTERM, so the answer comes after the grace.
    job = workspace.start("far", "trap '' TERM; while :; do sleep 1; done", sync=False).job
    program = Program("job-kill", str(job.key), "--yes", "--grace", "40", cwd=workspace.root)
    try:
        until((far.home / "project" / ".jobs" / job.id / "stop.json").exists, 60)
        far.cut()
        began = time.monotonic()
        told = program.wait_for("far: no answer for 5 s", PROMISED + ROOM) - began
        record_figure("link silent until it is told while jobs are stopped (s)", told)
        far.mend()
        program.wait_for("far: is answering again after ", 60)
    finally:
        program.end()
    workspace.stop_jobs(JobSelection(jobs=(job.id,)), signal="SIGKILL")
