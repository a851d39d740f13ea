"""Reading from the terminal, which is itself again however the program ends."""

from __future__ import annotations

import atexit
import getpass
import os
import sys
import termios
from typing import Any

_saved: list[Any] = []


def ask_hidden(prompt: str) -> str | None:
    """Ask without showing what is typed; None when there is no answer."""
    _saved.append(termios.tcgetattr(sys.stdin))
    try:
        return getpass.getpass(prompt)
    except EOFError:
        return None
    finally:
        _saved.clear()


def read_line() -> str:
    """Read what is typed on any thread; empty when there is no answer.

    A thread that waits in sys.stdin holds its lock, and then Python cannot end.
    """
    return os.read(sys.stdin.fileno(), 4096).decode(errors="replace").strip()


@atexit.register
def _restore_terminal() -> None:
    """Show again what is typed, when the program leaves while another thread is asking."""
    while _saved:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, _saved.pop())
        sys.stderr.write("\n")
