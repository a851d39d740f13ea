"""Launch one program on several servers at once, with a rendezvous address that every node has reached."""

from __future__ import annotations

import os
import posixpath
import secrets
import shlex
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from remote_tool.config.artifacts import wanted_artifacts
from remote_tool.errors import JobError, UsageError
from remote_tool.jobs.job import DEFAULT_GRACE, MASTER_TAG, JobSpec, LaunchWatch, new_job_id
from remote_tool.launchers.command import script_file
from remote_tool.launchers.job_request import KeptCode
from remote_tool.launchers.launch_options import format_options
from remote_tool.launchers.plan import Launcher, LaunchNames
from remote_tool.paths import current_folder
from remote_tool.protocol.limits import DEFAULT_LOST_AFTER
from remote_tool.workflows.events import Notice
from remote_tool.workflows.git_state import GitState
from remote_tool.workflows.jobs.stop import stop_on_servers
from remote_tool.workflows.launch.first_node import start_first_node_first
from remote_tool.workflows.launch.gpus import find_gpus, shall_retry
from remote_tool.workflows.launch.node_facts import ask_facts
from remote_tool.workflows.launch.rendezvous import find_rendezvous
from remote_tool.workflows.selection import JobsAnswer, choose_servers
from remote_tool.workflows.start.send import bring_files, complete, freeze, is_frozen, send_project
from remote_tool.workflows.start.start_specs import start_specs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.launchers.plan import LaunchPlan, NodeFacts
    from remote_tool.launchers.request import LaunchRequest
    from remote_tool.workflows.context import Context


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
    while await shall_retry(context, request, answer):
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
    frozen = is_frozen(context.config, request)
    sent = await send_project(context, servers, wanted=request.sync, overwrite=request.overwrite, frozen=frozen)
    if errors := sent.errors or await bring_files(context, request.from_job, servers, overwrite=request.overwrite):
        return JobsAnswer((), errors, warnings=sent.warnings, answered=servers)
    if errors := await freeze(context, sent, servers) if frozen else {}:
        return JobsAnswer((), errors, warnings=sent.warnings, answered=servers)
    if errors := await find_gpus(context, request, servers):
        return JobsAnswer((), errors, warnings=sent.warnings, answered=servers)
    facts = await ask_facts(context, request, servers, needs_python=launcher.needs_python)
    if facts.errors:
        return JobsAnswer((), facts.errors, warnings=sent.warnings, answered=servers)
    options = format_options(request, servers, context.config.listed)
    if request.lost_after is None:
        request = replace(request, lost_after=context.config.lost_after)
    plan = await make_plan(context, request, list(facts.values.values()), launcher)
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
    if launcher.first_node is None:
        started = await start_specs(context, specs)
    else:
        started = await start_first_node_first(context, launcher.first_node, request, plan, specs)
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
    facts = await ask_facts(context, request, servers, needs_python=launcher.needs_python)
    facts.raise_if_any_failed()
    return await make_plan(context, request, list(facts.values.values()), launcher)


def _choose_nodes(context: Context, request: LaunchRequest) -> tuple[str, ...]:
    """Return the servers of a launch by node rank: the first ones, if a number is given.

    Raises:
        UsageError: There are fewer.
    """
    servers = choose_servers(context.config, request.servers)
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
    launcher.check(facts)
    rendezvous = await find_rendezvous(context, request, facts)
    names = LaunchNames(new_job_id(), tuple(new_job_id() for _ in facts), context.config.remote.jobs_name)
    return launcher.plan(request, facts, rendezvous, names)


async def all_or_none(context: Context, answer: JobsAnswer) -> JobsAnswer:
    """If one node did not start, stop those that did; the answer has an error for each other one."""
    # A short command may have ended before a slow answer arrived.
    never_began = [job for job in answer.jobs if job.state.is_finished and job.started_at is None]
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
    watch, grace = _make_watch(plan, request), Launcher.named(request.launcher).grace
    return [
        JobSpec(
            id=node.job_id,
            server=node.server,
            command=node.defaults + node.command,
            environment=node.environment,
            tags=request.tags if node.node_rank else (*request.tags, MASTER_TAG),
            launch_id=plan.launch_id,
            node_rank=node.node_rank,
            grace=DEFAULT_GRACE if grace is None else grace,
            rank_offset=node.rank_offset,
            watch=watch,
        )
        for node in plan.nodes
    ]


def _make_watch(plan: LaunchPlan, request: LaunchRequest) -> LaunchWatch | None:
    if len(plan.nodes) == 1:
        return None
    return LaunchWatch(
        servers=tuple(node.server for node in plan.nodes),
        address=plan.rendezvous.address,
        port=plan.rendezvous.watch_port,
        secret=secrets.token_hex(32),
        lost_after=DEFAULT_LOST_AFTER if request.lost_after is None else request.lost_after,
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
