"""The table of jobs on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from remote_tool.cli import streams
from remote_tool.cli.tables import GAP
from remote_tool.jobs.job import Job, JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

STYLES = {
    JobState.STARTING: "cyan",
    JobState.RUNNING: "green",
    JobState.SUCCEEDED: "",
    JobState.FAILED: "bold red",
    JobState.KILLED: "yellow",
    JobState.LOST: "red",
    JobState.UNREACHABLE: "magenta",
}
# What these columns are cut to when a terminal is narrow; the others keep their width, the command takes the rest.
NARROW = {"SERVER": 12, "TAGS": 8}
LEAST_COMMAND = 30


def draw(jobs: Sequence[Job], rows: Sequence[dict[str, str]], descriptor: int) -> None:
    """Draw jobs, one row each."""
    console = Console(stderr=descriptor == streams.ERR, highlight=False, markup=False, emoji=False)
    console.print(_table(jobs, rows, console.width))


def _table(jobs: Sequence[Job], rows: Sequence[dict[str, str]], room: int) -> Table:
    """Columns that say nothing are left out; a reason stands under its command."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", expand=True)
    widths = {
        name: max(cell_len(text) for text in (name, *(row[name] for row in rows)))
        for name in rows[0]
        if name not in {"REASON", "COMMAND"} and any(row[name] for row in rows)
    }
    if sum(widths.values()) + GAP * len(widths) + LEAST_COMMAND > room:
        widths = {name: min(width, NARROW.get(name, width)) for name, width in widths.items()}
    for name, width in widths.items():
        right = name in {"KEY", "AGE"}
        table.add_column(name, width=width, no_wrap=True, overflow="ellipsis", justify="right" if right else "left")
    table.add_column("COMMAND", ratio=1, no_wrap=True, overflow="ellipsis")
    for job, row in zip(jobs, rows, strict=True):
        table.add_row(*(_cell(job, name, row) for name in (*widths, "COMMAND")))
    return table


def _cell(job: Job, name: str, row: dict[str, str]) -> RenderableType:
    if name == "STATE":
        return Text(row[name], style=STYLES[job.state])
    if name == "COMMAND" and row["REASON"]:
        reason = Text(row["REASON"], style="dim italic", overflow="fold", no_wrap=False)
        return Group(Text(row[name], no_wrap=True, overflow="ellipsis"), reason)
    return Text(row[name])
