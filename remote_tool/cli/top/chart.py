"""Sparklines and a chart of values over steps, as text.

A seam: it knows numbers, and nothing of servers and jobs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
LABEL_WIDTH = 9


def sparkline(values: Sequence[float], width: int, *, low: float | None = None, high: float | None = None) -> str:
    """Return the last values as bars of different heights, between the given bounds or the bounds of the values."""
    shown = [value for value in values[-width:] if math.isfinite(value)]
    if not shown:
        return ""
    least = min(shown) if low is None else low
    most = max(shown) if high is None else high
    span = (most - least) or 1.0
    return "".join(BARS[round(min(1.0, max(0.0, (value - least) / span)) * (len(BARS) - 1))] for value in shown)


def chart(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Return lines that draw values over steps, with the bounds of both; nothing for less than two finite points."""
    finite = [point for point in points if math.isfinite(point[1])]
    columns = width - LABEL_WIDTH - 1
    if len({step for step, _ in finite}) < 2 or columns < len(BARS):  # noqa: PLR2004 - a line needs two ends
        return []
    first, last = min(step for step, _ in finite), max(step for step, _ in finite)
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    means = _column_means(finite, columns, first, last)
    rows = [[" "] * columns for _ in range(height)]
    last_seen = low
    for column, mean in enumerate(means):
        # Between two samples, the value is drawn as it was last seen.
        last_seen = last_seen if mean is None else mean
        _draw(rows, column, (last_seen - low) / ((high - low) or 1.0))
    labels = {0: _short(high), height - 1: _short(low)}
    lines = [f"{labels.get(row, ''):>{LABEL_WIDTH}} {''.join(cells)}".rstrip() for row, cells in enumerate(rows)]
    begin, end = f"{first:g}", f"{last:g}"
    return [*lines, f"{'step':>{LABEL_WIDTH}} {begin}{end.rjust(columns - len(begin))}"]


def _column_means(points: Sequence[tuple[float, float]], columns: int, first: float, last: float) -> list[float | None]:
    sums = [(0.0, 0)] * columns
    for step, value in points:
        column = round((step - first) / (last - first) * (columns - 1))
        total, count = sums[column]
        sums[column] = total + value, count + 1
    return [total / count if count else None for total, count in sums]


def _draw(rows: list[list[str]], column: int, share: float) -> None:
    """Draw one point as a bar."""
    full, part = divmod(round(share * (len(rows) * len(BARS) - 1)), len(BARS))
    for row in range(full):
        rows[len(rows) - 1 - row][column] = BARS[-1]
    rows[len(rows) - 1 - full][column] = BARS[part]


def _short(value: float) -> str:
    return f"{value:.4g}"[:LABEL_WIDTH]
