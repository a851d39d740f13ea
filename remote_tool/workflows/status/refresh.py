"""Ask every server about its jobs, and record the answers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.jobs.job import Job, JobState
from remote_tool.jobs.records import (
    RemoteJob,
    become_cleaned,
    become_unreachable,
    has_to_be_given_again,
    merge,
    vanish,
    why_missing,
)
from remote_tool.protocol.fingerprints import bucket_of
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import NotPreparedError
from remote_tool.workflows.home_groups import Groups
from remote_tool.workflows.status.late_starts import give_up_late_starts
from remote_tool.workflows.status.link_news import LinkNews
from remote_tool.workflows.status.pending_stops import stop_as_requested
from remote_tool.workflows.status.query import Seen, ask_about_jobs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.context import Context

# A lost job may be found again, but checking one takes a server up to 5 ms, so only the newest are.
MOST_LOST = 100
# Limit per refresh: writing a record takes time.
MOST_NOTED = 500


@dataclass(frozen=True)
class Refreshed:
    """What servers say about their jobs, beyond their recorded states.

    Attributes:
        errors: The servers that did not answer.
        left: Jobs that have left a queue before they began, which is not recorded yet: they are to be given again.
        waiting: Ids of queued jobs that may be moved to another server.
    """

    errors: dict[str, RemoteToolError]
    left: Sequence[Job]
    waiting: Collection[str]


async def query_and_record(context: Context, servers: Sequence[str], *, stays: Collection[str] = ()) -> Refreshed:
    """Query all servers in parallel, adopt jobs of other laptops, and record changes.

    A job that has left the queue stays recorded as queued, unless the command removes or stops it (``stays``): the next
    command then finds it, too.
    """
    recorded = context.registry.load_unfinished()[0]
    readable = {job.id for job in recorded}
    unfinished, ended = _by_server(context, recorded)
    groups = Groups.recall(context.config)

    async def ask(server: str) -> None:
        known = [job_id for name in groups.of(server) for job_id in ended.get(name, ())]
        await stop_as_requested(context, [job for job in unfinished[server] if job.stop_signal])
        news = LinkNews(context, server)
        with news.waiting():
            answer = await _ask(context, server, unfinished[server], known)
            await _settle_unsure(context, server, answer, known, readable)
            await _give_up_starts(context, server, unfinished[server], answer)
        news.resume()
        await context.may_write()
        left.extend(_record(context, server, unfinished[server], answer, stays))
        waiting.update(job_id for job_id, each in answer.jobs.items() if _may_be_moved(each))

    left: list[Job] = []
    waiting: set[str] = set()
    errors = dict((await on_every(servers, ask)).errors)
    return Refreshed(errors, left, waiting)


def _may_be_moved(remote: RemoteJob) -> bool:
    return remote.job.state is JobState.QUEUED and bool(remote.job.any_of) and not remote.elsewhere


def _by_server(context: Context, recorded: Sequence[Job]) -> tuple[dict[str, list[Job]], dict[str, list[str]]]:
    """Return the jobs to ask each server about, and the ids of those whose ends are known."""
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


async def _settle_unsure(
    context: Context, server: str, answer: Seen, ended: Sequence[str], readable: Collection[str]
) -> None:
    """Query jobs that are new here, and record which ended ones the server lost or has again."""
    recorded = context.registry.ended
    if new := [job_id for job_id in answer.unsure if job_id not in recorded and job_id not in readable]:
        more = await ask_about_jobs(context, server, ids=new)
        answer.jobs.update(more.jobs)
    told = set(answer.unsure)
    back = [job_id for job_id in told if recorded.get(job_id) == ""]
    gone = [job_id for job_id in ended if job_id not in told and bucket_of(job_id) in answer.unlike]
    context.registry.revise((job_id, lambda known: replace(known, cleaned=False)) for job_id in back)
    context.registry.revise((job_id, partial(_note_gone, answer=answer)) for job_id in gone[:MOST_NOTED])


async def _give_up_starts(context: Context, server: str, asked: Sequence[Job], answer: Seen) -> None:
    """Have the server refuse starts that it has not got for long, and learn how it has these jobs now."""
    there = {*answer.jobs, *answer.unread, *answer.removed, *answer.left}
    late = await give_up_late_starts(context, server, [job for job in asked if job.id not in there], answer.folder_id)
    if late:
        more = await ask_about_jobs(context, server, ids=late)
        answer.jobs.update(more.jobs)
        answer.unread.update(more.unread)


def _note_gone(known: Job, answer: Seen) -> Job:
    """Mark an ended job as missing on its server if it is gone from its own folder of jobs."""
    is_gone = answer.folder_id != "" and known.folder_id == answer.folder_id
    return replace(known, cleaned=True) if is_gone else known


async def _ask(context: Context, server: str, unfinished: Sequence[Job], ended: Sequence[str]) -> Seen:
    try:
        return await ask_about_jobs(context, server, skip=ended, known=[job.id for job in unfinished])
    except NotPreparedError:
        # Its home or our folder may be unavailable for a moment while its jobs continue.
        if any(not job.state.is_finished for job in unfinished):
            raise
        return Seen()


def _record(
    context: Context, server: str, asked: Sequence[Job], answer: Seen, stays: Collection[str] = ()
) -> list[Job]:
    """Adopt jobs of other laptops, and record changes of the queried ones; return those that are to be given again.

    These have left the queue, which is not recorded yet.
    """
    here = {job_id: each.job for job_id, each in answer.jobs.items() if not each.elsewhere}
    foreign = {job_id for job_id, each in answer.jobs.items() if _is_of_another(context, server, each)}
    others = here.keys() - foreign - {job.id for job in asked} - context.registry.ended.keys()
    new = others - context.registry.find(others).keys()
    context.registry.adopt(replace(here[job_id], server=server) for job_id in here if job_id in new)
    waited = [job for job in asked if job.state is JobState.QUEUED and job.id in here and job.id not in stays]
    left = [job for job in (merge(job, here[job.id]) for job in waited) if has_to_be_given_again(job)]
    later = {job.id for job in left}
    rest = [job for job in asked if job.id not in later]
    context.registry.revise((job.id, partial(_revise, asked=job, answer=answer)) for job in rest)
    return left


def _revise(known: Job, asked: Job, answer: Seen) -> Job:
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


def _miss(known: Job, asked: Job, answer: Seen) -> Job:
    """Return the state of a job unknown to its server: gone only if missing from its very own folder."""
    if asked.folder_id and asked.folder_id == answer.folder_id:
        return vanish(known, answer.left[known.id])
    if known.state is JobState.STARTING:
        return known  # its start may still arrive
    return become_unreachable(known, why_missing(asked))


def _is_of_another(context: Context, server: str, remote: RemoteJob) -> bool:
    """Return whether another of our servers that shares this home ran a job; that one is queried about it."""
    name = remote.job.server
    return remote.ran_elsewhere and name != server and name in context.config.servers
