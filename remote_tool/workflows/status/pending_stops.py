"""Ask a server to stop jobs, and report those that do not end."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from remote_tool.errors import ConnectionLostError, JobError
from remote_tool.jobs.job import JobState
from remote_tool.protocol.limits import LONGEST_GRACE
from remote_tool.readable import counted
from remote_tool.workflows.agent_client import NotPreparedError
from remote_tool.workflows.events import Notice
from remote_tool.workflows.slurm.scheduler import ask_for_jobs
from remote_tool.workflows.status.link_news import LinkNews

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

# Time for the server beyond the grace period: SIGKILL, the scan that proves it, and writing the end.
STOP_MARGIN = 30.0
SHOWN_PIDS = 20
MOST_NAMED = 5
REQUESTED = "as requested while the server was unreachable"


class Stops(NamedTuple):
    """Results of stopping jobs, by id.

    Attributes:
        problems: Why some have not ended.
        unknown: What to do about jobs of which the server has no folder and no processes.
        ended: How others had ended before.
    """

    problems: dict[str, str]
    unknown: dict[str, str]
    ended: dict[str, str]


async def stop_on_server(context: Context, server: str, ids: Sequence[str], signal: str, grace: float | None) -> Stops:
    """Stop a server's jobs with one request.

    Jobs without a folder are recorded as lost: their processes were found by their marks and ended.

    Raises:
        JobError: The server cannot do it, or does not answer in time.
        NotPreparedError: The server no longer has our program, which could end them.
        ConnectError: The server cannot be reached.
    """
    request = {"ids": list(ids), "signal": signal, "grace": grace}
    within = longest_stop(grace)
    news, host = LinkNews(context, server), None
    try:
        with news.waiting(), suppress(ConnectionLostError):
            host = await context.pool.host(server)
        async with news.watching(host) if host is not None else nullcontext():
            with context.pool.announcing(server, f"still waiting for {_named(context, ids)} to end"):
                answer = await ask_for_jobs(context.pool, context.config, server, "stop", request, within=within)
    except NotPreparedError as error:
        waiting = unprepared(error, "its jobs will be stopped when it is again", "job-kill")
        hint = f"{waiting.hint}; if hostname: of {server} has changed in .remote/configs.yaml, set it back first"
        raise NotPreparedError(waiting.message, hint=hint, server=server) from error
    entries = answer.get("jobs")
    told = (
        {str(each.get("id")): each for each in entries if isinstance(each, dict)} if isinstance(entries, list) else {}
    )
    known = context.registry.find(ids)
    gone = [job.id for job in known.values() if _has_gone(job, told.get(job.id, {}))]
    context.registry.revise((job_id, become_lost) for job_id in gone)
    problems = {job_id: problem for job_id in ids if job_id not in gone and (problem := _problem(told.get(job_id)))}
    unknown = {
        job_id: f"If hostname: of {server} has changed in .remote/configs.yaml, set it back; "
        f"remote-tool clean --job {known[job_id].key} forgets the job"
        for job_id in problems
        if job_id in known and told.get(job_id, {}).get("folder_gone") is True and told[job_id].get("error")
    }
    ended = {job_id: str(told[job_id]["state"]) for job_id in ids if job_id in told and _had_ended(told[job_id])}
    return Stops(problems, unknown, ended)


def _named(context: Context, ids: Sequence[str]) -> str:
    keys = [str(key) for key in sorted(job.key for job in context.registry.find(ids).values())]
    if not 0 < len(keys) <= MOST_NAMED:
        return counted(len(ids), "job")
    return f"job {keys[0]}" if len(keys) == 1 else f"jobs {', '.join(keys)}"


async def stop_as_requested(context: Context, jobs: Sequence[Job]) -> None:
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


def _has_gone(job: Job, entry: dict[str, object]) -> bool:
    """Return whether nothing is left of a job: its folder is gone, and its processes have ended."""
    is_clean = job.state is JobState.LOST if entry.get("error") else not entry.get("left")
    return entry.get("folder_gone") is True and is_clean


def become_lost(known: Job) -> Job:
    """Return a job whose processes were ended without its folder; a record of its end may yet be found."""
    if known.state.is_final:
        return known
    now = time.time()
    reason = "its folder is gone from the server; its processes were ended"
    return replace(
        known, state=JobState.LOST, reason=reason, ended_at=now, seen_at=now, processes_left=0, stop_signal=""
    )


def unprepared(error: NotPreparedError, consequence: str, command: str) -> NotPreparedError:
    """Return the error with its consequence for a command that looks for processes."""
    hint = f"{error.hint}, then {command} again"
    return NotPreparedError(f"{error.message}, so {consequence}", hint=hint, server=error.server)


def longest_stop(grace: float | None) -> float:
    """Return the longest time for stopping jobs; the server knows each one's grace period, at most 45 s by default."""
    return (60.0 if grace is None else min(grace, LONGEST_GRACE)) + STOP_MARGIN


def _had_ended(entry: dict[str, object]) -> bool:
    # The answer to an earlier try was lost, so it was this stop that ended the job.
    return entry.get("already") is True and entry.get("state") in {"succeeded", "failed", "lost"}


def _problem(entry: dict[str, object] | None) -> str:
    if entry is None:
        return "the server did not say what happened to it"
    if entry.get("error"):
        return str(entry["error"])
    if isinstance(left := entry.get("left"), list) and left:
        return f"some of its processes cannot be killed: {', '.join(str(pid) for pid in left[:SHOWN_PIDS])}"
    return ""
