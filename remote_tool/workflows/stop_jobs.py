"""job-kill: every process of a job, politely, then hard."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.errors import ConnectError, JobError, UsageError
from remote_tool.jobs.job import JobState
from remote_tool.supervisor.records import LONGEST_GRACE, is_grace, is_signal
from remote_tool.transport.pool import on_every
from remote_tool.workflows.events import Notice
from remote_tool.workflows.list_jobs import (
    ask_about_jobs,
    load_meant,
    recorded_jobs,
    refresh,
    servers_of_jobs,
)
from remote_tool.workflows.selection import JobsAnswer, JobSelection, choose_jobs
from remote_tool.workflows.stopping import stop_on_server
from remote_tool.workflows.supervisor import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

SHOWN_PROBLEMS = 20


async def stop_jobs(
    context: Context, selection: JobSelection, *, signal: str = "SIGTERM", grace: float | None = None
) -> JobsAnswer:
    """Stop the selected jobs, all servers at once; return them as they are then.

    Args:
        context: Of this command.
        selection: Something must select: nothing is ever stopped by default.
        signal: The first signal; SIGKILL stops at once.
        grace: Seconds until SIGKILL; None: as the job was started with, 45 for torchrun.

    Raises:
        UsageError: Nothing is selected, what is selected does not exist, or no job can be stopped like that.
    """
    check_wish(signal, grace)
    if not selection.is_explicit:
        raise UsageError("Nothing is selected, so nothing is stopped", hint="remote-tool job-kill --job KEY")
    errors = await refresh(context, servers_of_jobs(context, selection))
    jobs = choose_jobs(load_meant(context, selection)[0], selection)
    if not jobs:
        raise UsageError("No running job is selected, so nothing is stopped", hint="remote-tool job-list")
    away = {name for name, error in errors.items() if isinstance(error, ConnectError)}
    reachable = [job for job in jobs if job.server not in away]
    stopped = await stop_on_servers(context, reachable, signal=signal, grace=grace)
    wish_for_later(context, [job for job in jobs if job.server in away], signal, grace)
    chosen = replace(selection, jobs=tuple(job.id for job in jobs), running=True, stopped=True)
    relevant = {name: error for name, error in errors.items() if any(job.server == name for job in jobs)}
    return recorded_jobs(context, chosen, {**relevant, **stopped.errors})


def check_wish(signal: str, grace: float | None) -> None:
    """Refuse what no server would take, before it is remembered for one that is away.

    Raises:
        UsageError: It is no signal, or no time to end.
    """
    if not is_signal(signal):
        raise UsageError(f"There is no signal {signal!r}", hint="SIGTERM or SIGKILL")
    if grace is not None and not is_grace(grace):
        raise UsageError(f"The grace must be from 0 to {LONGEST_GRACE} seconds, found {grace}")


async def stop_on_servers(
    context: Context, jobs: Sequence[Job], *, signal: str = "SIGTERM", grace: float | None = None
) -> JobsAnswer:
    """Stop these jobs; a server that fails stops no other from being asked."""
    by_server: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        # Of a lost job, whose supervisor is gone, processes may still run.
        if not job.state.is_finished or job.state is JobState.LOST:
            by_server[job.server].append(job)

    async def stop(server: str) -> None:
        await _stop_on(context, server, by_server[server], signal, grace)

    configured = [name for name in by_server if name in context.config.servers]
    results = await on_every(configured, stop)
    unanswered = [name for name, error in results.errors.items() if isinstance(error, ConnectError | NoAnswerError)]
    wish_for_later(context, [job for name in unanswered for job in by_server[name]], signal, grace)
    gone = {
        name: JobError(f"{name} is no longer in the configuration, so its jobs cannot be stopped", server=name)
        for name in by_server
        if name not in context.config.servers
    }
    return JobsAnswer((), {**results.errors, **gone})


def wish_for_later(context: Context, jobs: Sequence[Job], signal: str = "SIGTERM", grace: float | None = None) -> None:
    """Remember what could not be stopped now: it is stopped when its server is asked the next time."""
    context.registry.update(replace(job, stop_signal=signal, stop_grace=grace) for job in jobs)
    for job in jobs:
        context.report(Notice(job.server, f"job {job.key} is stopped when the server answers again"))


async def _stop_on(context: Context, server: str, jobs: Sequence[Job], signal: str, grace: float | None) -> None:
    ids = [job.id for job in jobs]
    problems = await stop_on_server(context, server, ids, signal, grace)
    seen = (await ask_about_jobs(context, server, ids=ids)).jobs.values()
    context.registry.update([remote.job for remote in seen if remote.job.id in ids and not remote.elsewhere])
    if problems:
        raise JobError(
            "; ".join(f"{job_id}: {problem}" for job_id, problem in list(problems.items())[:SHOWN_PROBLEMS]),
            server=server,
            hint=f"remote-tool run --server {server} --cmd 'ps aux'",
        )
