"""job-show: collect all information about one job, from its server and from this machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, RemoteToolError, UsageError
from remote_tool.jobs.artifacts import ArtifactFolder
from remote_tool.jobs.job import Job, JobState
from remote_tool.jobs.logs import LogFolder
from remote_tool.workflows.artifacts.listing import list_files
from remote_tool.workflows.jobs.failures import RankFailure, first_failure
from remote_tool.workflows.jobs.listing import list_jobs
from remote_tool.workflows.jobs.log_streams import fetch_logs
from remote_tool.workflows.selection import JobsAnswer, JobSelection, find_job
from remote_tool.workflows.start.copies import ask_for_copies

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from remote_tool.workflows.context import Context

_FAILED = {JobState.FAILED, JobState.LOST}


@dataclass(frozen=True)
class JobFile:
    """An artifact of a job.

    Attributes:
        name: Relative to the project.
        size: In bytes; of the local file, if there is one.
        is_here: Whether it has been pulled.
    """

    name: str
    size: int
    is_here: bool


@dataclass(frozen=True, kw_only=True)
class JobDetails(JobsAnswer):
    """All information about one job.

    Attributes:
        job: The job.
        related: The other jobs of its launch, the jobs that it waits for, and the job that it repeats.
        folder: Its local folder, with its output.
        remote_folder: Its folder on the server, relative to the home folder; absolute on this machine.
        runs_in: Its working folder on the server, relative to the home folder; absolute on this machine.
        copy_is_kept: Whether its copy of the project is on the server; None: unknown, or it runs in no copy.
        changes: The local file with the changes that were not committed; None if there were none.
        failure: The first error of the job, or of its launch; None without one.
        output: The local size of each stream of its output.
        artifacts_folder: The local folder of its artifacts.
        artifacts: Its artifacts, here and on the server.
        unknown: The reason for each part that is unknown: ``copy``, ``artifacts``.
    """

    job: Job
    related: tuple[Job, ...]
    folder: Path
    remote_folder: str
    runs_in: str
    copy_is_kept: bool | None
    changes: Path | None
    failure: RankFailure | None
    output: Mapping[str, int]
    artifacts_folder: Path
    artifacts: tuple[JobFile, ...]
    unknown: Mapping[str, str]


async def show_job(context: Context, word: str) -> JobDetails:
    """Return all information about a job, given by key or id; parts that its server does not tell are unknown.

    Raises:
        UsageError: There is no such job.
    """
    answer = await _ask_server(context, word)
    (job,) = answer.jobs
    nodes = _nodes(context, job)
    if others := _nodes_to_ask(context, job, nodes):
        more = await list_jobs(context, JobSelection(others, stopped=True, hidden=True))
        answer = replace(answer, errors={**more.errors, **answer.errors})
        nodes = _nodes(context, job)
    problem = f"it has been removed from {job.server}" if job.cleaned else str(answer.errors.get(job.server, ""))
    if job.state in _FAILED and not problem:
        # The first error of a launch may be in the output of another node.
        pulled = await fetch_logs(context, nodes)
        problem = str(pulled.get(job.server, ""))
        job = context.registry.find([job.id]).get(job.id, job)
    local, remote = context.config.local, context.config.remote_on(job.server)
    unknown: dict[str, str] = {}
    changes = local.changes(job.id)
    project = f"{remote.copies}/{job.copy}" if job.copy else remote.project
    return JobDetails(
        jobs=(job,),
        errors=answer.errors,
        bad=answer.bad,
        answered=answer.answered,
        job=job,
        related=_related(context, job, nodes),
        folder=local.job(job.id),
        remote_folder=f"{remote.jobs}/{job.id}",
        runs_in=f"{project}/{job.workdir}" if job.workdir else project,
        copy_is_kept=await _has_copy(context, job, problem, unknown),
        changes=changes if changes.is_file() else None,
        failure=_first_error(context, job, nodes),
        output=LogFolder(context.registry.folder / job.id).sizes(),
        artifacts_folder=local.artifacts(job.id),
        artifacts=await _artifacts(context, job, problem, unknown),
        unknown=unknown,
    )


async def _ask_server(context: Context, word: str) -> JobsAnswer:
    """Ask the server of a job about it; ask all servers if the job is unknown here."""
    known = context.registry.load()[0]
    with suppress(UsageError):
        job = find_job(known, word)
        if job.server not in context.config.servers:
            problem = JobError(f"{job.server} is not in the configuration", server=job.server)
            return JobsAnswer((job,), {job.server: problem})
        word = job.id
    return await list_jobs(context, JobSelection((word,), stopped=True, hidden=True))


def _nodes(context: Context, job: Job) -> list[Job]:
    """Return all nodes of a job's launch, by rank; only the job itself if it has none, as in a sweep or a fan-out."""
    known = [each if each.id != job.id else job for each in context.registry.load()[0]] if job.launch_id else []
    nodes = [each for each in known if each.launch_id == job.launch_id]
    is_launch = any(each.launch_options for each in nodes)
    return sorted(nodes, key=lambda each: each.node_rank or 0) if is_launch else [job]


def _nodes_to_ask(context: Context, job: Job, nodes: list[Job]) -> tuple[str, ...]:
    """Return the ids of the other nodes that have not ended as far as is known here: one may have failed first."""
    others = [each for each in nodes if each.id != job.id and not each.state.is_final]
    return tuple(each.id for each in others if each.server in context.config.servers)


def _first_error(context: Context, job: Job, nodes: list[Job]) -> RankFailure | None:
    """Return the first error of a failed job or of its launch; for a single node, its last line of output."""
    if job.state not in _FAILED:
        return None
    failure = first_failure(nodes, context.registry.folder)
    lines = failure.traceback.strip().splitlines() if failure is not None else []
    return replace(failure, message=lines[-1]) if failure is not None and lines and len(nodes) == 1 else failure


def _related(context: Context, job: Job, nodes: list[Job]) -> tuple[Job, ...]:
    named = context.registry.find([*job.after, *([job.rerun_of] if job.rerun_of else [])])
    others = [each for each in nodes if each.id != job.id]
    return tuple({each.id: each for each in (*others, *named.values())}.values())


async def _has_copy(context: Context, job: Job, problem: str, unknown: dict[str, str]) -> bool | None:
    if not job.copy or problem:
        if job.copy:
            unknown["copy"] = problem
        return None
    found = await ask_for_copies(context, {job.server: job.copy})
    if found.errors:
        unknown["copy"] = str(found.errors[job.server])
    return found.values.get(job.server)


async def _artifacts(context: Context, job: Job, problem: str, unknown: dict[str, str]) -> tuple[JobFile, ...]:
    here = ArtifactFolder.at(context.config.local.artifacts(job.id)).sizes()
    there: dict[str, int] = {}
    if job.artifacts and not job.artifacts_complete and job.started_at is not None:
        try:
            if problem:
                raise JobError(problem)
            listing = (await list_files(context, job.server, {job.id: job.artifacts}))[job.id]
            there = {file.path: file.stamp.size for file in listing.files}
            problem = listing.error
        except RemoteToolError as error:
            problem = str(error)
        if problem:
            unknown["artifacts"] = problem
    return tuple(JobFile(name, here.get(name, there.get(name, 0)), name in here) for name in sorted({*here, *there}))
