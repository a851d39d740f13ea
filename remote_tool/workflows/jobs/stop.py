"""job-kill: stop all processes of jobs, first with SIGTERM, then with SIGKILL."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.errors import ConnectError, JobError, UsageError
from remote_tool.jobs.job import JobState
from remote_tool.protocol.limits import LONGEST_GRACE
from remote_tool.protocol.records import is_grace
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import NoAnswerError, NotPreparedError, SupervisorMissingError
from remote_tool.workflows.events import Notice
from remote_tool.workflows.jobs.listing import load_matching, recorded_jobs, refresh, servers_of_jobs
from remote_tool.workflows.selection import JobsAnswer, JobSelection, choose_jobs
from remote_tool.workflows.status.pending_stops import stop_on_server
from remote_tool.workflows.status.query import ask_about_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

SHOWN_PROBLEMS = 20
# Errors of a server on which the jobs may still be running.
UNANSWERED = (ConnectError, NoAnswerError, NotPreparedError, SupervisorMissingError)


async def stop_jobs(
    context: Context, selection: JobSelection, *, signal: str = "SIGTERM", grace: float | None = None
) -> JobsAnswer:
    """Stop the selected jobs on all servers in parallel; return them as they are then.

    Args:
        context: The command's context.
        selection: The jobs; it must not be empty, as nothing is stopped by default.
        signal: The first signal; SIGKILL stops at once.
        grace: Seconds until SIGKILL; None: that of the job, 45 for torchrun.

    Raises:
        UsageError: Nothing is selected or exists, or the signal or grace period is invalid.
    """
    check_stop(signal, grace)
    if not selection.is_explicit:
        raise UsageError("No job is selected; nothing was stopped", hint="remote-tool job-kill KEY")
    already_requested = _with_pending_stop(context, selection)
    servers = servers_of_jobs(context, selection)
    recorded = _choose_recorded(context, selection)
    errors = await refresh(context, servers, stays={job.id for job in recorded})
    jobs = choose_jobs(load_matching(context, selection)[0], selection)
    jobs += await _successors(context, recorded, jobs)
    if not jobs and not already_requested:
        raise UsageError("No running job is selected; nothing was stopped", hint="remote-tool job-list")
    unreachable = {name for name, error in errors.items() if isinstance(error, ConnectError)}
    reachable = [job for job in jobs if job.server not in unreachable]
    stopped = await stop_on_servers(context, reachable, signal=signal, grace=grace)
    record_pending_stops(context, [job for job in jobs if job.server in unreachable], signal, grace)
    ids = dict.fromkeys((*(job.id for job in jobs), *sorted(already_requested)))
    chosen = replace(selection, jobs=(*ids,), running=True, stopped=True)
    relevant = {name: error for name, error in errors.items() if any(job.server == name for job in jobs)}
    return recorded_jobs(context, chosen, {**relevant, **stopped.errors})


def _choose_recorded(context: Context, selection: JobSelection) -> list[Job]:
    """Return the jobs to stop, as recorded before servers are asked; none if a job is unknown here."""
    with suppress(UsageError):
        return choose_jobs(load_matching(context, selection)[0], selection)
    return []


async def _successors(context: Context, before: Sequence[Job], jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs on other servers to which jobs of the selection were moved.

    A move that was interrupted is completed first: only then can the job be stopped for good.
    """
    now = context.registry.find([job.id for job in (*before, *jobs)])
    interrupted = [
        now[job.id] for job in before if job.state is JobState.QUEUED and job.id in now and now[job.id].moved_as
    ]
    if interrupted:
        from remote_tool.workflows.start.put_back import put_back  # noqa: PLC0415 - seldom needed

        await put_back(context, interrupted)
    found = context.registry.find([job.moved_as for job in now.values() if job.moved_as]).values()
    known = {job.id for job in jobs}
    return [job for job in found if not job.state.is_finished and job.id not in known]


def _with_pending_stop(context: Context, selection: JobSelection) -> set[str]:
    """Return the ids of selected jobs with a pending stop, which a query of their servers carries out."""
    if selection.jobs:
        return set()
    return {job.id for job in choose_jobs(load_matching(context, selection)[0], selection) if job.stop_signal}


def check_stop(signal: str, grace: float | None) -> None:
    """Check the options of a stop.

    Raises:
        UsageError: The signal or the grace period is invalid.
    """
    if not forms.SIGNAL.accepts(signal):
        raise UsageError(f"Unknown signal {signal!r}", hint="SIGTERM or SIGKILL")
    if grace is not None and not is_grace(grace):
        raise UsageError(f"--grace must be from 0 to {LONGEST_GRACE} seconds, found {grace}")


async def stop_on_servers(
    context: Context, jobs: Sequence[Job], *, signal: str = "SIGTERM", grace: float | None = None
) -> JobsAnswer:
    """Stop jobs on all servers in parallel."""
    by_server: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        # A lost job without a supervisor may still have processes.
        if not job.state.is_finished or job.state is JobState.LOST:
            by_server[job.server].append(job)

    async def stop(server: str) -> None:
        await _stop_on(context, server, by_server[server], signal, grace)

    configured = [name for name in by_server if name in context.config.servers]
    results = await on_every(configured, stop)
    unanswered = [name for name, error in results.errors.items() if isinstance(error, UNANSWERED)]
    # The error of a server that is not prepared says when its jobs will be stopped.
    unprepared = [name for name in unanswered if isinstance(results.errors[name], NotPreparedError)]
    _mark_stops(context, [job for name in unprepared for job in by_server[name]], signal, grace)
    unreachable = [name for name in unanswered if name not in unprepared]
    record_pending_stops(context, [job for name in unreachable for job in by_server[name]], signal, grace)
    not_configured = {
        name: JobError(
            f"{name} is no longer in the configuration, so its jobs cannot be stopped",
            hint=f"Add {name} to servers: in .remote/configs.yaml again, then job-kill again",
            server=name,
        )
        for name in by_server
        if name not in context.config.servers
    }
    return JobsAnswer((), {**results.errors, **not_configured})


def record_pending_stops(
    context: Context, jobs: Sequence[Job], signal: str = "SIGTERM", grace: float | None = None
) -> None:
    """Record and report stops that are carried out when the server answers again."""
    _mark_stops(context, jobs, signal, grace)
    for job in jobs:
        when = "the server has it" if job.state is JobState.STARTING else "the server answers again"
        context.report(Notice(job.server, f"job {job.key} will be stopped when {when}"))


def _mark_stops(context: Context, jobs: Sequence[Job], signal: str, grace: float | None) -> None:
    def mark_stop(known: Job) -> Job:
        return known if known.state.is_final else replace(known, stop_signal=signal, stop_grace=grace)

    context.registry.revise((job.id, mark_stop) for job in jobs)


async def _stop_on(context: Context, server: str, jobs: Sequence[Job], signal: str, grace: float | None) -> None:
    ids = [job.id for job in jobs]
    problems, unknown, _ = await stop_on_server(context, server, ids, signal, grace)
    answer = await ask_about_jobs(context, server, ids=ids)
    await context.may_write()
    found = answer.jobs.values()
    context.registry.update([remote.job for remote in found if remote.job.id in ids and not remote.elsewhere])
    # A start that is still under way is stopped when it has arrived.
    record_pending_stops(
        context, [job for job in jobs if job.id in problems and job.state is JobState.STARTING], signal, grace
    )
    if problems:
        keys = {job.id: f"job {job.key}" for job in jobs}
        raise JobError(
            "; ".join(f"{keys[job_id]}: {problem}" for job_id, problem in list(problems.items())[:SHOWN_PROBLEMS]),
            server=server,
            hint=next(iter(unknown.values()), f"remote-tool run --server {server} --cmd 'ps aux'"),
        )
