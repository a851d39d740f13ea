"""A process that has imported everything: each case of a sweep is a fork of it, which costs a millisecond.

It reads one JSON object per line, forks, and answers with the pid. The fork, and that descendant of it which is asked
for, stop at the gate: they connect to a socket, say who they are, and go on when they are told to. So strace is there
before the first call that counts. It may be asked for the first thread that the fork starts, too.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

FIRST_THREAD = -1


def wait_at_gate(name: str, generation: int) -> None:
    """Say who has come, and wait to be let through."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(f"\0{name}")
        link.sendall(b"%d %d\n" % (threading.get_native_id(), generation))
        link.recv(1)


def _become(case: dict[str, Any]) -> NoReturn:
    """In the fork: what the case says, with the files that it names as standard streams."""
    generation = 0

    def count_generations() -> None:
        nonlocal generation
        generation += 1
        if generation == case["generation"]:
            wait_at_gate(case["gate"], generation)

    status = 1
    try:
        _take_files(case)
        os.chdir(case["folder"])
        os.environ.update(case["environment"])
        module, _, name = case["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        if case["generation"] == FIRST_THREAD:
            _stop_first_thread(case["gate"])
        os.register_at_fork(after_in_child=count_generations)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        wait_at_gate(case["gate"], 0)
        status = function(*case["arguments"]) or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - a fork must not return into the loop below
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _stop_first_thread(gate: str) -> None:
    started: list[str] = []
    run = threading.Thread.run

    def run_after_gate(thread: threading.Thread) -> None:
        if not started:
            started.append(thread.name)
            wait_at_gate(gate, FIRST_THREAD)
        run(thread)

    threading.Thread.run = run_after_gate  # type: ignore[method-assign,assignment]


def _take_files(case: dict[str, Any]) -> None:
    make = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, name, flags in ((0, "stdin", os.O_RDONLY), (1, "stdout", make), (2, "stderr", make)):
        file = os.open(case[name], flags, 0o600)
        os.dup2(file, number)
        os.close(file)


def main(modules: list[str]) -> None:
    """Import, then fork on demand until stdin ends."""
    for module in modules:
        importlib.import_module(module)
    # The kernel buries the forks; whoever waits for one has a descriptor of it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while line := sys.stdin.readline():
        case = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(case)
        os.write(1, b"%d\n" % pid)


if __name__ == "__main__":
    main(sys.argv[1:])
