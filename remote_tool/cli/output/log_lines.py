"""Print output of servers: exact bytes of one source, or labeled lines of several."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import harmless_line, harmless_stream, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

# A longer line is passed on in pieces, to bound memory.
LONGEST_LINE = 64 * 1024
_CLEAR_LINE = "\r\x1b[K"
COLORS = (36, 33, 35, 32, 34, 31)


class ExactOutput:
    """Prints the exact bytes of one source; on a terminal without control sequences."""

    def __init__(self) -> None:
        self._terminals = {
            each: _SafeTerminal(each) for each in (streams.OUT, streams.ERR) if streams.is_terminal(each)
        }
        # The stream whose progress bar holds the cursor; 0 without one.
        self._bar_stream = 0

    def write(self, _label: str, stream: int, data: bytes) -> None:
        """Print some bytes of stream 1 (stdout) or 2 (stderr)."""
        if stream in self._terminals:
            if self._bar_stream not in {0, stream}:
                # The program clears it before writing to the other stream, but that arrives separately, and later.
                streams.write_text(stream, _CLEAR_LINE)
                self._bar_stream = 0
            self._terminals[stream].write(data)
            self._note_bar(stream, data.rpartition(b"\n"))
        else:
            streams.write(stream, data)

    def _note_bar(self, stream: int, parts: tuple[bytes, bytes, bytes]) -> None:
        _, line_end, rest = parts
        if b"\r" in rest and rest.rpartition(b"\r")[2].strip():
            self._bar_stream = stream
        elif line_end or b"\r" in rest:
            self._bar_stream = 0

    def close(self) -> None:
        """Print the rest, and reset colors that the program left set."""
        for terminal in self._terminals.values():
            terminal.end()


class _SafeTerminal:
    """Writes the output of a program to a terminal, without control sequences."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._incomplete = ""
        self._has_color = False

    def write(self, data: bytes) -> None:
        shown, self._incomplete = harmless_stream(self._incomplete + self._decoder.decode(data))
        self._has_color = self._has_color or "\x1b" in shown
        streams.write_text(self._stream, shown)

    def end(self) -> None:
        rest = self._incomplete + self._decoder.decode(b"", final=True)
        streams.write_text(self._stream, harmless_line(rest) + ("\x1b[0m" if self._has_color else ""))


class LabelledOutput:
    """Prints complete lines of several sources, each with its source's label.

    Args:
        labels: The known labels; their lines are aligned from the start.
    """

    def __init__(self, labels: Iterable[str] = ()) -> None:
        self._pending: dict[tuple[str, int, str], bytes] = {}
        self._labels = {label: number for number, label in enumerate(labels)}
        self._width = max(map(len, self._labels), default=0)

    def write(self, label: str, stream: int, data: bytes, source: str = "") -> None:
        """Print complete lines; ``source`` distinguishes sources that share a label and a stream."""
        key = (label, stream, source)
        *lines, rest = (self._pending.get(key, b"") + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            # Only the last state of a progress bar counts.
            rest = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
        while len(rest) > LONGEST_LINE:
            lines.append(rest[:LONGEST_LINE])
            rest = rest[LONGEST_LINE:]
        self._pending[key] = rest
        self._print(label, stream, lines)

    def close(self) -> None:
        """Print incomplete last lines."""
        for (label, stream, _), rest in self._pending.items():
            self._print(label, stream, [rest] if rest else [])
        self._pending.clear()

    def _print(self, label: str, stream: int, lines: list[bytes]) -> None:
        prefix = self._prefix(label, stream)
        show = _shown if streams.is_terminal(stream) else _last_state
        streams.write(stream, b"".join(prefix + show(line) + b"\n" for line in lines))

    def _prefix(self, label: str, stream: int) -> bytes:
        number = self._labels.setdefault(label, len(self._labels))
        self._width = max(self._width, len(label))
        text = f"{one_line(label):{self._width}} |"
        if streams.has_color(stream):
            text = f"\x1b[{COLORS[number % len(COLORS)]}m{text}\x1b[0m"
        return f"{text} ".encode()


def _last_state(line: bytes) -> bytes:
    """Return the last state of an overwritten line, such as a progress bar."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _shown(line: bytes) -> bytes:
    return harmless_line(_last_state(line).decode(errors="replace")).encode()
