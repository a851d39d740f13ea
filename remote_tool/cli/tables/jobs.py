"""The table of jobs: readable at 80 columns on a terminal, plain aligned rows in a pipe."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.plain import plain_rows
from remote_tool.jobs.job import JUPYTER_MARK, JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job

# The first line of the script of an MPI launch.
LAUNCH_MARKS = ("# mpiexec", "# ray ")
LONGEST_COMMAND = 500
MINUTE, HOUR, DAY = 60, 3600, 86400
# GPU- and eight digits.
SHORT_UUID = 12


def print_jobs(
    jobs: Sequence[Job],
    descriptor: int = streams.OUT,
    *,
    errors: Mapping[str, RemoteToolError] | None = None,
    wide: bool = False,
) -> None:
    """Print jobs, one row each; a reason does not repeat one of the errors, which are shown too.

    With ``wide``, rows have more columns, and are not cut at the width of a terminal.
    """
    is_terminal = streams.is_terminal(descriptor)
    show_start = readable_moment if is_terminal else as_minute
    rows = [_row(job, show_start, errors or {}) for job in jobs]
    if len({job.started_by for job in jobs if job.started_by}) < 2:  # noqa: PLR2004 - nobody to tell apart
        for row in rows:
            del row["WHO"]
    # A script relies on the positions of the other columns.
    for name in ("NAME", "QUEUED", "GPUS", "VALUES", "NOTE"):
        if not any(row[name] for row in rows):
            for row in rows:
                del row[name]
    if wide:
        rows = [
            {"KEY": row["KEY"], "ID": job.id, "PID": str(job.pid or ""), **row}
            for job, row in zip(jobs, rows, strict=True)
        ]
    if is_terminal and not wide:
        from remote_tool.cli.tables.jobs_rich import draw  # noqa: PLC0415 - in a pipe Rich need not load

        draw(jobs, rows, descriptor)
    else:
        streams.write_text(descriptor, plain_rows(rows))


def short_command(job: Job) -> str:
    """Return the command as the user gave it, without the words that a launch adds."""
    if (job.launch_id and job.command.startswith(LAUNCH_MARKS)) or job.command.startswith(JUPYTER_MARK):
        return one_line(job.command.partition("\n")[0].removeprefix("# "))[:LONGEST_COMMAND]
    _, separator, command = job.command.partition(" --redirects 3 ")
    return one_line(f"torchrun … {command}" if job.launch_id and separator else job.command)[:LONGEST_COMMAND]


def how_it_ended(job: Job) -> str:
    """Return ``succeeded``, ``failed, exit code 3``, or ``killed, SIGTERM``."""
    code = f"exit code {job.exit_code}" if job.exit_code else ""
    signal = job.signal if job.signal and job.signal not in job.reason else ""
    return ", ".join(one_line(part) for part in (job.state.value, signal, code, job.reason) if part)


def readable_moment(moment: float) -> str:
    """Return 14:03 for today, else Nov 20 14:03, or 2025-11-20 for another year."""
    now, then = time.localtime(), time.localtime(moment)
    if then.tm_year != now.tm_year:
        return time.strftime("%Y-%m-%d", then)
    return time.strftime("%H:%M" if then.tm_yday == now.tm_yday else "%b %d %H:%M", then)


def as_minute(moment: float) -> str:
    """Return 2026-11-20T14:03: one word, which sorts by time."""
    return time.strftime("%Y-%m-%dT%H:%M", time.localtime(moment))


def readable_duration(seconds: float) -> str:
    """Return 1m35s for 95 seconds, and 2h1m for 7300."""
    seconds = max(0, int(seconds))
    for unit, size, smaller, part in (("d", DAY, "h", HOUR), ("h", HOUR, "m", MINUTE), ("m", MINUTE, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // part}{smaller}"
    return f"{seconds}s"


def _reason(job: Job, errors: Mapping[str, RemoteToolError]) -> str:
    error = errors.get(job.server)
    return one_line(job.reason if error is None else job.reason.removesuffix(f"; {error}"))


def _gpus(job: Job) -> Sequence[str]:
    """Return the GPUs of a job; for those that its server has reserved, the beginnings of their UUIDs."""
    if job.gpu_count is None:
        return job.gpus or ()
    return [uuid[:SHORT_UUID] for uuid in job.leased_gpus or ()]


def _row(job: Job, show_start: Callable[[float], str], errors: Mapping[str, RemoteToolError]) -> dict[str, str]:
    duration = job.duration(time.time())
    may_have_waited = job.gpu_count is not None or bool(job.after) or job.state is JobState.QUEUED
    began = job.started_at if may_have_waited else job.started_at or job.created_at
    return {
        "KEY": str(job.key),
        "SERVER": one_line(job.server),
        "STATE": job.state.value,
        "EXIT": one_line(job.signal or "") or ("" if job.exit_code is None else str(job.exit_code)),
        "NAME": one_line(job.name),
        "LAUNCH": f"{one_line(job.launch_id)[-4:]}/{job.node_rank}" if job.launch_id else "",
        "STARTED": "" if began is None else show_start(began),
        "QUEUED": show_start(job.created_at) if job.state is JobState.QUEUED else "",
        "DURATION": "" if duration is None else readable_duration(duration),
        "WHO": one_line(job.started_by),
        "TAGS": one_line(",".join(job.tags)),
        "GPUS": one_line(",".join(_gpus(job))),
        "VALUES": one_line(",".join(job.status_values)),
        "NOTE": one_line(job.note),
        "REASON": _reason(job, errors),
        "COMMAND": short_command(job),
    }
