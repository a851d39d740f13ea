"""Clean up after a killed demo: a separate program that waits for the end of its stdin.

``python -m remote_tool.workflows.demo.guard FOLDER``. Every process of the demo has the folder in its environment, as
part of ``$HOME``. A demo that ends normally also ends this program, with nothing left to do.
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

from remote_tool.workflows.demo.processes import Process, list_processes

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_END = 10.0
PAUSE = 0.02


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Ensure that when this process ends in any way, the folder and all processes naming it are removed."""
    command = [sys.executable, "-P", "-m", "remote_tool.workflows.demo.guard", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            guard.kill()


def main() -> None:
    """Wait for the demo's end, then clean up."""
    folder = Path(sys.argv[1])
    sys.stdin.read()
    deadline = time.monotonic() + LONGEST_END
    while (found := _processes_of(folder)) and time.monotonic() < deadline:
        for process in found:
            process.kill()
        time.sleep(PAUSE)
    shutil.rmtree(folder, ignore_errors=True)


def _processes_of(folder: Path) -> list[Process]:
    mark = b"=" + os.fsencode(folder)
    others = (process for process in list_processes() if process.pid != os.getpid())
    return [process for process in others if process.is_alive and mark in _environment(process)]


def _environment(process: Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
