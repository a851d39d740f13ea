"""Clean up after a killed demo: ``python -m remote_tool.workflows.demo.guard FOLDER``.

This is a program of its own, which waits for the end of its stdin. It finds the processes of the demo by the folder,
which is part of ``$HOME`` in their environment. A demo that ends normally kills this program, as nothing is left to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.workflows.demo.processes import LocalProcess, list_processes

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_END = 10.0
PAUSE = 0.02


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Start the guard: if this process is killed, the folder and all processes that name it are removed."""
    command = [sys.executable, "-P", "-m", "remote_tool.workflows.demo.guard", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            guard.kill()


def main() -> None:
    """Wait for the end of the demo, then clean up."""
    folder = Path(sys.argv[1])
    sys.stdin.read()
    deadline = time.monotonic() + LONGEST_END
    while (living := _processes_of(folder)) and time.monotonic() < deadline:
        for process in living:
            process.kill()
        time.sleep(PAUSE)
    shutil.rmtree(folder, ignore_errors=True)


def _processes_of(folder: Path) -> list[LocalProcess]:
    mark = b"=" + os.fsencode(folder)
    others = (process for process in list_processes() if process.pid != os.getpid())
    return [process for process in others if process.is_alive and mark in _environment(process)]


def _environment(process: LocalProcess) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
