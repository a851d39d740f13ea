"""A person who types into a shell on a server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONG = 60.0
PROMPT = "ready> "
# A program that has the whole screen, and draws it when the size changes.
DRAWS = (
    "import os, signal, sys\n"
    "def draw(*_):\n    size = os.get_terminal_size()\n"
    "    os.write(1, b'\\x1b[H\\x1b[2Jdrawn %d' % size.lines)\n"
    "os.write(1, b'\\x1b[?1049h\\x1b[?2004h')\nsignal.signal(signal.SIGWINCH, draw)\ndraw()\n"
    "while True: sys.stdin.readline()"
)


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {LONG} s")


def shell(project: Path, *words: str, mark: str = "none", server: str = "first") -> Terminal:
    return Terminal("shell", "--server", server, "--env", f"MARK={mark}", *words, cwd=project)


def say(terminal: Terminal, text: str, answer: str) -> None:
    """Type a line, and wait for what it prints; the answer must not stand in the line itself."""
    terminal.type(f"{text}\r")
    terminal.until(answer, seconds=LONG)


def prompt(terminal: Terminal) -> None:
    """Wait for the shell, and give it a prompt of ours."""
    say(terminal, "PS1=rea'dy> '", PROMPT)
