"""End all processes of a job: the requested signal, then SIGKILL, until a scan finds none."""

from __future__ import annotations

import os
import signal
import time

from remote_tool.agent.proc.processes import Process, ProcessSnapshot, find_alive, read_process, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, List, Optional

    from remote_tool.agent.wrapper.container import WrappedProcesses

# SIGKILL is repeated for this long; processes left then cannot be killed.
KILL_SECONDS = 10.0
# One scan may miss a process that forks while it dies.
_CLEAN_LOOKS = 2
_BLIND_SECONDS = 0.2


class Tree:
    """The processes of a job below this supervisor."""

    def __init__(
        self, job_id: str, folder: str, pause: Callable[[float], None], wrapped: Optional[WrappedProcesses] = None
    ) -> None:
        """Initialize.

        Args:
            job_id: The job.
            folder: The job's folder, absolute and without links; empty when there is none.
            pause: Waits up to a number of seconds, and reaps children.
            wrapped: The processes behind the launch command; None without one.
        """
        self._wrapped = wrapped
        self._job_id = job_id
        self._folder = folder
        self._pause = pause
        # Files in a job's folder may be held by processes older than this one.
        this = None if folder else read_process(os.getpid())
        self._since = 0 if this is None else this.start_time

    def members(self) -> List[Process]:
        """Return the living processes, once the system can list them."""
        while True:
            try:
                return self._scan()
            except OSError:
                # Out of descriptors: an empty answer would let them live.
                self._pause(_BLIND_SECONDS)

    def _scan(self) -> List[Process]:
        self._snapshot = ProcessSnapshot()
        members = self._snapshot.members(self._job_id, self._folder, os.getpid(), since=self._since)
        self._pause(0)
        if self._wrapped is not None:
            members = self._wrapped.without_engine(members)
        return [process for process in members if find_alive(process.as_record())]

    def signal(self, number: int) -> List[Process]:
        """Signal all processes once; return all targets, including a spared launch command."""
        members = self.members()
        matching = members if self._wrapped is None else self._wrapped.matching(members, self._snapshot, number)
        for process in matching:
            deliver(process, number)
        return members

    def wait(self, seconds: float, is_urgent: Callable[[], bool]) -> bool:
        """Wait until none is left; return False on timeout or when it became urgent."""
        deadline = time.monotonic() + seconds
        pause = 0.02
        while self.members() or self._count_inside():
            left = deadline - time.monotonic()
            if left <= 0 or is_urgent():
                return False
            self._pause(min(pause, left))
            pause = min(pause * 1.5, 0.5)
        return True

    def kill(self) -> List[Process]:
        """SIGKILL until several scans in a row find none; return the unkillable ones."""
        deadline = time.monotonic() + KILL_SECONDS
        clean_looks = 0
        while clean_looks < _CLEAN_LOOKS:
            left_inside = 0 if self._wrapped is None else self._wrapped.kill()
            members = self.signal(signal.SIGKILL)
            clean_looks = 0 if members or left_inside else clean_looks + 1
            if not clean_looks and time.monotonic() > deadline:
                return members
            if not clean_looks:
                self._pause(0.02)
        return []

    def _count_inside(self) -> int:
        return 0 if self._wrapped is None else self._wrapped.count()


def end_members(
    scan: Callable[[], List[Process]], name: str, grace: float, wrapped: Optional[WrappedProcesses] = None
) -> Iterator[None]:
    """End unsupervised processes: a signal, the grace period, SIGKILL until two scans in a row find none.

    Args:
        scan: Returns the living processes.
        name: The first signal.
        grace: Seconds until SIGKILL.
        wrapped: The processes behind the launch command; None without one.
    """
    number = signal.Signals.__members__.get(name, signal.SIGTERM)
    if number != signal.SIGKILL:
        members = scan()
        for process in members if wrapped is None else wrapped.matching(members, ProcessSnapshot(), number):
            deliver(process, number)
        deadline = time.monotonic() + grace
        while (scan() or (wrapped is not None and wrapped.count())) and time.monotonic() < deadline:
            yield
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        left_inside = 0 if wrapped is None else wrapped.kill()
        members = scan()
        if not left_inside and not members and not scan():
            break
        for process in members:
            send_signal(process, signal.SIGKILL)
        yield


def deliver(process: Process, number: int) -> None:
    """Signal a process, and continue it when stopped: otherwise it could not react before SIGKILL."""
    if send_signal(process, number) and number != signal.SIGKILL:
        send_signal(process, signal.SIGCONT)
