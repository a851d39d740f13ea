"""job-list: query every server about its jobs, and record the answers."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from remote_tool import workflows
from remote_tool.errors import JobError
from remote_tool.jobs.job import Job, JobState
from remote_tool.jobs.records import (
    JOB_ID,
    RemoteJob,
    RemovedJob,
    become_cleaned,
    become_unreachable,
    merge,
    parse_job,
    parse_removed,
    read_count,
    read_folder_id,
    read_unsure,
    vanish,
    why_missing,
)
from remote_tool.protocol.fingerprints import bucket_of, fingerprints
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import NotPreparedError, call_until_answered
from remote_tool.workflows.events import Notice
from remote_tool.workflows.home_groups import Groups
from remote_tool.workflows.jobs.clock_skew import warn_of_skew
from remote_tool.workflows.jobs.link_news import LinkNews
from remote_tool.workflows.jobs.log_streams import bring_logs_home
from remote_tool.workflows.jobs.pending_stops import Stops, stop_on_server
from remote_tool.workflows.selection import JobsAnswer, JobSelection, choose_jobs, choose_servers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.context import Context

# A lost job may be found again, but checking one takes a server up to 5 ms, so only the newest are.
MOST_LOST = 100
LONGEST_REASON = 200
SHOWN_REFUSALS = 3
# A batch holds thousands of jobs.
MOST_PORTIONS = 100
# More ids than these take more bytes than their fingerprints.
MOST_SKIPPED = 60
# Limit per refresh: writing a record takes time.
MOST_NOTED = 500
REQUESTED = "as requested while the server was unreachable"


async def list_jobs(context: Context, selection: JobSelection, *, logs: bool = False) -> JobsAnswer:
    """Return the selected jobs with their current state; ``logs`` also pulls logs and artifacts."""
    servers = servers_of_jobs(context, selection, logs=logs)
    errors = await refresh(context, servers)
    pulled: dict[str, RemoteToolError] = {}
    if logs:
        reached = replace(selection, servers=tuple(name for name in servers if name not in errors))
        chosen = choose_jobs(load_matching(context, selection)[0], reached) if reached.servers else []
        errors |= await bring_logs_home(context, chosen)
        pulled = await bring_artifacts_home(context, [job for job in chosen if job.server not in errors])
    answer = recorded_jobs(context, selection, errors)
    # A failed pull says nothing about the running jobs.
    return replace(answer, errors={**pulled, **answer.errors}, answered=servers)


def servers_of_jobs(context: Context, selection: JobSelection, *, logs: bool = False) -> tuple[str, ...]:
    """Return the servers to query: those of named jobs, the named ones, or the usual ones and some of earlier lists.

    Servers of earlier lists may no longer exist. They are queried if a job may still be running, and for logs if some
    are incomplete here.
    """
    config = context.config
    named = {job.server for job in named_jobs(context, selection)}
    if named and not selection.servers and named <= config.servers.keys():
        return (*sorted(named),)
    earlier = [name for name, server in config.servers.items() if server.is_listed and name not in config.listed]
    if selection.servers or not earlier:
        return choose_servers(config, selection.servers)
    jobs, _ = load_matching(context, selection)
    waited_for = {job.server for job in jobs if not job.state.is_finished or (logs and not job.logs_complete)}
    return (*config.usual_servers, *(name for name in earlier if name in waited_for))


def named_jobs(context: Context, selection: JobSelection) -> list[Job]:
    """Return the recorded jobs that a selection names by key or id; none if it has a word that is neither.

    A key is looked for among the jobs that have not ended: reading all records takes longer than asking servers.
    """
    if not selection.jobs:
        return []
    known = {word: job for job in context.registry.load_unfinished()[0] for word in (job.id, str(job.key))}
    known.update(context.registry.find([word for word in selection.jobs if JOB_ID.fullmatch(word)]))
    return [known[word] for word in selection.jobs] if known.keys() >= {*selection.jobs} else []


async def pull_logs(context: Context, selection: JobSelection) -> JobsAnswer:
    """Pull new output of the selected jobs; without a selection, of all jobs."""
    return await list_jobs(context, replace(selection, running=True, stopped=True), logs=True)


async def bring_artifacts_home(context: Context, jobs: Sequence[Job]) -> dict[str, RemoteToolError]:
    """Pull the requested artifacts of these jobs; return the servers that failed."""
    wanted = [job for job in jobs if job.artifacts and not job.artifacts_complete]
    # Imported only if some are requested.
    return dict((await workflows.artifacts.pull.pull_artifacts(context, wanted)).errors) if wanted else {}


def recorded_jobs(context: Context, selection: JobSelection, errors: Mapping[str, RemoteToolError]) -> JobsAnswer:
    """Return the selected jobs as recorded; those on unreachable servers are marked."""
    jobs, bad = load_matching(context, selection)
    chosen = choose_jobs([_as_reachable(job, errors) for job in jobs], selection)
    return JobsAnswer(tuple(chosen), dict(errors), tuple(bad))


def load_matching(context: Context, selection: JobSelection) -> tuple[list[Job], list[str]]:
    """Return all recorded jobs that may match a selection, and a message for each unreadable record."""
    return context.registry.load() if selection.may_have_ended else context.registry.load_unfinished()


async def refresh(context: Context, servers: Sequence[str], *, puts_back: bool = True) -> dict[str, RemoteToolError]:
    """Query all servers in parallel, adopt jobs of other laptops, and record changes.

    Jobs that waited when a server rebooted are put back into its queue, unless the command removes or stops jobs.
    """
    unfinished: dict[str, list[Job]] = defaultdict(list)
    for job in context.registry.load_unfinished()[0]:
        unfinished[job.server].append(job)
    readable = {job.id for jobs in unfinished.values() for job in jobs}
    ended: dict[str, list[str]] = defaultdict(list)
    for job_id, server in context.registry.ended.items():
        ended[server].append(job_id)
    for server, jobs in unfinished.items():
        long_lost = _long_lost(jobs)
        ended[server] += [job.id for job in jobs if job.id in long_lost and not job.cleaned]
        unfinished[server] = [job for job in jobs if job.id not in long_lost]

    groups = Groups.recall(context.config)

    async def ask(server: str) -> None:
        known = [job_id for name in groups.of(server) for job_id in ended.get(name, ())]
        await _stop_as_requested(context, [job for job in unfinished[server] if job.stop_signal])
        news = LinkNews(context, server)
        with news.waiting():
            answer = await _ask(context, server, unfinished[server], known)
            await _settle_unsure(context, server, answer, known, readable)
        news.resume()
        await context.may_write()
        lost.extend(_record(context, server, unfinished[server], answer))

    lost: list[str] = []
    errors = dict((await on_every(servers, ask)).errors)
    if puts_back and lost:
        # Imported only if a server may have rebooted.
        await workflows.start.put_back.put_back(context, lost)
    return errors


def _long_lost(jobs: Sequence[Job]) -> list[str]:
    """Return the ids of a server's jobs, by key, that have been lost for too long to be queried."""
    return [job.id for job in jobs if not job.may_run][:-MOST_LOST]


async def _stop_as_requested(context: Context, jobs: Sequence[Job]) -> None:
    """Carry out stops that were requested while the server did not answer."""
    wishes: dict[tuple[str, str, float | None], dict[str, Job]] = defaultdict(dict)
    for job in jobs:
        wishes[job.server, job.stop_signal, job.stop_grace][job.id] = job
    for (server, signal, grace), together in wishes.items():
        try:
            stops = await stop_on_server(context, server, list(together), signal, grace)
        except NotPreparedError:
            if any(not job.state.is_finished for job in together.values()):
                raise
            return
        except JobError as error:
            stops = Stops(dict.fromkeys(together, str(error)), {}, {})
        ended = [job_id for job_id in together if job_id not in stops.problems]
        context.registry.revise((job_id, _without_stop) for job_id in ended)
        for job_id, job in together.items():
            context.report(Notice(server, f"job {job.key}{_describe_stop(job_id, stops)}"))


def _describe_stop(job_id: str, stops: Stops) -> str:
    if job_id in stops.problems:
        return f": {stops.problems[job_id]}" + (f". {stops.unknown[job_id]}" if job_id in stops.unknown else "")
    if job_id in stops.ended:
        return f" ended ({stops.ended[job_id]}) before it could be stopped, {REQUESTED}"
    return f" has now been stopped, {REQUESTED}"


def _without_stop(known: Job) -> Job:
    return replace(known, stop_signal="", stop_grace=None)


@dataclass
class Seen:
    """A server's answer about its jobs, by id.

    Attributes:
        jobs: Including those of machines that share its home; invalid entries are left out.
        unread: Why an existing job is unreadable, now or for us.
        folder_id: Id of the folder of jobs; empty if it has none, or changed meanwhile.
        left: Number of living processes of a job without a folder there.
        removed: How cleaned jobs ended.
        unsure: Jobs in the buckets that differ from the ends known here.
        unlike: These buckets.
    """

    jobs: dict[str, RemoteJob] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    folder_id: str = ""
    left: Counter[str] = field(default_factory=Counter)
    removed: dict[str, RemovedJob] = field(default_factory=dict)
    unsure: tuple[str, ...] = ()
    unlike: frozenset[int] = frozenset()


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


async def ask_about_jobs(
    context: Context,
    server: str,
    *,
    ids: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    known: Sequence[str] = (),
) -> Seen:
    """Query a server about these jobs, or about all but some, in batches.

    Many skipped jobs are sent as fingerprints: the server returns the ids in buckets that differ as unsure.

    For known jobs that the server no longer has, it returns the number of living processes.
    """
    seen = Seen()
    is_many = len(skip) > MOST_SKIPPED
    ended = fingerprints(skip) if is_many else None
    told = set() if is_many else set(skip)
    for portion in range(MOST_PORTIONS):
        asked_at = time.time()
        request = {"ids": ids, "skip": list(told), "known": list(known), "ended": ended}
        answer = await call_until_answered(context.pool, context.config, server, "status", request)
        if portion == 0:
            warn_of_skew(context, server, answer, asked_at)
        folder_id = read_folder_id(answer.get("folder_id"))
        seen.folder_id = folder_id if portion == 0 or folder_id == seen.folder_id else ""
        seen.left = Counter(
            {name: read_count(each.get("count")) for name, each in _named(answer.get("left"), "id").items()}
        )
        if portion == 0 and ended is not None:
            seen.unsure, seen.unlike = read_unsure(answer)
        for entry in _named(answer.get("removed"), "id").values():
            with suppress(JobError):
                removed = parse_removed(entry)
                seen.removed[removed.id] = removed
        _take_jobs(context, server, answer, seen)
        told |= _named(answer.get("jobs"), "id").keys() | _named(answer.get("bad"), "name").keys()
        if answer.get("more") is not True:
            return seen
    raise JobError(f"{server}: listed too many jobs", server=server)


async def ask_about_variables(context: Context, job: Job) -> tuple[str, ...]:
    """Return the names of all variables that a job was started with, configured ones included, as its server has them.

    Raises:
        RemoteToolError: The server does not say.
    """
    answer = await call_until_answered(context.pool, context.config, job.server, "status", {"ids": [job.id]})
    spec = _named(answer.get("jobs"), "id").get(job.id, {}).get("spec")
    names = spec.get("environment_names") if isinstance(spec, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise JobError(f"{job.server} has no record of it anymore", server=job.server)
    return tuple(names)


def _named(entries: object, name: str) -> dict[str, Mapping[str, Any]]:
    entries = entries if isinstance(entries, list) else []
    return {str(entry[name]): entry for entry in entries if isinstance(entry, dict) and name in entry}


def _take_jobs(context: Context, server: str, answer: Mapping[str, Any], seen: Seen) -> None:
    for name, each in _named(answer.get("bad"), "name").items():
        seen.unread[name] = str(each.get("why"))[:LONGEST_REASON]
    refused = 0
    entries = answer.get("jobs")
    for entry in entries if isinstance(entries, list) else []:
        try:
            remote = parse_job(entry, server, time.time(), seen.folder_id, patterns=context.config.status)
        except JobError as error:
            refused += 1
            if refused <= SHOWN_REFUSALS:
                context.report(Notice(server, f"a job record was refused: {error}"))
            if isinstance(entry, dict):
                seen.unread[str(entry.get("id"))] = str(error)[:LONGEST_REASON]
            continue
        seen.jobs[remote.job.id] = remote
    if refused > SHOWN_REFUSALS:
        context.report(Notice(server, f"{refused} job records were refused"))


def _record(context: Context, server: str, asked: Sequence[Job], answer: Seen) -> list[str]:
    """Adopt jobs of other laptops, and record changes of the queried ones; return those that waited and are lost."""
    here = {job_id: each.job for job_id, each in answer.jobs.items() if not each.elsewhere}
    foreign = {job_id for job_id, each in answer.jobs.items() if _is_of_another(context, server, each)}
    others = here.keys() - foreign - {job.id for job in asked} - context.registry.ended.keys()
    new = others - context.registry.find(others).keys()
    context.registry.adopt(replace(here[job_id], server=server) for job_id in here if job_id in new)
    revised = context.registry.revise((job.id, partial(_revise, asked=job, answer=answer)) for job in asked)
    waited = {job.id for job in asked if job.state is JobState.QUEUED}
    return [job.id for job in revised if job.id in waited and job.state is JobState.LOST]


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
        return known  # its start may still arrive, after any delay
    return become_unreachable(known, why_missing(asked))


def _is_of_another(context: Context, server: str, remote: RemoteJob) -> bool:
    """Return whether another of our servers that shares this home ran a job; that one is queried about it."""
    name = remote.job.server
    return remote.ran_elsewhere and name != server and name in context.config.servers


def _as_reachable(job: Job, errors: Mapping[str, RemoteToolError]) -> Job:
    if job.server not in errors or job.state.is_finished or job.state is JobState.UNREACHABLE:
        return job
    age = f", {time.time() - job.seen_at:.0f} s ago" if job.seen_at else ""
    error = errors[job.server]
    why = f"; {error}" if isinstance(error, NotPreparedError) else ""
    return replace(job, state=JobState.UNREACHABLE, reason=f"last seen {job.state}{age}{why}")
