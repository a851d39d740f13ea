"""The real program on a terminal of its own, as a person has it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Makes the terminal the controlling one, so that Ctrl-C comes from it and /dev/tty is it.
TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
# Of a machine that stands still for a while; what comes is waited for, not this long.
PATIENCE = 300.0
END = b"\0nothing comes after this\0"
STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs ``remote-tool`` on a pseudo-terminal of 80 columns.

    Attributes:
        raw: Everything that came until now.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        program: Sequence[str] = ("-m", "remote_tool"),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.raw = b""
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        settings = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, sys.executable, *program, *arguments],
            cwd=cwd,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
            env={**settings, "TERM": "xterm-256color", **(environment or {})},
        )

    @property
    def text(self) -> str:
        """What came, without colours and movements; what was written over stands on a line of its own."""
        return STYLES.sub("", self.raw.decode(errors="replace")).replace("\r\n", "\n").replace("\r", "\n")

    def until(self, text: str, times: int = 1, seconds: float = PATIENCE) -> None:
        """Read until a text has come, or has come several times."""
        deadline = time.monotonic() + seconds
        while self.text.count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.text!r}"
            has_ended = self.process.poll() is not None
            if not self._read(0.1) and has_ended:
                self._read_to_the_end()
                assert self.text.count(text) >= times, self.text

    def until_bytes(self, data: bytes, seconds: float = PATIENCE, times: int = 1) -> None:
        """Read until these bytes have come as they are."""
        deadline = time.monotonic() + seconds
        while self.raw.count(data) < times:
            assert time.monotonic() < deadline, f"{data!r} did not come: {self.raw[-2000:]!r}"
            self._read(0.1)

    @property
    def modes(self) -> list[object]:
        """How the terminal treats input and output."""
        return list(termios.tcgetattr(self.theirs))

    @property
    def is_raw(self) -> bool:
        """Whether every key goes to the program as it is."""
        return not termios.tcgetattr(self.theirs)[3] & termios.ICANON

    @property
    def is_hidden(self) -> bool:
        """Whether a line is read that is not shown, such as a password."""
        return not self.is_raw and not termios.tcgetattr(self.theirs)[3] & termios.ECHO

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        r"""Type; ``\x03`` is Ctrl-C."""
        os.write(self._ours, text.encode())

    def end(self, seconds: float = PATIENCE) -> int:
        """Read until the program has ended; return its exit status."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.text!r}"
            self._read(0.05)
        self._read_to_the_end()
        return self.process.returncode

    def _read_to_the_end(self) -> None:
        """Read all that the program has written: the kernel may pass it on only after the program has ended."""
        while self._read(0):
            pass
        os.write(self.theirs, END)
        deadline = time.monotonic() + PATIENCE
        while END not in self.raw:
            assert time.monotonic() < deadline, self.raw[-2000:]
            self._read(0.1)
        self.raw = self.raw.replace(END, b"")

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        self.raw += os.read(self._ours, 65536)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self.theirs)
