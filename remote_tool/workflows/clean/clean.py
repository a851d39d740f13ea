"""clean: list unused files of remote-tool on servers and here, then remove them."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from remote_tool.errors import JobError, RemoteToolError, UsageError
from remote_tool.jobs.job import JobState
from remote_tool.protocol.errors import NO_SUCH_JOB
from remote_tool.transport.pool import on_every
from remote_tool.transport.sync import interrupted_sync
from remote_tool.workflows.agent_client import NotPreparedError, call_until_answered
from remote_tool.workflows.clean.local import clean_here, is_followed, note_done
from remote_tool.workflows.clean.request import CleanAnswer, CleanItem, CleanRequest, read_items
from remote_tool.workflows.home_groups import Groups
from remote_tool.workflows.selection import JobSelection, choose_jobs, choose_servers
from remote_tool.workflows.status.query import ask_about_jobs
from remote_tool.workflows.status.refresh import query_and_record
from remote_tool.workflows.sync.adoption import find_folders_of_others
from remote_tool.workflows.work.records import fan_out_files, sweep_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.work.records import WorkFiles

# Jobs per request, and its timeout in seconds: the server works for 20 of them, or for 540 with ``everything``.
PORTION = 2000
TIMEOUT, TIMEOUT_FOR_ALL = 120.0, 600.0
# A younger job may still be starting; older starts have been given up.
START_SECONDS = 300.0
# An unfinished fan-out may be resumed for this long.
RESUMED_SECONDS = 30 * 86400.0
KEEPS_ARTIFACTS = "artifacts have not been pulled"
KEEPS_LAUNCH = "jobs of the same launch have not ended"
KEEPS_RESUMABLE = "a sweep or fan-out may still be resumed; clean --job KEY removes a job of it"


class Refresh(Protocol):
    """Brings the records of the jobs on these servers up to date, and returns the error of each that failed.

    The jobs in ``stays``, by id, are not put back into a queue: they may be removed.
    """

    def __call__(
        self, context: Context, servers: Sequence[str], *, stays: Collection[str]
    ) -> Awaitable[dict[str, RemoteToolError]]: ...


async def _query_only(
    context: Context, servers: Sequence[str], *, stays: Collection[str]
) -> dict[str, RemoteToolError]:
    return (await query_and_record(context, servers, stays=stays)).errors


async def survey(context: Context, request: CleanRequest, refresh: Refresh = _query_only) -> CleanAnswer:
    """List our files on servers and here, and which may be removed; remove nothing.

    Args:
        context: The command's context.
        request: A choice of jobs and files.
        refresh: By default, no job is put back into a queue.

    Raises:
        UsageError: A job that is named runs, may be starting, or has artifacts that are only on its server.
    """
    named = choose_jobs(context.registry.load()[0], JobSelection(jobs=request.jobs)) if request.jobs else []
    servers = _servers(context, request, named)
    may_be_removed = context.registry.load_unfinished()[0] if request.all else named
    errors = await refresh(context, servers, stays={job.id for job in may_be_removed}) if servers else {}
    if not request.jobs:
        errors = {**errors, **(await find_folders_of_others(context.pool, context.config, servers))}
    jobs = context.registry.load()[0]
    forgotten: dict[str, str] = {}
    kept: dict[str, str] = {}
    if request.jobs:
        ids = {job.id for job in named}
        removable = _by_server([job for job in jobs if job.id in ids and job.is_over and job.server not in errors])
        if not request.artifacts:
            _refuse_unpulled(job for name in servers for job in removable.get(name, ()))
        others = [job for job in jobs if job.id in ids and not (job.is_over and job.server not in errors)]
        forgotten = await _reasons_to_forget(context, others, errors)
    else:
        removable, kept = choose_removable(context, jobs, request, [name for name in servers if name not in errors])
    found = CleanAnswer(request, (), errors, servers, removable, forgotten, kept)
    return await _ask_and_clean(context, found, dry_run=True)


async def carry_out(context: Context, found: CleanAnswer) -> CleanAnswer:
    """Remove the files that a survey found; each server checks again that no job uses them."""
    kept = note_done(context, [job for jobs in found.removable.values() for job in jobs])
    removable = {server: [job for job in jobs if job.id not in kept] for server, jobs in found.removable.items()}
    planned = replace(found, removable=removable, kept={**found.kept, **kept})
    return await _ask_and_clean(context, planned, dry_run=False)


def _servers(context: Context, request: CleanRequest, named: Sequence[Job]) -> tuple[str, ...]:
    if request.jobs:
        chosen = {job.server for job in named}
        return tuple(name for name in context.config.servers if name in chosen)
    if not request.servers and not context.config.usual_servers:
        return ()
    return choose_servers(context.config, request.servers)


def choose_removable(
    context: Context, jobs: Sequence[Job], request: CleanRequest, servers: Sequence[str]
) -> tuple[dict[str, list[Job]], dict[str, str]]:
    """Return the jobs to remove, by server, and the reason for each job that is kept.

    Only jobs of ``servers``, which have answered, and of servers that are no longer configured are considered.
    """
    here_only = {job.server for job in jobs} - context.config.servers.keys() if not request.servers else set()
    busy = dict.fromkeys(_resumable(context, jobs), KEEPS_RESUMABLE)
    busy |= dict.fromkeys((job.launch_id for job in jobs if job.launch_id and not job.is_over), KEEPS_LAUNCH)
    removable: dict[str, list[Job]] = {}
    kept: dict[str, str] = {}
    for server, own in _by_server(jobs).items():
        if server not in {*servers, *here_only}:
            continue
        if request.all:
            # A server may report nothing about a lost job's processes while our folder is unavailable.
            removable[server] = [job for job in own if job.is_over or not job.state.is_finished]
            continue
        newest_first = sorted((job for job in own if job.is_over), key=lambda job: (-job.created_at, -job.key))
        for job in newest_first[request.keep or 0 :]:
            # The server knows how long ago a job ended; without it, this is known from when its end was seen here.
            is_judged_here = job.cleaned or server in here_only
            if is_judged_here and _seen_for(job) < (request.older or 0.0):
                continue
            if job.launch_id in busy:
                kept[job.id] = busy[job.launch_id]
                continue
            if _waits_for_artifacts(job):
                kept[job.id] = KEEPS_ARTIFACTS
                continue
            removable.setdefault(server, []).append(job)
    return removable, kept


def _seen_for(job: Job) -> float:
    """Return for how many seconds a job's end has been known here, by this computer's clock alone."""
    return time.time() - (job.seen_at or job.created_at)


def _resumable(context: Context, jobs: Sequence[Job]) -> set[str]:
    """Return the fan-outs and sweeps that are followed or may be resumed: their jobs record what is done."""
    local = context.config.local
    launches: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        launches[job.launch_id].append(job)
    found = set()
    for files in (fan_out_files(local.fan_outs), sweep_files(local.sweeps)):
        for launch_id in launches.keys() & files.names():
            own = launches[launch_id]
            is_young = min(map(_seen_for, own)) < RESUMED_SECONDS
            if is_followed(files.path(launch_id)) or (is_young and not _is_done(files, launch_id, own)):
                found.add(launch_id)
    return found


def _is_done(files: WorkFiles, launch_id: str, jobs: Sequence[Job]) -> bool:
    try:
        return files.is_done(launch_id, jobs)
    except RemoteToolError:
        return True


def _waits_for_artifacts(job: Job) -> bool:
    return bool(job.artifacts) and not job.artifacts_complete


def _refuse_unpulled(jobs: Iterable[Job]) -> None:
    keys = ",".join(str(job.key) for job in jobs if _waits_for_artifacts(job))
    if keys:
        hint = f"remote-tool job-pull {keys}, or to give them up: remote-tool clean {keys} --artifacts"
        raise UsageError(f"Artifacts of job {keys} have not been pulled", hint=hint)


async def _reasons_to_forget(
    context: Context, jobs: Sequence[Job], errors: Mapping[str, RemoteToolError]
) -> dict[str, str]:
    """Explain for each job why its local record can be removed although its end is unknown.

    Raises:
        UsageError: A job is running, or may still be starting.
    """
    found = {}
    for job in jobs:
        age = time.time() - job.created_at
        if job.state is JobState.STARTING and job.server in context.config.servers and age < START_SECONDS:
            raise UsageError(f"Job {job.key} may still be starting", hint="try again in five minutes")
        if job.server not in context.config.servers:
            found[job.id] = f"{job.server} is not in the configuration"
        elif job.server in errors and not isinstance(errors[job.server], NotPreparedError):
            found[job.id] = f"{job.server} does not answer"
        else:
            found[job.id] = await _ask_whether_missing(context, job)
    return found


async def _ask_whether_missing(context: Context, job: Job) -> str:
    try:
        answer = await ask_about_jobs(context, job.server, ids=[job.id], known=[job.id])
    except NotPreparedError:
        return f"{job.server} is not prepared"
    remote = answer.jobs.get(job.id)
    if remote is not None and not remote.job.is_over:
        raise UsageError(f"Job {job.key} is {remote.job.state}", hint=f"remote-tool job-kill {job.key}")
    why = answer.unread.get(job.id, NO_SUCH_JOB)
    if remote is None and why != NO_SUCH_JOB:
        raise UsageError(f"{job.server} cannot tell whether it has job {job.key}: {why}", hint="try again later")
    if answer.processes_left[job.id]:
        raise UsageError(f"Processes of job {job.key} are still running", hint=f"remote-tool job-kill {job.key}")
    return f"{job.server} does not have it"


async def _ask_and_clean(context: Context, found: CleanAnswer, *, dry_run: bool) -> CleanAnswer:
    """List or remove files on every server, then here."""
    request, groups = found.request, Groups.recall(context.config)
    # Of servers sharing a folder, one is asked.
    answering = [name for name in found.servers if name not in found.errors]
    leaders = {groups.of(name): name for name in reversed(answering)}
    results: dict[str, _ServerResult] = {}

    async def ask(server: str) -> None:
        group = groups.of(server)
        ids = [job.id for name in group for job in found.removable.get(name, ()) if not job.cleaned]
        result = await _clean_server(context, server, sorted(ids), request, dry_run=dry_run)
        results.update(dict.fromkeys(group, result))

    errors = {**found.errors, **(await on_every(reversed(leaders.values()), ask)).errors}
    without_files = [
        job for jobs in found.removable.values() for job in jobs if not _may_have_files(found, results, job)
    ]
    forgotten = context.registry.find(found.forgotten).values()
    await context.may_write()
    emptied = {name for name, result in results.items() if not result.is_unprepared} if request.all else set()
    here = clean_here(context, (*without_files, *forgotten), request, emptied=emptied, dry_run=dry_run)
    asked = [name for name in answering if name in leaders.values() and name in results]
    items = [item for name in asked for item in results[name].items]
    kept = {**found.kept, **{job_id: why for result in results.values() for job_id, why in result.kept.items()}}
    young = {job_id for result in results.values() for job_id in result.young}
    old = {server: [job for job in jobs if job.id not in young] for server, jobs in found.removable.items()}
    removable = {server: jobs for server, jobs in old.items() if jobs}
    return replace(found, items=(*items, *here), errors=errors, kept=kept, removable=removable)


def _may_have_files(found: CleanAnswer, results: Mapping[str, _ServerResult], job: Job) -> bool:
    """Return whether a selected server may still have files of a job."""
    if job.cleaned or job.server not in found.servers:
        return False
    return job.server not in results or job.id not in results[job.server].absent


@dataclass
class _ServerResult:
    """The result of a server, or of several servers that share a folder.

    Attributes:
        items: Its kinds of files.
        absent: Jobs without files on it, by id.
        kept: The reason for each job that is kept, by id.
        young: Jobs that ended too recently, by id.
        is_unprepared: Whether the server is not prepared now.
    """

    items: list[CleanItem] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    kept: dict[str, str] = field(default_factory=dict)
    young: set[str] = field(default_factory=set)
    is_unprepared: bool = False


async def _clean_server(
    context: Context, server: str, ids: Sequence[str], request: CleanRequest, *, dry_run: bool
) -> _ServerResult:
    """Send requests to a server until it has answered about all jobs."""
    result = _ServerResult()
    waiting = list(ids)
    is_first = True
    while waiting or is_first:
        portion, before = waiting[:PORTION], len(waiting)
        try:
            answer = await _ask(context, server, portion, request, dry_run=dry_run, jobs_only=not is_first)
        except NotPreparedError as error:
            # The project's disk may be unmounted: without their local records, its jobs would be unknown later.
            result.is_unprepared = True
            result.absent |= set(waiting) if request.jobs else set()
            result.kept |= dict.fromkeys(set(waiting) - result.absent, f"{error}; --job KEY removes its record here")
            return result
        result.items = _add_portion(result.items, read_items(server, answer.get("items")), is_first=is_first)
        result.absent |= {name for key in ("removed", "gone") for name in _texts(answer.get(key))} & set(portion)
        result.kept |= _reasons(answer.get("kept"))
        result.young |= set(_texts(answer.get("young"))) & set(portion)
        if request.all:
            result.absent = set(ids)
        waiting = [name for name in waiting if name not in {*result.absent, *result.kept, *result.young}]
        if answer.get("more") is not True and len(waiting) == before and not is_first:
            raise JobError(f"{server}: did not say what happened to {len(waiting)} jobs", server=server)
        is_first = False
        if answer.get("more") is not True and not waiting:
            break
    return result


async def _ask(
    context: Context, server: str, ids: Sequence[str], request: CleanRequest, *, dry_run: bool, jobs_only: bool
) -> dict[str, Any]:
    names = interrupted_sync.recall(context.config.local.begun_sync(server)).split(b"\0")
    paths = [name.split(b" ", 2)[2] for name in names if name.count(b" ") > 1]
    folders = {path.rpartition(b"/")[0].decode(errors="replace") for path in paths}
    question = {
        "ids": list(ids),
        "dry_run": dry_run,
        "older": request.older,
        "everything": request.all,
        "jobs_only": jobs_only or bool(request.jobs),
        "begun": sorted(folders)[:PORTION],
    }
    within = TIMEOUT_FOR_ALL if request.all else TIMEOUT
    return await call_until_answered(context.pool, context.config, server, "clean", question, within=within)


def _add_portion(known: list[CleanItem], new: list[CleanItem], *, is_first: bool) -> list[CleanItem]:
    """Add the sizes of another portion of jobs; only the first answer has the totals."""
    if is_first:
        return new
    more = {item.what: item for item in new}
    return [
        replace(item, goes=item.goes + more[item.what].goes, frees=item.frees + more[item.what].frees)
        if item.what in more
        else item
        for item in known
    ]


def _by_server(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    found: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        found[job.server].append(job)
    return found


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _reasons(value: object) -> dict[str, str]:
    entries = value if isinstance(value, list) else []
    return {str(each.get("id")): str(each.get("why"))[:200] for each in entries if isinstance(each, dict)}
