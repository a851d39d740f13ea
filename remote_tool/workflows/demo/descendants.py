"""Every process below this one, and how they are ended: as if the machine were switched off."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from remote_tool.supervisor.processes import Process, Snapshot, send_signal

LONGEST_END = 10.0
PAUSE = 0.01


def kill_descendants() -> None:
    """Kill all of them, until none lives; orphans are among them where this process is a child subreaper."""
    deadline = time.monotonic() + LONGEST_END
    while (found := descendants()) and time.monotonic() < deadline:
        for process in found:
            send_signal(process, signal.SIGKILL)
        time.sleep(PAUSE)


def collect_children() -> None:
    """Take the exit statuses of children that ended, so that no zombie is left to whoever inherits it."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            """One more has ended."""


def descendants() -> list[Process]:
    """Look for the living processes below this one, at any depth."""
    processes = Snapshot().processes
    found = {os.getpid()}
    grown = True
    while grown:
        below = {process.pid for process in processes.values() if process.parent in found}
        grown = not below <= found
        found |= below
    return [processes[pid] for pid in found - {os.getpid()} if processes[pid].is_alive]
