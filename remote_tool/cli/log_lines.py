"""Prints output of servers: exact bytes of one source, or whole lines of several with a label each."""

from __future__ import annotations

import codecs
import sys
from typing import TYPE_CHECKING, BinaryIO

from remote_tool.cli.plain import harmless_log

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_LINE = 64 * 1024
COLOURS = (36, 33, 35, 32, 34, 31)


class ExactOutput:
    """One source: bytes as they came; on a terminal without what steers it."""

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder(errors="replace") for stream in (1, 2)}

    def write(self, _label: str, stream: int, data: bytes, *, final: bool = False) -> None:
        """Print some bytes of stream 1 (stdout) or 2 (stderr)."""
        target = sys.stdout if stream == 1 else sys.stderr
        if target.isatty():
            data = harmless_log(self._decoders[stream].decode(data, final)).encode()
        _write(target.buffer, data)

    def end(self) -> None:
        """Print what is left."""
        for stream in (1, 2):
            self.write("", stream, b"", final=True)


class LabelledOutput:
    """Several sources: each line whole, behind the label of its source."""

    def __init__(self, colour: Callable[[], bool]) -> None:
        self._pending: dict[tuple[str, int, str], bytes] = {}
        self._labels: dict[str, int] = {}
        self._colour = colour
        self._width = 0

    def write(self, label: str, stream: int, data: bytes, source: str = "") -> None:
        """Print the lines that are whole; source tells apart what shares a label and a stream."""
        key = (label, stream, source)
        *lines, rest = (self._pending.get(key, b"") + data).split(b"\n")
        for line in lines:
            self._print(label, stream, line)
        while len(rest) > LONGEST_LINE:
            self._print(label, stream, rest[:LONGEST_LINE])
            rest = rest[LONGEST_LINE:]
        self._pending[key] = rest

    def end(self) -> None:
        """Print the lines that had no end."""
        for (label, stream, _), rest in self._pending.items():
            if rest:
                self._print(label, stream, rest)
        self._pending.clear()

    def _print(self, label: str, stream: int, line: bytes) -> None:
        target = sys.stdout if stream == 1 else sys.stderr
        # Of a progress bar, its last state.
        text = line.rstrip(b"\r").rpartition(b"\r")[2]
        if target.isatty():
            text = harmless_log(text.decode(errors="replace")).encode()
        _write(target.buffer, self._prefix(label) + text + b"\n")

    def _prefix(self, label: str) -> bytes:
        number = self._labels.setdefault(label, len(self._labels))
        self._width = max(self._width, len(label))
        text = f"{label:{self._width}} | "
        if self._colour():
            text = f"\x1b[{COLOURS[number % len(COLOURS)]}m{text}\x1b[0m"
        return text.encode()


def _write(target: BinaryIO, data: bytes) -> None:
    target.write(data)
    target.flush()
