"""End the demo: protected from signals, and with all processes killed, as if its servers were switched off."""

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
    """Let a closed terminal end the program like SIGTERM; restore all signals afterwards."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, before[signal.SIGTERM])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore signals from here on: a second Ctrl-C must not interrupt the cleanup."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def no_process_left() -> Iterator[None]:
    """Kill everything started in this block, including jobs, which become our orphans."""
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
    """Return the living descendants of this process."""
    processes = {process.pid: process for process in list_processes()}
    found = {os.getpid()}
    grown = True
    while grown:
        below = {process.pid for process in processes.values() if process.parent in found}
        grown = not below <= found
        found |= below
    return [processes[pid] for pid in found - {os.getpid()} if processes[pid].is_alive]


def _collect_children() -> None:
    """Reap ended children, so that no zombie is left to whoever inherits it."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            """One more job has ended."""
