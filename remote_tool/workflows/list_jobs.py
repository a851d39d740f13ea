"""job-list: ask every server about its jobs, and remember what they say."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool import workflows
from remote_tool.errors import JobError
from remote_tool.jobs.job import Job, JobState
from remote_tool.jobs.records import RemoteJob, parse_job
from remote_tool.transport.pool import on_every
from remote_tool.workflows.clocks import tell_skew
from remote_tool.workflows.events import Notice
from remote_tool.workflows.groups import Groups
from remote_tool.workflows.log_streams import bring_logs_home
from remote_tool.workflows.selection import JobsAnswer, JobSelection, choose_jobs, choose_servers
from remote_tool.workflows.stopping import stop_on_server
from remote_tool.workflows.supervisor import NotPreparedError, call_until_answered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.context import Context

# A start takes a moment to reach its server; until then a job that the server does not know is still starting.
START_WINDOW = 60.0
SHOWN_REFUSALS = 3
# A portion holds thousands of jobs.
MOST_PORTIONS = 100


async def list_jobs(context: Context, selection: JobSelection, *, logs: bool = False) -> JobsAnswer:
    """Return the selected jobs as their servers see them now; with logs, bring home what they wrote, artifacts too."""
    servers = servers_of_jobs(context, selection, logs=logs)
    errors = await refresh(context, servers)
    pulled: dict[str, RemoteToolError] = {}
    if logs:
        reached = replace(selection, servers=tuple(name for name in servers if name not in errors))
        chosen = choose_jobs(load_meant(context, selection)[0], reached) if reached.servers else []
        errors |= await bring_logs_home(context, chosen)
        pulled = await bring_artifacts_home(context, [job for job in chosen if job.server not in errors])
    answer = recorded_jobs(context, selection, errors)
    # What cannot be pulled says nothing about the jobs that run.
    return replace(answer, errors={**pulled, **answer.errors}, answered=servers)


def servers_of_jobs(context: Context, selection: JobSelection, *, logs: bool = False) -> tuple[str, ...]:
    """Return the servers to ask about jobs: those named, else the usual ones and some of earlier host lists.

    Servers of earlier lists may be long gone. They are asked where a job may still run, and with logs where not all of
    them have come home.
    """
    config = context.config
    earlier = [name for name, server in config.servers.items() if server.is_listed and name not in config.listed]
    if selection.servers or not earlier:
        return choose_servers(config, selection.servers)
    jobs, _ = load_meant(context, selection)
    waited_for = {job.server for job in jobs if not job.state.is_finished or (logs and not job.logs_complete)}
    return (*config.usual_servers, *(name for name in earlier if name in waited_for))


async def pull_logs(context: Context, selection: JobSelection) -> JobsAnswer:
    """Bring home what the selected jobs wrote since the last time; without a selection, of all jobs."""
    return await list_jobs(context, replace(selection, running=True, stopped=True), logs=True)


async def bring_artifacts_home(context: Context, jobs: Sequence[Job]) -> dict[str, RemoteToolError]:
    """Bring home what these jobs wrote until now of what is wanted here; return the servers that failed."""
    wanted = [job for job in jobs if job.artifacts and not job.artifacts_complete]
    # Loaded for those who want some.
    return dict((await workflows.artifacts.pull_artifacts(context, wanted)).errors) if wanted else {}


def recorded_jobs(context: Context, selection: JobSelection, errors: Mapping[str, RemoteToolError]) -> JobsAnswer:
    """Return the selected jobs as they are recorded; those on servers that cannot be reached say so."""
    jobs, bad = load_meant(context, selection)
    chosen = choose_jobs([_as_reachable(job, errors) for job in jobs], selection)
    return JobsAnswer(tuple(chosen), dict(errors), tuple(bad))


def load_meant(context: Context, selection: JobSelection) -> tuple[list[Job], list[str]]:
    """Return all recorded jobs that a selection may mean, and a sentence for each record that cannot be read."""
    return context.registry.load() if selection.may_have_ended else context.registry.load_unfinished()


async def refresh(context: Context, servers: Sequence[str]) -> dict[str, RemoteToolError]:
    """Ask all servers at once about their jobs, adopt those of other laptops, and record what changed."""
    unfinished: dict[str, list[Job]] = defaultdict(list)
    for job in context.registry.load_unfinished()[0]:
        unfinished[job.server].append(job)
    ended: dict[str, list[str]] = defaultdict(list)
    for job_id, server in context.registry.ended.items():
        ended[server].append(job_id)

    groups = Groups.recall(context.config)

    async def ask(server: str) -> None:
        known = [job_id for name in groups.of(server) for job_id in ended[name]]
        await _stop_as_wished(context, [job for job in unfinished[server] if job.stop_signal])
        _record(context, server, unfinished[server], await _ask(context, server, known))

    return dict((await on_every(servers, ask)).errors)


async def _stop_as_wished(context: Context, jobs: Sequence[Job]) -> None:
    """Stop what was to be stopped while its server did not answer."""
    wishes: dict[tuple[str, str, float | None], dict[str, Job]] = defaultdict(dict)
    for job in jobs:
        wishes[job.server, job.stop_signal, job.stop_grace][job.id] = job
    for (server, signal, grace), together in wishes.items():
        try:
            problems = await stop_on_server(context, server, list(together), signal, grace)
        except JobError as error:
            problems = dict.fromkeys(together, str(error))
        for job_id, job in together.items():
            told = (
                f": {problems[job_id]}"
                if job_id in problems
                else " was stopped now, as asked while the server was away"
            )
            context.report(Notice(server, f"job {job.key}{told}"))


@dataclass
class Seen:
    """What a server says of its jobs, by id.

    Attributes:
        jobs: Also those of machines that share its home; what is not a job is left out.
        unread: Why a job that is there cannot be read just now.
    """

    jobs: dict[str, RemoteJob] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)


async def _ask(context: Context, server: str, ended: Sequence[str]) -> Seen:
    try:
        return await ask_about_jobs(context, server, skip=ended)
    except NotPreparedError:
        return Seen()


async def ask_about_jobs(
    context: Context, server: str, *, ids: Sequence[str] | None = None, skip: Sequence[str] = ()
) -> Seen:
    """Ask a server about these jobs, or about all but some, in as many portions as it answers in."""
    seen = Seen()
    told = set(skip)
    for _ in range(MOST_PORTIONS):
        asked_at = time.time()
        request = {"ids": ids, "skip": list(told)}
        answer = await call_until_answered(context.pool, context.config, server, "status", request)
        if not seen.jobs:
            tell_skew(context, server, answer, asked_at)
        seen.jobs |= _parse_jobs(context, server, answer)
        bad = _named(answer.get("bad"), "name")
        seen.unread |= {name: str(each.get("why"))[:200] for name, each in bad.items() if "errno" in each}
        told |= _named(answer.get("jobs"), "id").keys() | bad.keys()
        if answer.get("more") is not True:
            return seen
    raise JobError(f"{server}: tells of more jobs than anybody has", server=server)


def _named(entries: object, name: str) -> dict[str, Mapping[str, Any]]:
    entries = entries if isinstance(entries, list) else []
    return {str(entry[name]): entry for entry in entries if isinstance(entry, dict) and name in entry}


def _parse_jobs(context: Context, server: str, answer: Mapping[str, Any]) -> dict[str, RemoteJob]:
    found: dict[str, RemoteJob] = {}
    refused = 0
    entries = answer.get("jobs")
    for entry in entries if isinstance(entries, list) else []:
        try:
            remote = parse_job(entry, server, time.time())
        except JobError as error:
            refused += 1
            if refused <= SHOWN_REFUSALS:
                context.report(Notice(server, f"a job record was refused: {error}"))
            continue
        found[remote.job.id] = remote
    if refused > SHOWN_REFUSALS:
        context.report(Notice(server, f"{refused} job records were refused"))
    return found


def _record(context: Context, server: str, known: Sequence[Job], answer: Seen) -> None:
    remote = answer.jobs
    unread = [_astray(job, answer.unread[job.id]) for job in known if job.id in answer.unread]
    unfinished = {job.id: job for job in known if job.id not in answer.unread}
    here = {job_id: each.job for job_id, each in remote.items() if not each.elsewhere}
    foreign = {job_id for job_id, each in remote.items() if _is_of_another(context, server, each)}
    others = here.keys() - foreign - unfinished.keys() - context.registry.ended.keys()
    new = others - context.registry.find(others).keys()
    context.registry.adopt(replace(here[job_id], server=server) for job_id in here if job_id in new)
    seen = [here[job_id] for job_id in unfinished if job_id in here]
    elsewhere = {job_id: each.job.reason for job_id, each in remote.items() if each.elsewhere}
    astray = [_astray(job, elsewhere[job_id]) for job_id, job in unfinished.items() if job_id in elsewhere]
    vanished = [_vanished(job) for job_id, job in unfinished.items() if job_id not in remote]
    context.registry.update([*seen, *astray, *unread, *vanished])


def _is_of_another(context: Context, server: str, remote: RemoteJob) -> bool:
    """Whether another of our servers, which has the same home, ran a job; that one is asked about it."""
    name = remote.job.server
    return remote.ran_elsewhere and name != server and name in context.config.servers


def _astray(job: Job, why: str) -> Job:
    """What a job is that cannot be judged: another machine with the same home has it, or its record is not read now."""
    if job.state is JobState.UNREACHABLE:
        return job
    return replace(job, state=JobState.UNREACHABLE, reason=f"last seen {job.state}; {why}")


def _vanished(job: Job) -> Job:
    """What a job is that its server does not know."""
    now = time.time()
    if job.state is JobState.STARTING:
        if now - job.created_at < START_WINDOW:
            return job
        return replace(job, state=JobState.FAILED, reason="its start never reached the server", ended_at=now)
    return replace(job, state=JobState.LOST, reason="its folder is gone from the server", ended_at=now)


def _as_reachable(job: Job, errors: Mapping[str, RemoteToolError]) -> Job:
    if job.server not in errors or job.state.is_finished or job.state is JobState.UNREACHABLE:
        return job
    age = f", {time.time() - job.seen_at:.0f} s ago" if job.seen_at else ""
    return replace(job, state=JobState.UNREACHABLE, reason=f"last seen {job.state}{age}")
