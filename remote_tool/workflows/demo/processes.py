"""Find and kill the demo's processes on this machine."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Process:
    """A process in ``/proc``.

    Attributes:
        start_time: In clock ticks since the boot; unique together with the pid.
        is_alive: Whether it is not a zombie.
    """

    pid: int
    parent: int
    start_time: int
    is_alive: bool

    def kill(self) -> None:
        """Send SIGKILL to this very process, never to another one that got its pid."""
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
    """Return a pidfd, so that the pid cannot be reused; None on old kernels."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def list_processes() -> list[Process]:
    """Return all processes of this machine."""
    found = (_read_process(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdigit())
    return [process for process in found if process is not None]


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, where the system allows it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _read_process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name may contain spaces and parentheses, so fields are counted from its last one.
    fields = text[text.rfind(b")") + 2 :].split()
    # A zombie with several threads is alive: only its first thread has ended.
    is_alive = fields[0] not in {b"Z", b"X", b"x"} or int(fields[17]) > 1
    return Process(pid, int(fields[1]), int(fields[19]), is_alive)
