"""Plain tables: aligned rows of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = 2
NOTHING = "-"
# The status of a check, as tables show it.
STATUS_WORDS = {"ok": "ok", "warn": "warn", "fail": "FAIL", "unknown": "?"}


def plain_rows(rows: Sequence[dict[str, str]]) -> str:
    """Format rows with every column and no empty cell, so that a script can rely on their position."""
    lines = [list(rows[0]), *([value or NOTHING for value in row.values()] for row in rows)]
    widths = [max(_width(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "".join((" " * GAP).join(map(_padded, line, widths)).rstrip() + "\n" for line in lines)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Return the width of a text on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - most texts need no table of widths

    return cell_len(text)
