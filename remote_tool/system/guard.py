"""Run a program until it or the parent of this process ends: ``python guard.py FOLDER PROGRAM ...``.

The stdin of a guard is a pipe that only its parent holds, so the guard notices any end of the parent, even by SIGKILL.
Then it removes the folder, and ends its process group. It runs as a file, without the package.
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
    """Return the command of a guard; start it in a session of its own, with a pipe as stdin."""
    return [sys.executable, "-I", "-S", __file__, folder, *command]


def main() -> int:
    """Run the program; return its exit status."""
    folder, *command = sys.argv[1:]
    wakeup, signaled = os.pipe()
    os.set_blocking(signaled, False)
    signal.set_wakeup_fd(signaled)
    # Handlers, as the program would inherit ignored signals.
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while program.poll() is None and 0 not in select.select([0, wakeup], [], [])[0]:
        os.read(wakeup, select.PIPE_BUF)
    os.killpg(0, signal.SIGTERM)
    if program.returncode is None:
        with suppress(subprocess.TimeoutExpired):
            program.wait(GRACE_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


if __name__ == "__main__":
    sys.exit(main())
