"""Tables: readable at 80 columns on a terminal, plain aligned rows in a pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console as RichConsole
from rich.table import Table
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
# Wide enough that no row of a pipe is ever folded.
PIPE_WIDTH = 100_000


def print_jobs(jobs: Sequence[Job]) -> None:
    """Print jobs, one row each, to stdout."""
    console = _standard_output()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("KEY", "SERVER", "STATE", "EXIT", "AGE", "TAGS"):
        table.add_column(column, no_wrap=True, justify="right" if column in {"KEY", "AGE"} else "left")
    table.add_column("COMMAND", no_wrap=True, overflow="ellipsis", ratio=1 if console.is_terminal else None)
    for job in jobs:
        table.add_row(
            str(job.key),
            one_line(job.server),
            Text(job.state.value, style=STYLES[job.state]),
            _exit(job),
            readable_age(time.time() - (job.started_at or job.created_at)),
            one_line(",".join(job.tags)),
            Text(_what(job)),
        )
    console.print(table)


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
    return f"{short_command(job)}  ({one_line(job.reason)})" if job.reason else short_command(job)


def _exit(job: Job) -> str:
    return job.signal or ("" if job.exit_code is None else str(job.exit_code))


def _standard_output() -> RichConsole:
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return RichConsole(highlight=False, markup=False, emoji=False, width=width)
