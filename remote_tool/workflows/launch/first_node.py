"""Start a launch whose first node determines the others' commands, such as mpiexec."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError, RemoteToolError
from remote_tool.workflows.agent_client import call_until_answered
from remote_tool.workflows.jobs.listing import refresh
from remote_tool.workflows.selection import JobsAnswer
from remote_tool.workflows.start.start_specs import start_specs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job, JobSpec
    from remote_tool.launchers.plan import FirstNode, LaunchPlan
    from remote_tool.launchers.request import LaunchRequest
    from remote_tool.workflows.context import Context


async def start_first_node_first(
    context: Context, first_node: FirstNode, request: LaunchRequest, plan: LaunchPlan, specs: Sequence[JobSpec]
) -> JobsAnswer:
    """Start the first node, then its proxies on the others; none if they cannot be determined."""
    first = await start_specs(context, specs[:1])
    if first.errors or len(specs) == 1:
        return first
    try:
        answer = await _ask_first_node(context, first_node, plan, first.jobs[0])
        commands = first_node.commands(answer, request, plan, context.config.remote.jobs_name)
    except RemoteToolError as error:
        return replace(first, errors={plan.nodes[0].server: error})
    others = await start_specs(
        context, [replace(spec, command=commands[rank]) for rank, spec in enumerate(specs[1:], 1)]
    )
    return JobsAnswer((*first.jobs, *others.jobs), others.errors, warnings=(*first.warnings, *others.warnings))


async def _ask_first_node(context: Context, first_node: FirstNode, plan: LaunchPlan, started: Job) -> Any:  # noqa: ANN401 - of a server, checked by the launcher
    server, job_id = plan.nodes[0].server, plan.nodes[0].job_id
    answer = await call_until_answered(
        context.pool, context.config, server, first_node.operation, {"id": job_id}, within=first_node.seconds
    )
    if answer.get(first_node.operation) is not None:
        return answer[first_node.operation]
    await refresh(context, [server])
    # Its record may have become unreadable.
    job = context.registry.find([job_id]).get(job_id, started)
    how = f"ended with exit code {job.exit_code}" if job.exit_code is not None else job.reason or "did not start"
    raise JobError(
        f"{server}: {first_node.program} {how} before it listed the commands for the other servers",
        hint=f"remote-tool job-tail {job.key}; {first_node.hint}",
        server=server,
    )
