"""A line of ours on a screen that a program on a server draws; afterwards the screen is as it was.

It is drawn only while the server is silent, so the cursor is where the program left it.
"""

from __future__ import annotations

from remote_tool.cli.output.sanitize import one_line

# Where lines scroll: down to the next line, which may scroll them all; there, a new line that moves the others down.
BELOW = b"\n\x1b[A\x1b7\x1b[B\r\x1b[L\x1b[0;7m%s\x1b[0m\x1b8"
NOT_BELOW = b"\x1b7\x1b[B\r\x1b[M\x1b8"
# Where a program has the whole screen: over its last line, which it has to draw again.
LAST = b"\x1b7\x1b[%d;1H\x1b[0;7m\x1b[2K%s\x1b[0m\x1b8"
NOT_LAST = b"\x1b7\x1b[%d;1H\x1b[0m\x1b[2K\x1b8"


class NoticeLine:
    """At most one line, drawn below the cursor, or over the last line of a full-screen program.

    Attributes:
        text: What it says; empty when there is none.
    """

    def __init__(self) -> None:
        self.text = ""
        self._remove = b""

    def draw(self, text: str, window: tuple[int, int], *, full_screen: bool) -> bytes:
        """Return what draws a text that fits into one line of a window of these rows and columns."""
        rows, columns = window
        shown = one_line(text)[: columns - 1].encode(errors="replace")
        self.text = text
        self._remove = NOT_LAST % rows if full_screen else NOT_BELOW
        return LAST % (rows, shown) if full_screen else BELOW % shown

    def remove(self) -> bytes:
        """Return what removes it; empty when there is none."""
        sequence, self._remove, self.text = self._remove, b"", ""
        return sequence
