"""Run a program until it ends, or until its parent does: ``python guard.py FOLDER PROGRAM ...``.

Its stdin is a pipe that only the parent holds, so it notices any end of the parent, SIGKILL included. Then it removes
the folder, and ends its process group. It is run as a file, without the package.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GRACE_SECONDS = 1.0


def guarded(command: Sequence[str], folder: str) -> list[str]:
    """Return the command of a guard: start it in a session of its own with a pipe as stdin; close that to end all."""
    return [sys.executable, "-I", "-S", __file__, folder, *command]


def main() -> int:
    """Run the program; return its exit status."""
    folder, *command = sys.argv[1:]
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    # Handlers, as an ignored signal would be ignored by the program too.
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while program.poll() is None and 0 not in select.select([0, woken], [], [])[0]:
        os.read(woken, select.PIPE_BUF)
    os.killpg(0, signal.SIGTERM)
    if program.returncode is None:
        with suppress(subprocess.TimeoutExpired):
            program.wait(GRACE_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


if __name__ == "__main__":
    sys.exit(main())
