"""helper-mpi-launch: mpiexec on the first server, and what it wants started on the others over our own connections."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError, RemoteToolError
from remote_tool.jobs.job import DEFAULT_GRACE
from remote_tool.launchers.mpi import MPIEXEC, plan_mpi, proxy_script, read_proxies
from remote_tool.launchers.torch import refuse_one_machine
from remote_tool.workflows.launch import Launcher, launch
from remote_tool.workflows.list_jobs import refresh
from remote_tool.workflows.selection import JobsAnswer
from remote_tool.workflows.start_jobs import start_specs
from remote_tool.workflows.supervisor import call_until_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job, JobSpec
    from remote_tool.launchers.torch import LaunchPlan, LaunchRequest
    from remote_tool.workflows.context import Context

# The server itself waits for less.
PROXIES_SECONDS = 45.0


async def launch_mpi(context: Context, request: LaunchRequest) -> JobsAnswer:
    """Start mpiexec, hear what it wants, and start that; errors as of :func:`launch`."""
    return await launch(context, request, MPI)


async def _start(context: Context, request: LaunchRequest, plan: LaunchPlan, specs: Sequence[JobSpec]) -> JobsAnswer:
    """Start the first node, then what its mpiexec wants on the others; nothing there when that cannot be known."""
    specs = [replace(spec, grace=DEFAULT_GRACE) for spec in specs]
    first = await start_specs(context, specs[:1])
    if first.errors or len(specs) == 1:
        return first
    try:
        proxies = read_proxies(await _ask_for_proxies(context, plan), plan)
    except RemoteToolError as error:
        return replace(first, errors={plan.nodes[0].server: error})
    folder = context.config.remote.jobs_name
    rest = [
        replace(spec, command=proxy_script(proxies[rank], rank, request.command, f"{folder}/{spec.id}"))
        for rank, spec in enumerate(specs[1:], 1)
    ]
    others = await start_specs(context, rest)
    return JobsAnswer((*first.jobs, *others.jobs), others.errors)


MPI = Launcher(refuse_one_machine, plan_mpi, _start, needs_python=False)


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
