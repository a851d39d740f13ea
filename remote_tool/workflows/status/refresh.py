"""Ask every server about its jobs, and record the answers."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.jobs.job import Job, JobState
from remote_tool.jobs.records import (
    RemoteJob,
    become_cleaned,
    become_unreachable,
    merge,
    must_return_to_queue,
    vanish,
    why_missing,
)
from remote_tool.protocol.fingerprints import bucket_of
from remote_tool.protocol.job_fields import REQUEST_FIELDS
from remote_tool.protocol.limits import NEVER_ARRIVED
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import NotPreparedError, call_until_answered
from remote_tool.workflows.events import Notice
from remote_tool.workflows.home_groups import Groups
from remote_tool.workflows.status.link_news import LinkNews
from remote_tool.workflows.status.pending_stops import stop_as_requested
from remote_tool.workflows.status.query import StatusAnswer, ask_about_jobs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.context import Context

# A lost job may be found again, but checking one takes a server up to 5 ms, so only the newest are.
MOST_LOST = 100
# Limit per refresh: writing a record takes time.
MOST_NOTED = 500
# A start takes far less.
START_SECONDS = 600.0
# Late starts of 16 KiB each in one request; the next command gives up the others.
MOST_GIVEN_UP = 256


@dataclass(frozen=True)
class Refreshed:
    """The work that is left after the answers of servers were recorded.

    Attributes:
        errors: The servers that did not answer.
        to_put_back: Jobs that left a queue before they began; recorded as queued until somebody puts them back.
        movable: Ids of queued jobs that may be moved to another server.
    """

    errors: dict[str, RemoteToolError]
    to_put_back: Sequence[Job]
    movable: Collection[str]


async def query_and_record(context: Context, servers: Sequence[str], *, stays: Collection[str] = ()) -> Refreshed:
    """Query all servers in parallel, adopt jobs of other laptops, and record changes.

    A job that left the queue stays recorded as queued, so that the next command finds it too, unless this command
    removes or stops it (``stays``).
    """
    recorded = context.registry.load_unfinished()[0]
    readable = {job.id for job in recorded}
    unfinished, ended = _by_server(context, recorded)
    groups = Groups.recall(context.config)
    to_put_back: list[Job] = []
    movable: set[str] = set()

    async def ask(server: str) -> None:
        known = [job_id for name in groups.of(server) for job_id in ended.get(name, ())]
        await stop_as_requested(context, [job for job in unfinished[server] if job.stop_signal])
        news = LinkNews(context, server)
        with news.waiting():
            answer = await _ask(context, server, unfinished[server], known)
            await _settle_unsure(context, server, answer, known, readable)
            await _settle_late_starts(context, server, unfinished[server], answer)
        news.resume()
        await context.may_write()
        to_put_back.extend(_record(context, server, unfinished[server], answer, stays))
        movable.update(job_id for job_id, each in answer.jobs.items() if _may_be_moved(each))

    errors = dict((await on_every(servers, ask)).errors)
    return Refreshed(errors, to_put_back, movable)


def _may_be_moved(remote: RemoteJob) -> bool:
    return remote.job.state is JobState.QUEUED and bool(remote.job.any_of) and not remote.elsewhere


def _by_server(context: Context, recorded: Sequence[Job]) -> tuple[dict[str, list[Job]], dict[str, list[str]]]:
    """Return the jobs to ask each server about, and the ids of jobs with a known end."""
    unfinished: dict[str, list[Job]] = defaultdict(list)
    for job in recorded:
        unfinished[job.server].append(job)
    ended: dict[str, list[str]] = defaultdict(list)
    for job_id, server in context.registry.ended.items():
        ended[server].append(job_id)
    for server, jobs in unfinished.items():
        long_lost = _long_lost(jobs)
        ended[server] += [job.id for job in jobs if job.id in long_lost and not job.cleaned]
        unfinished[server] = [job for job in jobs if job.id not in long_lost]
    return unfinished, ended


def _long_lost(jobs: Sequence[Job]) -> list[str]:
    """Return the ids of a server's jobs, by key, that have been lost for too long to be queried."""
    return [job.id for job in jobs if not job.may_run][:-MOST_LOST]


async def _ask(context: Context, server: str, unfinished: Sequence[Job], ended: Sequence[str]) -> StatusAnswer:
    try:
        return await ask_about_jobs(context, server, skip=ended, known=[job.id for job in unfinished])
    except NotPreparedError:
        # Its home or our folder may be unavailable for a moment while its jobs continue.
        if any(not job.state.is_finished for job in unfinished):
            raise
        return StatusAnswer()


async def _settle_unsure(
    context: Context, server: str, answer: StatusAnswer, ended: Sequence[str], readable: Collection[str]
) -> None:
    """Query jobs that are new here, and record which ended ones the server lost or has again."""
    recorded = context.registry.ended
    if new := [job_id for job_id in answer.unsure if job_id not in recorded and job_id not in readable]:
        more = await ask_about_jobs(context, server, ids=new)
        answer.jobs.update(more.jobs)
    listed = set(answer.unsure)
    found_again = [job_id for job_id in listed if recorded.get(job_id) == ""]
    missing = [job_id for job_id in ended if job_id not in listed and bucket_of(job_id) in answer.unlike]
    context.registry.revise((job_id, lambda known: replace(known, cleaned=False)) for job_id in found_again)
    context.registry.revise((job_id, partial(_note_missing, answer=answer)) for job_id in missing[:MOST_NOTED])


def _note_missing(known: Job, answer: StatusAnswer) -> Job:
    """Mark an ended job as missing on its server if it is missing from its own folder of jobs."""
    is_missing = answer.folder_id != "" and known.folder_id == answer.folder_id
    return replace(known, cleaned=True) if is_missing else known


async def _settle_late_starts(context: Context, server: str, asked: Sequence[Job], answer: StatusAnswer) -> None:
    """Have the server refuse starts that it should have received long ago, and query these jobs again."""
    there = {*answer.jobs, *answer.unread, *answer.removed, *answer.processes_left}
    late = [job for job in asked if job.id not in there and _is_late_start(job)][:MOST_GIVEN_UP]
    if not late or not _is_usual_folder(context, server, answer.folder_id):
        return
    jobs = [{each.name: getattr(job, each.name) for each in REQUEST_FIELDS if each.of_job} for job in late]
    try:
        reply = await call_until_answered(context.pool, context.config, server, "give_up", {"jobs": jobs})
    except JobError:
        return  # such as an older agent; the next command tries again
    given_up = reply.get("given_up")
    for job in late:
        if isinstance(given_up, list) and job.id in given_up:
            hint = f"remote-tool job-rerun {job.key} starts it again"
            context.report(Notice(server, f"job {job.key}: {NEVER_ARRIVED}; {hint}"))
    more = await ask_about_jobs(context, server, ids=[job.id for job in late])
    answer.jobs.update(more.jobs)
    answer.unread.update(more.unread)


def _is_late_start(job: Job) -> bool:
    return job.state is JobState.STARTING and time.time() - job.created_at > START_SECONDS


def _is_usual_folder(context: Context, server: str, folder_id: str) -> bool:
    """Return whether the server's other jobs are in this folder of jobs: it is not the folder of an empty disk."""
    known = {job.folder_id for job in context.registry.load()[0] if job.server == server} - {""}
    return not known or folder_id in known


def _record(
    context: Context, server: str, asked: Sequence[Job], answer: StatusAnswer, stays: Collection[str] = ()
) -> list[Job]:
    """Adopt jobs of other laptops, and record changes of the queried ones, except those that left the queue.

    Returns:
        Those, with the state that the server reports: they are to be put back.
    """
    here = {job_id: each.job for job_id, each in answer.jobs.items() if not each.elsewhere}
    foreign = {job_id for job_id, each in answer.jobs.items() if _is_of_another(context, server, each)}
    others = here.keys() - foreign - {job.id for job in asked} - context.registry.ended.keys()
    new = others - context.registry.find(others).keys()
    context.registry.adopt(replace(here[job_id], server=server) for job_id in here if job_id in new)
    queued = [job for job in asked if job.state is JobState.QUEUED and job.id in here and job.id not in stays]
    to_put_back = [job for job in (merge(job, here[job.id]) for job in queued) if must_return_to_queue(job)]
    later = {job.id for job in to_put_back}
    rest = [job for job in asked if job.id not in later]
    context.registry.revise((job.id, partial(_revise, asked=job, answer=answer)) for job in rest)
    return to_put_back


def _revise(known: Job, asked: Job, answer: StatusAnswer) -> Job:
    """Return a job's new state from its current record and the server's answer."""
    remote = answer.jobs.get(known.id)
    if remote is not None and not remote.elsewhere:
        return merge(known, remote.job)
    if remote is None and known.id in answer.removed:
        return become_cleaned(known, answer.removed[known.id])
    if known.seen_at != asked.seen_at:
        return known  # updated since the request
    why = answer.unread.get(known.id) if remote is None else remote.job.reason
    return _miss(known, asked, answer) if why is None else become_unreachable(known, why)


def _miss(known: Job, asked: Job, answer: StatusAnswer) -> Job:
    """Return the state of a job unknown to its server: lost only if missing from its very own folder."""
    if asked.folder_id and asked.folder_id == answer.folder_id:
        return vanish(known, answer.processes_left[known.id])
    if known.state is JobState.STARTING:
        return known  # its start may still arrive
    return become_unreachable(known, why_missing(asked))


def _is_of_another(context: Context, server: str, remote: RemoteJob) -> bool:
    """Return whether another of our servers that shares this home ran a job; that one is queried about it."""
    name = remote.job.server
    return remote.ran_elsewhere and name != server and name in context.config.servers
