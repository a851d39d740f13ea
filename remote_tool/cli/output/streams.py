"""Write bytes to stdout and stderr from any thread, even when the reader of a pipe has closed it."""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import threading
from shutil import get_terminal_size

IN, OUT, ERR = 0, 1, 2
# The exit status in a shell for SIGPIPE.
CLOSED_PIPE = 128 + signal.SIGPIPE
# The exit status after Ctrl-C.
INTERRUPTED = 128 + signal.SIGINT

reader_closed = threading.Event()
closed_at_start: set[int] = set()


def replace_closed() -> None:
    """Open /dev/null in place of closed standard streams, so that no file or socket of ours becomes one of them.

    Stdin is then at its end, messages are discarded, and writes to stdout fail, as on a full disk.
    """
    for descriptor, name, flags in (
        (IN, "stdin", os.O_RDONLY),
        (OUT, "stdout", os.O_RDONLY),
        (ERR, "stderr", os.O_WRONLY),
    ):
        try:
            os.fstat(descriptor)
        except OSError:
            # It gets the lowest free number. Children inherit it, like an open stream.
            os.set_inheritable(os.open(os.devnull, flags), True)
            setattr(sys, name, _as_text(descriptor))
            closed_at_start.add(descriptor)


def _as_text(descriptor: int) -> io.TextIOWrapper:
    """Return a descriptor's stream, unbuffered, as a failed flush at exit would be lost."""
    raw = io.FileIO(descriptor, "r" if descriptor == IN else "w", closefd=False)
    return io.TextIOWrapper(io.BufferedReader(raw) if descriptor == IN else raw, write_through=True)


def write(descriptor: int, data: bytes) -> None:
    """Write all bytes.

    A closed pipe (``| head -1``) ends the program like SIGTERM, closing connections, and silently: writes
    come from a background thread, where an exception would only end the work. os.write holds no Python
    lock, which a thread waiting for a slow reader would hold for ever at exit.
    """
    view = memoryview(data)
    while view and not reader_closed.is_set():
        try:
            view = view[os.write(descriptor, view) :]
        except BrokenPipeError:
            reader_closed.set()
            os.kill(os.getpid(), signal.SIGTERM)


def write_text(descriptor: int, text: str) -> None:
    """Write text; characters missing from the terminal's encoding are escaped."""
    target = sys.stdout if descriptor == OUT else sys.stderr
    write(descriptor, text.encode(target.encoding or "utf-8", "backslashreplace"))


def is_terminal(descriptor: int) -> bool:
    """Return whether a stream is a terminal."""
    return os.isatty(descriptor)


def width() -> float:
    """Return the columns of the terminal on stdout; infinity for a file or a pipe."""
    return get_terminal_size().columns if is_terminal(OUT) else math.inf


def has_color(descriptor: int) -> bool:
    """Return whether to use colors: https://no-color.org."""
    return is_terminal(descriptor) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def can_hold_line() -> bool:
    """Return whether output goes to a terminal with cursor control, where a line can stay at the bottom."""
    return os.environ.get("TERM", "dumb") not in {"", "dumb", "unknown"} and is_terminal(OUT) and is_terminal(ERR)
