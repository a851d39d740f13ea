"""Tables: readable at 80 columns on a terminal, plain aligned rows in a pipe."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from remote_tool.cli import streams
from remote_tool.cli.plain import one_line
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
GAP = 2
# What these columns are cut to when a terminal is narrow; the others keep their width, the command takes the rest.
NARROW = {"SERVER": 12, "TAGS": 8}
LEAST_COMMAND = 30
NOTHING = "-"
LONGEST_COMMAND = 500
MINUTE, HOUR, DAY = 60, 3600, 86400


def print_jobs(jobs: Sequence[Job], descriptor: int = streams.OUT) -> None:
    """Print jobs, one row each."""
    now = time.time()
    rows = [_row(job, now) for job in jobs]
    if streams.is_terminal(descriptor):
        console = RichConsole(stderr=descriptor == streams.ERR, highlight=False, markup=False, emoji=False)
        console.print(_table(jobs, rows, console.width))
    else:
        streams.write_text(descriptor, _plain_rows(rows))


def short_command(job: Job) -> str:
    """Return what the user gave; the words that a launch puts before it say little."""
    _, found, command = job.command.partition(" --redirects 3 ")
    return one_line(f"torchrun … {command}" if job.launch_id and found else job.command)[:LONGEST_COMMAND]


def readable_age(seconds: float) -> str:
    """95 -> 1m, 7300 -> 2h."""
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE)):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def how_it_ended(job: Job) -> str:
    """``succeeded``, ``failed, exit code 3``, ``killed, SIGTERM``."""
    code = f"exit code {job.exit_code}" if job.exit_code else ""
    signal = job.signal if job.signal and job.signal not in job.reason else ""
    return ", ".join(one_line(part) for part in (job.state.value, signal, code, job.reason) if part)


def _row(job: Job, now: float) -> dict[str, str]:
    return {
        "KEY": str(job.key),
        "SERVER": one_line(job.server),
        "STATE": job.state.value,
        "EXIT": one_line(job.signal or "") or ("" if job.exit_code is None else str(job.exit_code)),
        "LAUNCH": f"{one_line(job.launch_id)[-4:]}/{job.node_rank}" if job.launch_id else "",
        "AGE": readable_age(now - (job.started_at or job.created_at)),
        "TAGS": one_line(",".join(job.tags)),
        "REASON": one_line(job.reason),
        "COMMAND": short_command(job),
    }


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


def _plain_rows(rows: Sequence[dict[str, str]]) -> str:
    """Every column is there and none is empty, so that a script can count on its place; the command comes last."""
    lines = [list(rows[0]), *([value or NOTHING for value in row.values()] for row in rows)]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "".join((" " * GAP).join(map(_padded, line, widths)).rstrip() + "\n" for line in lines)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
