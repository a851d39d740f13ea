"""Bytes to stdout and stderr, from any thread, also when the reader has gone."""

from __future__ import annotations

import os
import signal
import sys
import threading

OUT, ERR = 1, 2
# What a shell shows of a program that SIGPIPE ended.
CLOSED_PIPE = 128 + signal.SIGPIPE

reader_gone = threading.Event()


def write(descriptor: int, data: bytes) -> None:
    """Write all of it.

    A closed pipe (``| head -1``) ends the program as SIGTERM does, connections and all, and silently: what is written
    comes from a background thread, where an exception would only end the work. A plain write holds no lock of
    Python's, which a thread that waits for a slow reader would keep for ever when the program leaves.
    """
    view = memoryview(data)
    while view and not reader_gone.is_set():
        try:
            view = view[os.write(descriptor, view) :]
        except BrokenPipeError:
            reader_gone.set()
            os.kill(os.getpid(), signal.SIGTERM)


def write_text(descriptor: int, text: str) -> None:
    """Write text; what the terminal's encoding does not have is written out."""
    target = sys.stdout if descriptor == OUT else sys.stderr
    write(descriptor, text.encode(target.encoding or "utf-8", "backslashreplace"))


def is_terminal(descriptor: int) -> bool:
    """Whether a person looks at it."""
    return os.isatty(descriptor)


def has_colour(descriptor: int) -> bool:
    """Whether colours are wanted there: https://no-color.org."""
    return is_terminal(descriptor) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def can_hold_line() -> bool:
    """Whether a person looks at a whole screen, where a line at the bottom can stay."""
    return os.environ.get("TERM", "dumb") not in {"", "dumb", "unknown"} and is_terminal(OUT) and is_terminal(ERR)
