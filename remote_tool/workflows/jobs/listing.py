"""job-list and job-rsync: bring the records up to date, fetch output and artifacts, and select jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.jobs.records import JOB_ID, seem_unreachable
from remote_tool.workflows.agent_client import NotPreparedError
from remote_tool.workflows.jobs.log_streams import fetch_logs
from remote_tool.workflows.selection import JobsAnswer, JobSelection, choose_jobs, choose_servers
from remote_tool.workflows.status.refresh import query_and_record

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context


async def list_jobs(context: Context, selection: JobSelection, *, logs: bool = False) -> JobsAnswer:
    """Return the selected jobs with their current state; ``logs`` also pulls logs and artifacts."""
    servers = servers_of_jobs(context, selection, logs=logs)
    errors = await refresh(context, servers)
    pulled: dict[str, RemoteToolError] = {}
    if logs:
        reached = replace(selection, servers=tuple(name for name in servers if name not in errors))
        chosen = choose_jobs(load_matching(context, selection)[0], reached) if reached.servers else []
        errors |= await fetch_logs(context, chosen)
        pulled = await fetch_artifacts(context, [job for job in chosen if job.server not in errors])
    answer = recorded_jobs(context, selection, errors)
    # A failed pull says nothing about the running jobs.
    return replace(answer, errors={**pulled, **answer.errors}, answered=servers)


def servers_of_jobs(context: Context, selection: JobSelection, *, logs: bool = False) -> tuple[str, ...]:
    """Return the servers to ask: those of named jobs, or the named ones, or the usual ones and some of earlier lists.

    Servers of earlier host lists may no longer exist. They are asked if a job may still run there, and with ``logs``,
    if logs are incomplete here.
    """
    config = context.config
    named = {job.server for job in named_jobs(context, selection)}
    if named and not selection.servers and named <= config.servers.keys():
        return (*sorted(named),)
    earlier = [name for name, server in config.servers.items() if server.is_listed and name not in config.listed]
    if selection.servers or not earlier:
        return choose_servers(config, selection.servers)
    jobs, _ = load_matching(context, selection)
    with_news = {job.server for job in jobs if not job.state.is_finished or (logs and not job.logs_complete)}
    return (*config.usual_servers, *(name for name in earlier if name in with_news))


def named_jobs(context: Context, selection: JobSelection) -> list[Job]:
    """Return the recorded jobs that a selection names by key or id; none if it has any other word.

    Keys are looked up among the jobs that have not ended, as reading all records takes longer than asking servers.
    """
    if not selection.jobs:
        return []
    known = {word: job for job in context.registry.load_unfinished()[0] for word in (job.id, str(job.key))}
    known.update(context.registry.find([word for word in selection.jobs if JOB_ID.fullmatch(word)]))
    return [known[word] for word in selection.jobs] if known.keys() >= {*selection.jobs} else []


async def pull_logs(context: Context, selection: JobSelection) -> JobsAnswer:
    """Pull new output of the selected jobs; without a selection, of all jobs."""
    return await list_jobs(context, replace(selection, running=True, stopped=True), logs=True)


async def fetch_artifacts(context: Context, jobs: Sequence[Job]) -> dict[str, RemoteToolError]:
    """Pull the requested artifacts of jobs; return the error of each server that failed."""
    incomplete = [job for job in jobs if job.artifacts and not job.artifacts_complete]
    if not incomplete:
        return {}
    from remote_tool.workflows.artifacts.pull import pull_artifacts  # noqa: PLC0415 - only if some are requested

    return dict((await pull_artifacts(context, incomplete)).errors)


def recorded_jobs(context: Context, selection: JobSelection, errors: Mapping[str, RemoteToolError]) -> JobsAnswer:
    """Return the selected jobs as recorded; the state of a job on an unreachable server says so."""
    jobs, bad = load_matching(context, selection)
    chosen = choose_jobs([_shown(job, errors.get(job.server)) for job in jobs], selection)
    return JobsAnswer(tuple(chosen), dict(errors), tuple(bad))


def load_matching(context: Context, selection: JobSelection) -> tuple[list[Job], list[str]]:
    """Return all recorded jobs that may match a selection, and a message for each unreadable record."""
    return context.registry.load() if selection.may_have_ended else context.registry.load_unfinished()


async def refresh(
    context: Context, servers: Sequence[str], *, stays: Collection[str] | None = None
) -> dict[str, RemoteToolError]:
    """Ask servers about their jobs in parallel, also those of other laptops; record changes, and return the errors.

    A job that waited when its server rebooted is put back into the queue, and a job for any server may be moved to
    another one. A command that removes or stops jobs gives their ids in ``stays``: these are not put back, and no job
    is moved.
    """
    found = await query_and_record(context, servers, stays=stays or ())
    if found.to_put_back:
        from remote_tool.workflows.start.put_back import put_back  # noqa: PLC0415 - seldom needed

        # Recorded last: if this is interrupted, the next command does the rest.
        await put_back(context, found.to_put_back)
        context.registry.update(found.to_put_back)
    reached = [server for server in servers if server not in found.errors]
    if found.movable and stays is None and len(reached) > 1:
        from remote_tool.workflows.start.move import move_waiting  # noqa: PLC0415 - seldom needed

        await move_waiting(context, found.movable, reached)
    return found.errors


def _shown(job: Job, error: RemoteToolError | None) -> Job:
    if error is None:
        return job
    return seem_unreachable(job, str(error) if isinstance(error, NotPreparedError) else "")
