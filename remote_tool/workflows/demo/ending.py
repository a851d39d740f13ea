"""How the demo ends: undisturbed, and with no process left, as if its servers were switched off."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from remote_tool.workflows.demo.processes import Process, become_subreaper, list_processes

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_END = 10.0
PAUSE = 0.01
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_restored() -> Iterator[None]:
    """Meanwhile a closed terminal ends the program as SIGTERM does; afterwards every signal means what it did."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, before[signal.SIGTERM])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """From here on a second Ctrl-C does not leave behind what the first one began to clear away."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def no_process_left() -> Iterator[None]:
    """Afterwards nothing that was started meanwhile lives, also no job: without its connection it is our orphan."""
    become_subreaper()
    try:
        yield
    finally:
        _kill_descendants()
        _collect_children()


def _kill_descendants() -> None:
    deadline = time.monotonic() + LONGEST_END
    while (found := _descendants()) and time.monotonic() < deadline:
        for process in found:
            process.kill()
        time.sleep(PAUSE)


def _descendants() -> list[Process]:
    """Look for the living processes below this one, at any depth."""
    processes = {process.pid: process for process in list_processes()}
    found = {os.getpid()}
    grown = True
    while grown:
        below = {process.pid for process in processes.values() if process.parent in found}
        grown = not below <= found
        found |= below
    return [processes[pid] for pid in found - {os.getpid()} if processes[pid].is_alive]


def _collect_children() -> None:
    """Take the exit statuses of children that ended, so that no zombie is left to whoever inherits it."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            """One more job has ended."""
