"""The bandwidth between servers, as a matrix of at most 80 columns, with remarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.cli.output.sanitize import one_line
from remote_tool.workflows.servers.bandwidth import readable_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.workflows.servers.bandwidth import BandwidthAnswer, MeasuredLink

WIDTH = 80
GAP = 2
LONGEST_NAME = 16
CORNER = "Gbit/s"
ITSELF, UNKNOWN = "-", "?"
SLOW, GOOD_FOR_ALL = 10.0, 25.0


def matrix(answer: BandwidthAnswer) -> str:
    """Return the matrix: from the row's server to the column's; columns that do not fit follow below."""
    rates = {(link.source, link.target): link.gbit for link in answer.links}
    names = [_short(name) for name in answer.servers]
    head = max(len(CORNER), *map(len, names))
    width = max(5, *map(len, names))
    at_once = max(1, (WIDTH - head) // (width + GAP))
    blocks = [answer.servers[start : start + at_once] for start in range(0, len(answer.servers), at_once)]
    return "\n\n".join(_block(answer.servers, columns, rates, (head, width)) for columns in blocks)


def remarks(answer: BandwidthAnswer) -> list[str]:
    """Return which link is the slowest, with a warning if it is slow."""
    slowest = answer.slowest
    if slowest is None:
        return []
    name = f"{slowest.source} to {slowest.target}"
    lines = [f"slowest: {name}, {_rate(slowest)} over {slowest.interface or 'an unknown interface'}"]
    assert slowest.gbit is not None
    if slowest.gbit < SLOW:
        lines.append(f"warning: below {SLOW:g} Gbit/s; training over {name} waits for the network")
    elif slowest.gbit < GOOD_FOR_ALL:
        lines.append(f"warning: below {GOOD_FOR_ALL:g} Gbit/s; training on all servers is limited by {name}")
    return lines


def _rate(link: MeasuredLink) -> str:
    assert link.gbit is not None
    return f"{readable_rate(link.gbit)} Gbit/s"


def _block(
    rows: Sequence[str],
    columns: Sequence[str],
    rates: dict[tuple[str, str], float | None],
    widths: tuple[int, int],
) -> str:
    head, width = widths
    lines = [[CORNER, *map(_short, columns)]]
    lines += [[_short(row), *(_cell(row, column, rates) for column in columns)] for row in rows]
    return "\n".join(line[0].ljust(head) + "".join(text.rjust(width + GAP) for text in line[1:]) for line in lines)


def _cell(source: str, target: str, rates: dict[tuple[str, str], float | None]) -> str:
    if source == target:
        return ITSELF
    rate = rates.get((source, target))
    return UNKNOWN if rate is None else readable_rate(rate)


def _short(name: str) -> str:
    shown = one_line(name)
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"
