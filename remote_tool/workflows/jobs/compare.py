"""Compare two jobs: how they were started, and how they ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.launchers.launch_options import read_options
from remote_tool.protocol.job_fields import JOB_FIELDS, REQUEST
from remote_tool.workflows.jobs.code_diff import CodeDiff, diff_code
from remote_tool.workflows.jobs.listing import list_jobs
from remote_tool.workflows.selection import JobsAnswer, JobSelection, find_job

if TYPE_CHECKING:
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context


@dataclass(frozen=True)
class Difference:
    """A field in which two jobs differ.

    Attributes:
        field: Its name; ``values.NAME`` for a value in their output.
        values: Of the first and of the second job.
    """

    field: str
    values: tuple[Any, Any]


@dataclass(frozen=True)
class JobDiff(JobsAnswer):
    """Two jobs, and what differs between them, also in their code."""

    differences: tuple[Difference, ...] = ()
    code: CodeDiff = field(default_factory=CodeDiff)


# Ids, keys, moments, and what a launch says in its options always differ; the command and artifacts are described.
_NOT_COMPARED = {
    *("id", "launch_id", "node_rank", "rank_offset", "launch_options", "created_at", "rerun_of"),
    *("command", "artifacts", "any_of", "slots"),
}
_SETTINGS = tuple(each.name for each in JOB_FIELDS if each.origin == REQUEST and each.name not in _NOT_COMPARED)
_RESULTS = ("state", "exit_code", "signal", "reason")


async def diff_jobs(context: Context, first: str, second: str) -> JobDiff:
    """Compare two jobs by key or id; the servers are asked only about those that have not ended.

    Raises:
        UsageError: There is no such job.
    """
    jobs = context.registry.load()[0]
    pair = [find_job(jobs, word) for word in (first, second)]
    ids = tuple(job.id for job in pair if not job.state.is_final)
    answer = JobsAnswer(())
    if ids:
        answer = await list_jobs(context, JobSelection(ids, stopped=True, hidden=True))
    now = {job.id: job for job in answer.jobs}
    one, other = (now.get(job.id, job) for job in pair)
    return JobDiff(
        (one, other),
        answer.errors,
        answered=answer.answered,
        differences=compare_jobs(one, other, time.time()),
        code=await diff_code(context, one, other),
    )


def compare_jobs(first: Job, second: Job, now: float) -> tuple[Difference, ...]:
    """Return the differences of two jobs, settings first."""
    one, other = _described(first, now), _described(second, now)
    return tuple(
        Difference(name, (one.get(name), other.get(name)))
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    )


def _described(job: Job, now: float) -> dict[str, Any]:
    duration = job.duration(now)
    return {
        **_asked_for(job),
        **{name.replace("git_", "git."): _plain(getattr(job, name)) for name in _SETTINGS},
        "artifacts": [pattern.glob for pattern in job.artifacts] or None,
        **{name: _plain(getattr(job, name)) for name in _RESULTS},
        "duration": None if duration is None else round(duration),
        **{f"values.{name}": value for name, _, value in (each.partition("=") for each in job.status_values)},
    }


def _asked_for(job: Job) -> dict[str, Any]:
    """Return the command as it was given; that of a launch has the ports and ids of its nodes besides."""
    try:
        options = read_options(job.launch_options) if job.launch_options else None
    except JobError:
        options = None
    if options is None:
        _, found, command = job.command.partition(" --redirects 3 ")
        return {"command": command if job.launch_id and found else job.command}
    return {"command": options.command, **options.of_request, "nodes": options.nodes}


def _plain(value: object) -> object:
    """Return a value as JSON has it; None for one that was not set."""
    if isinstance(value, tuple):
        return list(value) or None
    return None if value == "" else value
