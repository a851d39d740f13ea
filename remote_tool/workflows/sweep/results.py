"""sweep-show: the combinations of a sweep, with the states and values of their jobs."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from remote_tool.errors import UsageError
from remote_tool.jobs.artifacts import ArtifactFolder
from remote_tool.jobs.job import SWEEP_TAG, JobState, launch_name
from remote_tool.jobs.logs import LogFolder
from remote_tool.jobs.metrics import best_value, metric_pattern
from remote_tool.workflows.jobs.listing import list_jobs
from remote_tool.workflows.jobs.log_streams import fetch_logs
from remote_tool.workflows.selection import JobsAnswer, JobSelection
from remote_tool.workflows.sweep.records import SweepRecord, find_sweep
from remote_tool.workflows.sweep.sweep import jobs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from remote_tool.config.model import Config
    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

MODES = ("min", "max")
# The state of a combination without a job.
MISSING = "missing"
# The columns beside parameters and values.
NUMBER, STATE, SERVER, JOB, DURATION, BEST = "number", "state", "server", "job", "duration", "best"


@dataclass(frozen=True)
class SweepRow:
    """A combination, with the state and the values of its job.

    Attributes:
        number: From 0.
        parameters: Its values by name.
        job: The job that succeeded, else the last one; None if none was started, or its record was removed.
        is_done: It succeeded, also if the record of its job was removed.
        values: The last values in its output, by name.
        best: The best value of the metric in its output, as far as that is here; None without one.
    """

    number: int
    parameters: Mapping[str, str]
    job: Job | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    best: float | None = None
    is_done: bool = False

    @property
    def state(self) -> str:
        """Return the state of its job, also if that was removed."""
        if self.job is None:
            return JobState.SUCCEEDED.value if self.is_done else MISSING
        return self.job.state.value

    @property
    def is_started_by_resume(self) -> bool:
        """Return whether ``helper-sweep --resume`` starts it: it failed, is lost or was never started."""
        return self.state in {MISSING, JobState.FAILED, JobState.KILLED, JobState.LOST}

    @property
    def duration(self) -> float | None:
        """Return how long the command has run in seconds; None if it never began or this is unknown."""
        return None if self.job is None else self.job.duration(time.time())


@dataclass(frozen=True)
class SweepResults:
    """The results of a sweep.

    Attributes:
        launch_id: Shared by its jobs.
        command: With placeholders.
        metric: The name of the metric; empty without one.
        mode: Whether the smallest or the largest value is the best: ``min`` or ``max``.
        rows: One for each combination.
        errors: The error of each server that could not be asked.
        incomplete: The number of jobs whose output is not all here.
        shared: Files that several combinations wrote on one server, as far as they were fetched: the last one is there.
    """

    launch_id: str
    command: str
    metric: str
    mode: str
    rows: tuple[SweepRow, ...]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    incomplete: int = 0
    shared: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return its short name: the end of its id."""
        return launch_name(self.launch_id)

    @property
    def value_names(self) -> tuple[str, ...]:
        """Return the names of all last values."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.values))


async def results(
    context: Context, word: str = "", *, metric: str = "", mode: str = "min", sort: str = "", logs: bool = False
) -> SweepResults:
    """Return the results of a sweep, of the newest without a name; ``logs`` fetches output and artifacts first.

    The best value of a metric needs all output, so that is fetched with a metric too.

    Raises:
        UsageError: There is no such sweep, or no such column to sort by.
    """
    if mode not in MODES:
        raise UsageError(f"--mode must be min or max, found {mode!r:.40}")
    record = find_sweep(context.config.local.sweeps, word)
    pattern = metric_pattern(metric, context.config.status) if metric else None
    answer = await _ask(context, record, logs=logs)
    if metric and not logs:
        answer = await _with_output(context, answer)
    chosen = _latest(jobs_of(answer.jobs, record))

    def best_of(job: Job) -> float | None:
        return None if pattern is None else best_value(LogFolder(context.registry.folder / job.id), pattern, mode)

    rows = [
        SweepRow(number, parameters, job, _values_of(job), best_of(job))
        if (job := chosen.get(number))
        else SweepRow(number, parameters, is_done=number in record.done)
        for number, parameters in enumerate(record.request.made)
    ]
    return SweepResults(
        launch_id=record.launch_id,
        command=record.request.command,
        metric=metric,
        mode=mode,
        rows=tuple(sort_rows(rows, sort or (BEST if metric else NUMBER), record, mode)),
        errors=answer.errors,
        shared=_shared(context.config, chosen.values()),
        incomplete=sum(1 for job in chosen.values() if job.started_at is not None and not job.logs_complete),
    )


def _shared(config: Config, jobs: Iterable[Job]) -> tuple[str, ...]:
    counts = Counter(
        (job.server, name)
        for job in jobs
        if job.artifacts
        for name in ArtifactFolder.at(config.local.artifacts(job.id)).sizes()
    )
    return tuple(dict.fromkeys(name for (_, name), count in counts.items() if count > 1))


async def _ask(context: Context, record: SweepRecord, *, logs: bool) -> JobsAnswer:
    """Ask the servers that have jobs of a sweep."""
    jobs = jobs_of(context.registry.load()[0], record)
    servers = tuple(dict.fromkeys(job.server for job in jobs if job.server in context.config.servers))
    if not servers:
        return JobsAnswer(tuple(jobs))
    tag = f"{SWEEP_TAG}{launch_name(record.launch_id)}"
    answer = await list_jobs(context, JobSelection((), (tag,), servers, stopped=True, hidden=True), logs=logs)
    return replace(answer, jobs=(*answer.jobs, *(job for job in jobs if job.server not in servers)))


async def _with_output(context: Context, answer: JobsAnswer) -> JobsAnswer:
    """Fetch the output of jobs that have begun, from the servers that answer."""
    begun = [job for job in answer.jobs if job.started_at is not None and job.server not in answer.errors]
    errors = await fetch_logs(context, begun)
    now = context.registry.find([job.id for job in begun])
    return replace(answer, jobs=tuple(now.get(job.id, job) for job in answer.jobs), errors={**answer.errors, **errors})


def sort_rows(rows: Iterable[SweepRow], order: str, record: SweepRecord, mode: str = "min") -> list[SweepRow]:
    """Sort rows by a parameter, a value or another column; in reverse with ``-`` before it. Missing ones come last.

    Raises:
        UsageError: There is no such column.
    """
    rows = list(rows)
    column = order.removeprefix("-")
    names = (*record.request.made[0], NUMBER, STATE, SERVER, JOB, DURATION, BEST)
    values = dict.fromkeys(name for row in rows for name in row.values)
    if column not in {*names, *values}:
        raise UsageError(f"--sort {order!r:.60} is not a column", hint=f"--sort {', '.join((*names, *values))}")
    known = [(row, value) for row in rows if (value := _cell(row, column)) not in {None, ""}]
    is_reverse = order.startswith("-") != (column == BEST and mode == "max")
    known.sort(key=lambda pair: _as_key(pair[1]), reverse=is_reverse)
    missing = [row for row in rows if _cell(row, column) in {None, ""}]
    return [*(row for row, _ in known), *missing]


def _cell(row: SweepRow, column: str) -> Any:  # noqa: ANN401 - numbers and texts
    if column in row.parameters:
        return row.parameters[column]
    own: dict[str, Callable[[], Any]] = {
        NUMBER: lambda: row.number,
        STATE: lambda: None if row.job is None and not row.is_done else row.state,
        SERVER: lambda: row.job and row.job.server,
        JOB: lambda: row.job and row.job.key,
        DURATION: lambda: row.duration,
        BEST: lambda: row.best,
    }
    return own[column]() if column in own else row.values.get(column)


def _as_key(value: object) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by size, and before texts."""
    try:
        number = float(str(value).partition("/")[0].replace(",", ""))
    except ValueError:
        return True, 0.0, str(value)
    # A value that is not a number sorts as a text.
    return (False, number, "") if number == number else (True, 0.0, str(value))  # noqa: PLR0124


def _latest(jobs: Sequence[Job]) -> dict[int, Job]:
    """Return the job of each combination that counts: the one that succeeded, else the last one."""
    ordered = sorted(jobs, key=lambda job: (job.state is JobState.SUCCEEDED, job.may_run, job.created_at, job.key))
    return {job.node_rank or 0: job for job in ordered}


def _values_of(job: Job) -> dict[str, str]:
    return dict(each.split("=", 1) for each in job.status_values)
