"""Questions to the user, on the terminal."""

from __future__ import annotations

import atexit
import getpass
import os
import sys
import termios
from typing import Any

from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import escape_controls

# The attributes of the terminal before it stopped to echo.
_saved: list[Any] = []


def can_ask() -> bool:
    """Return whether a user can answer."""
    return sys.stdin.isatty() and streams.is_terminal(streams.ERR)


def ask(question: str, default: str = "") -> str:
    """Ask for a line; an empty answer means the default, and Ctrl-D leaves as Ctrl-C does."""
    shown = f" [{default}]" if default else ""
    streams.write_text(streams.ERR, f"{escape_controls(question)}{escape_controls(shown)}: ")
    line = sys.stdin.readline()
    if not line:
        streams.write_text(streams.ERR, "\n")
        raise KeyboardInterrupt
    return line.strip() or default


def confirm(question: str) -> bool:
    """Ask yes or no; no is the default."""
    return _is_yes(ask(f"{question} [y/N]"))


def confirm_on_any_thread(question: str) -> bool:
    """Ask yes or no, also on a thread that may still wait when the program exits.

    A thread waiting in sys.stdin holds its lock, and then Python cannot exit.
    """
    streams.write_text(streams.ERR, f"{escape_controls(question)} [y/N]: ")
    return _is_yes(os.read(sys.stdin.fileno(), 4096).decode(errors="replace").strip())


def ask_hidden(prompt: str) -> str | None:
    """Ask for a secret, without echo; None when there is no answer."""
    _saved.append(termios.tcgetattr(sys.stdin))
    try:
        return getpass.getpass(f"{escape_controls(prompt).rstrip(': ')}: ")
    except EOFError:
        return None
    finally:
        _saved.clear()


@atexit.register
def _restore_echo() -> None:
    """Restore echo when the program exits while another thread is asking."""
    while _saved:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, _saved.pop())
        sys.stderr.write("\n")


def _is_yes(answer: str) -> bool:
    return answer.lower() in {"y", "yes"}
