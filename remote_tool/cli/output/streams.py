"""Bytes to stdout and stderr, from any thread, also when the reader has gone."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading

IN, OUT, ERR = 0, 1, 2
# What a shell shows of a program that SIGPIPE ended.
CLOSED_PIPE = 128 + signal.SIGPIPE
# The exit status of a command that Ctrl-C ended.
INTERRUPTED = 128 + signal.SIGINT

reader_gone = threading.Event()
# Those that were closed when the program started.
closed: set[int] = set()


def replace_closed() -> None:
    """Open /dev/null in place of closed standard streams, so that no file or socket of ours becomes one of them.

    Stdin is then at its end, messages go nowhere, and what is written to stdout fails, as it does on a full disk.
    """
    for descriptor, name, flags in (
        (IN, "stdin", os.O_RDONLY),
        (OUT, "stdout", os.O_RDONLY),
        (ERR, "stderr", os.O_WRONLY),
    ):
        try:
            os.fstat(descriptor)
        except OSError:
            # It gets the lowest free number. What we start inherits it, as it would a stream that was open.
            os.set_inheritable(os.open(os.devnull, flags), True)
            setattr(sys, name, _as_text(descriptor))
            closed.add(descriptor)


def _as_text(descriptor: int) -> io.TextIOWrapper:
    """Return the stream of a descriptor; it keeps nothing back that could fail when the program has ended."""
    raw = io.FileIO(descriptor, "r" if descriptor == IN else "w", closefd=False)
    return io.TextIOWrapper(io.BufferedReader(raw) if descriptor == IN else raw, write_through=True)


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
