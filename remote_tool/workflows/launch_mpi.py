"""helper-mpi-launch: mpiexec on the first server, and what it wants started on the others over our own connections."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.artifacts import wanted_artifacts
from remote_tool.errors import JobError, RemoteToolError
from remote_tool.jobs.job import DEFAULT_GRACE, new_job_id
from remote_tool.launchers.mpi import MPIEXEC, plan_mpi, proxy_script, read_proxies
from remote_tool.launchers.torch import LaunchNames
from remote_tool.workflows.launch import (
    all_or_none,
    ask_facts,
    find_rendezvous,
    find_script,
    make_specs,
)
from remote_tool.workflows.list_jobs import refresh
from remote_tool.workflows.selection import JobsAnswer, choose_servers
from remote_tool.workflows.start_jobs import send_project, start_specs
from remote_tool.workflows.stop_jobs import stop_on_servers
from remote_tool.workflows.supervisor import call_until_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job, JobSpec
    from remote_tool.launchers.torch import LaunchPlan, LaunchRequest
    from remote_tool.workflows.context import Context

# The server itself waits for less.
PROXIES_SECONDS = 45.0


async def launch_mpi(context: Context, request: LaunchRequest) -> JobsAnswer:
    """Send, ask, plan, start mpiexec, hear what it wants, and start that; when one does not start, stop all.

    Raises:
        JobError: A server cannot reach the first, or the first has no mpiexec; nothing is left running.
        SomeServersFailedError: Some servers could not be asked; nothing was started.
    """
    servers = choose_servers(context.config, request.servers)
    find_script(context, request.command)
    sent = await send_project(context, servers, wanted=request.sync)
    JobsAnswer((), sent.errors).raise_if_any_failed()
    plan = await make_mpi_plan(context, request, servers)
    made = make_specs(plan, request, sent.snapshots, wanted_artifacts(context.config, request.artifacts))
    specs = [replace(spec, grace=DEFAULT_GRACE) for spec in made]
    first = await start_specs(context, specs[:1])
    first.raise_if_any_failed()
    rest = await _start_others(context, plan, specs[1:], request.command)
    answer = await all_or_none(context, JobsAnswer((*first.jobs, *rest.jobs), rest.errors))
    return replace(answer, warnings=sent.warnings)


async def plan_launch_mpi(context: Context, request: LaunchRequest) -> LaunchPlan:
    """Ask the servers and plan, and start nothing."""
    servers = choose_servers(context.config, request.servers)
    find_script(context, request.command)
    return await make_mpi_plan(context, request, servers)


async def make_mpi_plan(context: Context, request: LaunchRequest, servers: Sequence[str]) -> LaunchPlan:
    """Ask every server what it is and how it reaches the first, then plan."""
    facts = await ask_facts(context, request, servers)
    rendezvous = await find_rendezvous(context, request, facts)
    names = LaunchNames(new_job_id(), tuple(new_job_id() for _ in facts), context.config.remote.jobs_name)
    return plan_mpi(request, facts, rendezvous, names)


async def _start_others(context: Context, plan: LaunchPlan, specs: Sequence[JobSpec], command: str) -> JobsAnswer:
    """Start what the first node's mpiexec wants; stop it when that cannot be known."""
    if not specs:
        return JobsAnswer(())
    try:
        proxies = read_proxies(await _ask_for_proxies(context, plan), plan)
    except RemoteToolError:
        await stop_on_servers(context, list(context.registry.find([plan.nodes[0].job_id]).values()))
        raise
    folder = context.config.remote.jobs_name
    ready = []
    for rank, spec in enumerate(specs, 1):
        ready.append(replace(spec, command=proxy_script(proxies[rank], rank, command, f"{folder}/{spec.id}")))
    return await start_specs(context, ready)


async def _ask_for_proxies(context: Context, plan: LaunchPlan) -> Any:  # noqa: ANN401 - of a server, checked by the caller
    first = plan.nodes[0]
    request = {"id": first.job_id}
    answer = await call_until_answered(
        context.pool, context.config, first.server, "proxies", request, within=PROXIES_SECONDS
    )
    if answer.get("proxies") is not None:
        return answer["proxies"]
    job = await _look_at(context, first.server, first.job_id)
    how = f"ended with exit code {job.exit_code}" if job.exit_code is not None else job.reason or "did not begin"
    raise JobError(
        f"{first.server}: {MPIEXEC} {how}, before it said what the other servers are to start",
        hint=f"remote-tool job-tail --job {job.key}; it needs MPICH: remote-tool run --cmd '{MPIEXEC} --version'",
        server=first.server,
    )


async def _look_at(context: Context, server: str, job_id: str) -> Job:
    await refresh(context, [server])
    return context.registry.find([job_id])[job_id]
