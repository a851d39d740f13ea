"""Read from the terminal, and restore it however the program ends."""

from __future__ import annotations

import atexit
import getpass
import os
import sys
import termios
from typing import Any

_saved: list[Any] = []


def ask_hidden(prompt: str) -> str | None:
    """Prompt without echo; None when there is no answer."""
    _saved.append(termios.tcgetattr(sys.stdin))
    try:
        return getpass.getpass(prompt)
    except EOFError:
        return None
    finally:
        _saved.clear()


def read_line() -> str:
    """Read a line on any thread; empty when there is no answer.

    A thread waiting in sys.stdin holds its lock, and then Python cannot exit.
    """
    return os.read(sys.stdin.fileno(), 4096).decode(errors="replace").strip()


@atexit.register
def _restore_terminal() -> None:
    """Restore echo when the program exits while another thread is asking."""
    while _saved:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, _saved.pop())
        sys.stderr.write("\n")
