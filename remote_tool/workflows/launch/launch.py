"""Launch one program on several servers at once, with a rendezvous address that every node has reached."""

from __future__ import annotations

import asyncio
import os
import posixpath
import random
import secrets
import shlex
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from remote_tool.config.artifacts import wanted_artifacts
from remote_tool.errors import JobError, RemoteToolError, UsageError
from remote_tool.jobs.job import DEFAULT_GRACE, MASTER_TAG, JobSpec, LaunchWatch, new_job_id
from remote_tool.launchers.command import script_file
from remote_tool.launchers.job_request import KeptCode
from remote_tool.launchers.launch_options import format_options
from remote_tool.launchers.plan import Launcher, LaunchNames
from remote_tool.paths import current_folder
from remote_tool.protocol.limits import DEFAULT_LOST_AFTER
from remote_tool.workflows.agent_client import call_until_answered
from remote_tool.workflows.events import Notice
from remote_tool.workflows.git_state import GitState
from remote_tool.workflows.jobs.listing import refresh
from remote_tool.workflows.jobs.stop import stop_on_servers
from remote_tool.workflows.launch.node_facts import ask_facts
from remote_tool.workflows.launch.rendezvous import find_rendezvous
from remote_tool.workflows.selection import JobsAnswer, choose_servers
from remote_tool.workflows.slurm import allocation
from remote_tool.workflows.slurm.scheduler import refuse_options
from remote_tool.workflows.start.free_gpus import ask_free_gpus
from remote_tool.workflows.start.send import bring_files, complete, freeze, is_frozen, send_project
from remote_tool.workflows.start.start_specs import start_specs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.launchers.plan import FirstNode, LaunchPlan, NodeFacts
    from remote_tool.launchers.request import LaunchRequest
    from remote_tool.workflows.context import Context

# Seconds between looks for free GPUs.
GPU_PAUSE = 5.0
# In the reason of a node that found them taken.
NOT_FREE = " free GPU"


async def launch(context: Context, request: LaunchRequest, git: GitState | None = None) -> JobsAnswer:
    """Sync, query, plan, record and start; if one server does not start, stop the others.

    If some servers could not be synced or queried, the answer has their errors, and nothing was started.

    Args:
        context: The command's context.
        request: The program and its options.
        git: The servers' commit, if the project was sent before.

    Raises:
        JobError: The servers are incompatible, or one cannot reach the first; nothing was started.
    """
    answer = await _launch_once(context, request, git)
    while await _shall_retry(context, request, answer):
        again = replace(request, sync=False, from_job="", code=_kept_code(answer.jobs) or request.code)
        answer = await _launch_once(context, again, git_of(answer.jobs[0]))
    return answer


def _kept_code(jobs: Sequence[Job]) -> KeptCode | None:
    """Return the copies of a launch's first try, which another sync does not change; None without."""
    copies, job = {each.server: each.copy for each in jobs}, jobs[0]
    return KeptCode(copies, job.git_commit, job.git_branch, job.git_dirty) if all(copies.values()) else None


def git_of(job: Job) -> GitState | None:
    """Return the commit that a job's servers have; None if unknown."""
    return GitState(job.git_commit, job.git_branch, job.git_dirty) if job.git_commit else None


async def _launch_once(context: Context, request: LaunchRequest, git: GitState | None) -> JobsAnswer:
    launcher = Launcher.named(request.launcher)
    servers = _choose_nodes(context, request)
    request = _with_command_read(context, request, launcher)
    frozen = is_frozen(context.config, request, waits=bool(allocation.login_node(context.config, servers)))
    sent = await send_project(context, servers, wanted=request.sync, overwrite=request.overwrite, frozen=frozen)
    if errors := sent.errors or await bring_files(context, request.from_job, servers, overwrite=request.overwrite):
        return JobsAnswer((), errors, warnings=sent.warnings, answered=servers)
    if errors := await freeze(context, sent, servers) if frozen else {}:
        return JobsAnswer((), errors, warnings=sent.warnings, answered=servers)
    if errors := await _find_gpus(context, request, servers):
        return JobsAnswer((), errors, warnings=sent.warnings, answered=servers)
    facts = await ask_facts(context, request, servers, launcher)
    if facts.errors:
        return JobsAnswer((), facts.errors, warnings=sent.warnings, answered=servers)
    if request.lost_after is None:
        request = replace(request, lost_after=context.config.lost_after)
    plan = await make_plan(context, request, list(facts.values.values()), launcher)
    options = format_options(request, [node.server for node in plan.nodes], context.config.listed)
    artifacts, sent = wanted_artifacts(context.config.artifacts, request.artifacts), replace(sent, git=sent.git or git)
    specs = [
        replace(
            complete(spec, context.config, request, sent),
            artifacts=artifacts,
            gpus=facts.values[spec.server].devices or None,
            waits=False,
            launch_options="" if spec.node_rank else options,
        )
        for spec in make_specs(plan, request)
    ]
    # In Slurm, the nodes ask the first one themselves.
    if launcher.first_node is None or allocation.login_node(context.config, servers):
        started = await start_specs(context, specs)
    else:
        started = await _start_first_node_first(context, launcher.first_node, request, plan, specs)
    return replace(await all_or_none(context, started), warnings=(*sent.warnings, *started.warnings))


async def plan_only(context: Context, request: LaunchRequest) -> LaunchPlan:
    """Query the servers and plan, without starting anything.

    Raises:
        JobError: As for :func:`launch`.
        SomeServersFailedError: Some servers could not be queried.
    """
    launcher = Launcher.named(request.launcher)
    servers = _choose_nodes(context, request)
    request = _with_command_read(context, request, launcher)
    facts = await ask_facts(context, request, servers, launcher)
    facts.raise_if_any_failed()
    return await make_plan(context, request, list(facts.values.values()), launcher)


async def _find_gpus(context: Context, request: LaunchRequest, servers: Sequence[str]) -> Mapping[str, RemoteToolError]:
    """Return why a launch cannot have its GPUs, by server; with ``wait``, wait until it can.

    This reserves nothing: the servers do, when the launch starts.
    """
    last = ""
    while request.gpus and not allocation.login_node(context.config, servers):
        asked = await ask_free_gpus(context, servers)
        problems = {server: gpus.problem(request.gpus) for server, gpus in asked.values.items()}
        errors = {
            server: JobError(f"{server}: {text}; nothing was started", server=server)
            for server, text in problems.items()
            if text
        }
        can_never = any(gpus.total < request.gpus for gpus in asked.values.values())
        if asked.errors or can_never or not errors or not request.wait:
            return {**errors, **asked.errors}
        text = "; ".join(f"{server}: {problem}" for server, problem in problems.items() if problem)
        if text != last:
            context.report(Notice("", f"the launch waits: {text}"))
            last = text
        await _pause_for_gpus()
    return {}


async def _shall_retry(context: Context, request: LaunchRequest, answer: JobsAnswer) -> bool:
    """Return whether a launch that did not start should be tried again: another job was quicker to take GPUs."""
    failed = [job for job in answer.jobs if job.never_began and job.gpu_count]
    if not request.wait or not any(NOT_FREE in job.reason for job in failed):
        return False
    context.report(Notice("", "another job has taken GPUs of the launch meanwhile; trying again"))
    await _pause_for_gpus()
    return True


async def _pause_for_gpus() -> None:
    # Two launches that want the same servers must not meet again.
    await asyncio.sleep(GPU_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, guards nothing


async def _start_first_node_first(
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


def _choose_nodes(context: Context, request: LaunchRequest) -> tuple[str, ...]:
    """Return the servers of a launch by node rank: the first ones, if a number is given; of a cluster its login node.

    Raises:
        UsageError: There are fewer.
    """
    servers = choose_servers(context.config, request.servers)
    if login := allocation.login_node(context.config, servers):
        refuse_options(context.config, [login], {"--devices": request.devices, "--wait": request.wait})
        return (login,)
    if request.nnodes is not None and request.nnodes > len(servers):
        raise UsageError(
            f"--nnodes {request.nnodes} needs as many servers, and there are {len(servers)}: {', '.join(servers)}",
            hint=f"--nnodes {len(servers)}; each server is one node",
        )
    return servers[: request.nnodes]


def _with_command_read(context: Context, request: LaunchRequest, launcher: Launcher) -> LaunchRequest:
    line = launcher.read_command(request.command)
    for note in line.notes:
        context.report(Notice("", note))
    workdir = posixpath.normpath(posixpath.join(context.config.workdir_for(request.workdir), line.folder))
    read = replace(request, command=line.text, workdir="" if workdir == "." else workdir)
    if read.code is None:
        find_script(context, read.command, read.workdir)
    return read


async def make_plan(
    context: Context, request: LaunchRequest, facts: Sequence[NodeFacts], launcher: Launcher
) -> LaunchPlan:
    """Have every server connect to the first, then plan."""
    if allocation.login_node(context.config, [node.server for node in facts]):
        facts = allocation.node_facts(context.config, request, facts[0])
        rendezvous = allocation.rendezvous(facts, request.master_port)
    else:
        rendezvous = await find_rendezvous(context, request, facts)
    launcher.check(facts)
    names = LaunchNames(new_job_id(), tuple(new_job_id() for _ in facts), context.config.remote.jobs_name)
    return launcher.plan(request, facts, rendezvous, names)


async def all_or_none(context: Context, answer: JobsAnswer) -> JobsAnswer:
    """If one node did not start, stop those that did; the answer has an error for each other one."""
    # A short command may have ended before a slow answer arrived.
    never_began = [job for job in answer.jobs if job.never_began]
    failed = {job.server: job for job in answer.jobs if job.server in answer.errors or job in never_began}
    if not failed:
        return answer
    for server, job in failed.items():
        context.report(Notice(server, f"node {job.node_rank} did not start; stopping the rest of the launch"))
    reasons = {server: JobError(f"{server}: {job.reason}", server=server) for server, job in failed.items()}
    stopped = await stop_on_servers(context, [job for job in answer.jobs if not job.state.is_finished])
    current = context.registry.find([job.id for job in answer.jobs])
    jobs = tuple(current.get(job.id, job) for job in answer.jobs)
    return JobsAnswer(jobs, {**reasons, **stopped.errors, **answer.errors})


def make_specs(plan: LaunchPlan, request: LaunchRequest) -> list[JobSpec]:
    """Return the jobs of a plan; the first node's is the master."""
    launcher = Launcher.named(request.launcher)
    watch = _make_watch(plan, request, launcher)
    return [
        JobSpec(
            id=node.job_id,
            server=allocation.server_of(node.server),
            command=node.defaults + node.command,
            environment=node.environment,
            tags=request.tags if node.node_rank else (*request.tags, MASTER_TAG),
            launch_id=plan.launch_id,
            node_rank=node.node_rank,
            grace=DEFAULT_GRACE if launcher.grace is None else launcher.grace,
            rank_offset=node.rank_offset,
            watch=watch,
        )
        for node in plan.nodes
    ]


def _make_watch(plan: LaunchPlan, request: LaunchRequest, launcher: Launcher) -> LaunchWatch | None:
    if len(plan.nodes) == 1:
        return None
    return LaunchWatch(
        servers=tuple(node.server for node in plan.nodes),
        address=plan.rendezvous.address,
        port=plan.rendezvous.watch_port,
        secret=secrets.token_hex(32),
        lost_after=DEFAULT_LOST_AFTER if request.lost_after is None else request.lost_after,
        goes_on_without_workers=launcher.goes_on_without_workers,
    )


def find_script(context: Context, command: str, workdir: str | None = None) -> None:
    """Refuse a command whose first word is a script missing from the working folder.

    Raises:
        UsageError: It is missing.
    """
    file = script_file(command)
    root = context.config.local.root
    folder = root / context.config.workdir_for(workdir)
    if file is None or any((each / file).is_file() for each in (folder, folder / "src")):
        return
    elsewhere = next((each for each in (root, *sorted(root.glob("[!.]*/"))) if (each / file).is_file()), None)
    near = get_close_matches(file, [each.name for each in folder.glob("*.py")], n=1)
    if elsewhere is not None:
        hint = f"--workdir {shlex.quote(os.path.relpath(elsewhere, current_folder()))} starts in its folder"
    elif near:
        hint = f"Did you mean {near[0]}?"
    else:
        hint = "--cmd takes a path relative to the working folder, e.g. train.py"
    raise UsageError(f"{file} is not in {folder}", hint=hint)
