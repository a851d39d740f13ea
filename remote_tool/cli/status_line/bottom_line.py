"""A fixed line at the bottom of the terminal; everything else scrolls above it."""

from __future__ import annotations

import os

from rich.cells import set_cell_size

from remote_tool.cli.output import streams

SMALLEST_WIDTH, SMALLEST_HEIGHT = 20, 5


class BottomLine:
    """Excludes the last row of a terminal from scrolling.

    Other output needs no change: it goes to the cursor, in the rows above.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._size: os.terminal_size | None = None
        self._text = ""

    def show(self, text: str) -> None:
        """Draw the line, if it or the terminal's size has changed."""
        try:
            size = os.get_terminal_size(self._stream)
        except OSError:
            return
        if size.columns < SMALLEST_WIDTH or size.lines < SMALLEST_HEIGHT:
            self.hide()
            return
        if (size, text) == (self._size, self._text):
            return
        begin = "" if size == self._size else self._leaving(size) + _entering(size)
        self._size, self._text = size, text
        # In the last column the cursor may be in the pending-wrap state.
        cut = set_cell_size(text, size.columns - 1)
        styled = f"\x1b[7m{cut}\x1b[0m" if streams.has_colour(self._stream) else cut.rstrip()
        streams.write_text(self._stream, f"{begin}\x1b7\x1b[{size.lines};1H\x1b[0m\x1b[K{styled}\x1b8")

    def hide(self) -> None:
        """Clear and release the row."""
        if self._size is not None:
            streams.write_text(self._stream, self._leaving(self._size))
            self._size = None

    def _leaving(self, size: os.terminal_size) -> str:
        """Restore full scrolling and clear the row, which is gone if the terminal has shrunk."""
        if self._size is None:
            return ""
        row = min(self._size.lines, size.lines)
        return f"\x1b7\x1b[r\x1b[{row};1H\x1b[0m\x1b[2K\x1b8"


def _entering(size: os.terminal_size) -> str:
    # Ensure a row below the cursor: down, which scrolls if there is none, then up. Setting the scrolling region
    # moves the cursor, so its position is saved.
    return f"\x1bD\x1b[A\x1b7\x1b[1;{size.lines - 1}r\x1b8"
