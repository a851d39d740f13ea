"""Tables: readable at 80 columns on a terminal, plain aligned rows in a pipe."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.text import Text

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
MINUTE, HOUR, DAY = 60, 3600, 86400
COLUMNS = ("KEY", "SERVER", "STATE", "EXIT", "AGE", "TAGS", "COMMAND")
RIGHT = {COLUMNS.index("KEY"), COLUMNS.index("AGE")}


def print_jobs(jobs: Sequence[Job]) -> None:
    """Print jobs, one row each, to stdout; on a terminal the command is cut to what fits."""
    rows = [COLUMNS, *(_row(job) for job in jobs)]
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    console = RichConsole(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for row, job in zip(rows, [None, *jobs], strict=True):
        line = Text()
        for column, (text, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - cell_len(text))
            line.append(padding + text if column in RIGHT else text + padding, _style(column, job))
            line.append("  ")
        line.rstrip()
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line)


def _row(job: Job) -> tuple[str, ...]:
    return (
        str(job.key),
        one_line(job.server),
        job.state.value,
        _exit(job),
        readable_age(time.time() - (job.started_at or job.created_at)),
        one_line(",".join(job.tags)),
        _what(job),
    )


def _style(column: int, job: Job | None) -> str:
    if job is None:
        return "bold"
    return STYLES[job.state] if COLUMNS[column] == "STATE" else ""


def readable_age(seconds: float) -> str:
    """95 -> 1m, 7300 -> 2h."""
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE)):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def short_command(job: Job) -> str:
    """Return what the user gave; the words that a launch puts before it say little."""
    _, found, command = job.command.partition(" --redirects 3 ")
    return one_line(f"torchrun … {command}" if job.launch_id and found else job.command)


def _what(job: Job) -> str:
    # That a killed job was killed is said by its state.
    said = job.reason and job.state is not JobState.KILLED
    return f"{short_command(job)}  ({one_line(job.reason)})" if said else short_command(job)


def _exit(job: Job) -> str:
    return job.signal or ("" if job.exit_code is None else str(job.exit_code))
