"""Find and kill processes of the demo on this machine."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_END = 10.0
PAUSE = 0.01
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class LocalProcess:
    """A process in ``/proc``.

    Attributes:
        pid: Its process id.
        parent: The process id of its parent.
        start_time: In clock ticks since the boot; unique together with the pid.
        is_alive: False for a zombie.
    """

    pid: int
    parent: int
    start_time: int
    is_alive: bool

    def kill(self) -> None:
        """Send SIGKILL to this process, but not to another one that got its pid."""
        with suppress(OSError), _pidfd(self.pid) as descriptor:
            now = _read_process(self.pid)
            if now is None or now.start_time != self.start_time:
                return
            if descriptor is None:
                os.kill(self.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)


@contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    """Open a pidfd, so that the pid cannot be reused; None on old kernels."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def list_processes() -> list[LocalProcess]:
    """Return all processes of this machine."""
    found = (_read_process(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdigit())
    return [process for process in found if process is not None]


@contextmanager
def no_process_left() -> Iterator[None]:
    """Kill all processes that were started in this block, as if the servers were switched off.

    Jobs too: this process becomes the parent of orphans.
    """
    _become_subreaper()
    try:
        yield
    finally:
        _kill_descendants()
        _collect_children()


def _kill_descendants() -> None:
    deadline = time.monotonic() + LONGEST_END
    while (living := _descendants()) and time.monotonic() < deadline:
        for process in living:
            process.kill()
        time.sleep(PAUSE)


def _descendants() -> list[LocalProcess]:
    """Return the living descendants of this process."""
    processes = {process.pid: process for process in list_processes()}
    found = {os.getpid()}
    has_grown = True
    while has_grown:
        children = {process.pid for process in processes.values() if process.parent in found}
        has_grown = not children <= found
        found |= children
    return [processes[pid] for pid in found - {os.getpid()} if processes[pid].is_alive]


def _collect_children() -> None:
    """Reap children that have ended, so that no zombie is left."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            """Another child has been reaped."""


def _become_subreaper() -> None:
    """Become the parent of orphaned descendants, where the system allows it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _read_process(pid: int) -> LocalProcess | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name may contain spaces and parentheses, so fields are counted from the last parenthesis.
    fields = text[text.rfind(b")") + 2 :].split()
    # A zombie with several threads is alive: only its first thread has ended.
    is_alive = fields[0] not in {b"Z", b"X", b"x"} or int(fields[17]) > 1
    return LocalProcess(pid, int(fields[1]), int(fields[19]), is_alive)
