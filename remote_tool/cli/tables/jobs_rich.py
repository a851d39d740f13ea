"""The table of jobs on a terminal.

It is a module of its own because it loads Rich, which a command in a pipe does without.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from remote_tool.cli.output import streams
from remote_tool.cli.tables.plain import GAP
from remote_tool.jobs.job import Job, JobState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    Row = dict[str, str]

STYLES = {
    JobState.STARTING: "cyan",
    JobState.QUEUED: "blue",
    JobState.RUNNING: "green",
    JobState.SUCCEEDED: "",
    JobState.FAILED: "bold red",
    JobState.KILLED: "yellow",
    JobState.LOST: "red",
    JobState.UNREACHABLE: "magenta",
}
RIGHT = {"KEY", "DURATION"}
# On a narrow terminal, first these columns are cut to these widths, then the others are dropped one by one.
NARROW = {"SERVER": 12, "WHO": 12, "TAGS": 8, "GPUS": 12, "NAME": 12, "VALUES": 22}
# A name and values that are dropped go to the line of the note.
DROPPED = ("VALUES", "LAUNCH", "DURATION", "TAGS", "GPUS", "NAME")
# Columns with lines of their own, or with the remaining width.
WITHOUT_WIDTH = {"NOTE", "REASON", "COMMAND"}
LEAST_COMMAND = 12


def draw(jobs: Sequence[Job], rows: Sequence[Row], descriptor: int) -> None:
    """Draw jobs, one row each, or a few lines each on a very narrow terminal."""
    console = Console(stderr=descriptor == streams.ERR, highlight=False, markup=False, emoji=False)
    widths = _widths(rows, console.width)
    if widths:
        header = [(Text(name, style="bold"), name) for name in (*widths, "COMMAND")]
        console.print(_line(header, widths, console.width))
    for reason, group in groupby(zip(jobs, rows, strict=True), key=lambda each: each[1]["REASON"]):
        keys = []
        for job, row in group:
            keys.append(row["KEY"])
            for line in _row(job, row, widths, console.width):
                console.print(line)
            if extra := [row[name] for name in ("NAME", "VALUES", "NOTE") if row.get(name) and name not in widths]:
                console.print(Padding(Text("  ".join(extra), style="italic"), (0, 0, 0, widths.get("KEY", 0) + GAP)))
        if reason:
            console.print(_explanation(reason, keys, widths.get("KEY", 0)))


def _widths(rows: Sequence[Row], total: int) -> dict[str, int]:
    """Return the widths of the columns before the command, without empty columns; empty if they do not fit."""
    widths = {
        name: max(cell_len(text) for text in (name, *(row[name] for row in rows)))
        for name in rows[0]
        if name not in WITHOUT_WIDTH and any(row[name] for row in rows)
    }
    if not _fits(widths, total):
        widths = {name: min(width, NARROW.get(name, width)) for name, width in widths.items()}
    for name in DROPPED:
        if not _fits(widths, total):
            widths.pop(name, None)
    return widths if _fits(widths, total) else {}


def _fits(widths: dict[str, int], total: int) -> bool:
    return sum(widths.values()) + GAP * len(widths) + LEAST_COMMAND <= total


def _row(job: Job, row: Row, widths: dict[str, int], total: int) -> Iterator[RenderableType]:
    cells = [(_cell(job, name, row), name) for name in (*widths, "COMMAND")]
    if widths:
        yield _line(cells, widths, total)
        return
    # Only the command is cut.
    head = [_cell(job, name, row) for name in ("KEY", "SERVER", "STATE", "EXIT") if row[name]]
    yield Text(" " * GAP).join(head)
    rest = [row["STARTED"], row["DURATION"], row.get("WHO", ""), row["LAUNCH"], row["TAGS"]]
    rest.append(f"GPUs {row['GPUS']}" if row.get("GPUS") else "")
    yield Padding(Text("  ".join(text for text in rest if text)), (0, 0, 0, GAP))
    yield Padding(Text(row["COMMAND"], no_wrap=True, overflow="ellipsis"), (0, 0, 0, GAP))


def _cell(job: Job, name: str, row: Row) -> Text:
    return Text(row[name], style=STYLES[job.state] if name == "STATE" else "bold" if name == "KEY" else "")


def _line(cells: Sequence[tuple[Text, str]], widths: dict[str, int], total: int) -> Text:
    """Return one line that fits the terminal; the command takes the remaining width."""
    command_width = total - sum(widths.values()) - GAP * len(widths)
    for text, name in cells:
        text.truncate(widths.get(name, command_width), overflow="ellipsis")
        missing = widths.get(name, 0) - text.cell_len
        if name in RIGHT:
            text.pad_left(missing)
        else:
            text.pad_right(missing)
    line = Text(" " * GAP).join(text for text, _ in cells)
    line.no_wrap = True
    return line


def _explanation(reason: str, keys: Sequence[str], indent: int) -> RenderableType:
    """Show the reason for the state of jobs, once for neighbors with the same reason."""
    prefix = "" if len(keys) == 1 else f"{_ranges([int(key) for key in keys])}: "
    return Padding(Text(prefix + reason, style="dim italic"), (0, 0, 0, indent + GAP))


def _ranges(keys: Sequence[int]) -> str:
    """Return ``31, 33, 40 to 44``: only three keys or more without a gap are a range."""
    runs = [[key for _, key in run] for _, run in groupby(enumerate(sorted(keys)), lambda each: each[1] - each[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)  # noqa: PLR2004
