"""Tables: readable at 80 columns on a terminal, plain aligned rows in a pipe."""

from __future__ import annotations

import time
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from remote_tool.cli import streams
from remote_tool.cli.plain import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.strays import Stray

GAP = 2
NOTHING = "-"
LONGEST_COMMAND = 500
MINUTE, HOUR, DAY = 60, 3600, 86400
KILOBYTE, MEGABYTE, GIGABYTE = 1024, 1024**2, 1024**3
SHORT_ID = 15
# What the script of an MPI launch begins with.
MPI_MARK = "# mpiexec"


def print_jobs(jobs: Sequence[Job], descriptor: int = streams.OUT) -> None:
    """Print jobs, one row each."""
    now = time.time()
    rows = [_row(job, now) for job in jobs]
    if streams.is_terminal(descriptor):
        from remote_tool.cli.drawn_table import draw  # noqa: PLC0415 - in a pipe Rich need not load

        draw(jobs, rows, descriptor)
    else:
        streams.write_text(descriptor, plain_rows(rows))


def print_strays(strays: Sequence[Stray], descriptor: int = streams.OUT) -> None:
    """Print strays, one row each, as wide as the terminal is."""
    text = plain_rows([_stray_row(stray) for stray in strays])
    if streams.is_terminal(descriptor):
        width = get_terminal_size().columns
        text = "".join(line[:width] + "\n" for line in text.splitlines())
    streams.write_text(descriptor, text)


def readable_size(size: int) -> str:
    """3200000000 -> 3.0G."""
    for unit, bytes_of_unit in (("G", GIGABYTE), ("M", MEGABYTE)):
        if size >= bytes_of_unit:
            return f"{size / bytes_of_unit:.1f}{unit}"
    return f"{size // KILOBYTE}K"


def _stray_row(stray: Stray) -> dict[str, str]:
    return {
        "SERVER": one_line(stray.server),
        "PID": str(stray.pid),
        "JOB": str(stray.key or one_line(stray.job_id)[:SHORT_ID]),
        "STATE": one_line(stray.state),
        "AGE": readable_age(stray.age),
        "MEMORY": readable_size(stray.memory),
        "GPU": "" if stray.gpu_memory is None else readable_size(stray.gpu_memory),
        "COMMAND": one_line(stray.command)[:LONGEST_COMMAND],
    }


def short_command(job: Job) -> str:
    """Return what the user gave; the words that a launch puts before it say little."""
    if job.launch_id and job.command.startswith(MPI_MARK):
        return one_line(job.command.partition("\n")[0].removeprefix("# "))[:LONGEST_COMMAND]
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


def plain_rows(rows: Sequence[dict[str, str]]) -> str:
    """Every column is there and none is empty, so that a script can count on its place; the command comes last."""
    lines = [list(rows[0]), *([value or NOTHING for value in row.values()] for row in rows)]
    widths = [max(_width(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "".join((" " * GAP).join(map(_padded, line, widths)).rstrip() + "\n" for line in lines)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """How many columns a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - most texts need no table of widths

    return cell_len(text)
