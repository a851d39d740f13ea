"""Start again what the records of jobs say: the request for it, from the records and this command's environment.

The values of variables are on no disk, so they come from the caller, from the environment of this program or from the
configuration.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import RemoteToolError, UsageError
from remote_tool.jobs.job import MASTER_TAG, Job, own_start
from remote_tool.launchers.job_request import KeptCode
from remote_tool.launchers.launch_options import read_options
from remote_tool.launchers.request import LaunchRequest
from remote_tool.protocol.records import COMMAND_LIMIT
from remote_tool.readable import counted
from remote_tool.workflows.events import Notice
from remote_tool.workflows.jobs.listing import list_jobs
from remote_tool.workflows.launch.launch import launch
from remote_tool.workflows.selection import JobsAnswer, JobSelection, choose_servers, find_job
from remote_tool.workflows.slurm.scheduler import is_scheduled
from remote_tool.workflows.start.kept_code import find_kept_code, report_code, report_kept_code
from remote_tool.workflows.start.put_back import id_when_put_back
from remote_tool.workflows.start.send import option_names
from remote_tool.workflows.start.start import StartRequest, start_jobs
from remote_tool.workflows.status.query import ask_about_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.launchers.launch_options import RecordedLaunch
    from remote_tool.workflows.context import Context

    Request = StartRequest | LaunchRequest

# Every environment has these, and they describe this machine, not the job.
OF_THIS_MACHINE = frozenset(
    {"HOME", "PATH", "PWD", "SHELL", "USER", "LOGNAME", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH"}
)
# We set variables with these beginnings.
_OURS = ("REMOTE_TOOL_", "CUDA_")
# Options that a repeated job has in its own way.
_OWN_OPTIONS = {"gpus", "after", "rerun_of", "max_duration", "stop_if_idle", "retries"}


@dataclass(frozen=True)
class RerunChanges:
    """How a rerun differs from the record.

    Attributes:
        command: Instead of the recorded one; None: as recorded.
        servers: Instead of the recorded ones; empty: as recorded.
        environment: Values of variables, also of new ones.
        current_code: Run the current code, even if the servers have kept a copy of what the jobs ran.
        kept_code: Run that copy, or start nothing.
    """

    command: str | None = None
    servers: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    current_code: bool = False
    kept_code: bool = False


async def requests_to_requeue(context: Context, words: Sequence[str], changes: RerunChanges) -> list[Request]:
    """Return the requests that put jobs back into the queue which they left before they began.

    Raises:
        UsageError: As for :func:`requests_again`, or a job has begun or is still queued.
    """
    recorded = context.registry.load()[0]
    jobs = [find_job(recorded, word) for word in words]
    ids = tuple(job.id for job in jobs)
    if not all(job.state.is_final for job in jobs):
        # The server may have lost them since.
        answer = await list_jobs(context, JobSelection(ids, stopped=True, hidden=True))
        answer.raise_if_any_failed()
        recorded = context.registry.load()[0]
    back = {job.rerun_of: job.key for job in recorded if job.rerun_of and not job.state.is_finished}
    for job in context.registry.find(ids).values():
        hint = f"remote-tool job-rerun {job.key} starts it again"
        if tag := job.sweep_tag:
            raise UsageError(f"Job {job.key} is a part of a sweep", hint=f"remote-tool helper-sweep --resume {tag}")
        if not (job.gpu_count or job.after):
            raise UsageError(f"Job {job.key} was not queued", hint=hint)
        if job.started_at is not None:
            raise UsageError(f"Job {job.key} has left the queue because it began", hint=hint)
        if not job.state.is_finished:
            raise UsageError(
                f"Job {job.key} is still in the queue: {job.state}", hint=f"remote-tool job-wait {job.key}"
            )
        if job.id in back:
            raise UsageError(f"Job {job.key} has been put back already, as job {back[job.id]}", hint=hint)
    requests = await requests_again(context, words, changes)
    return [_once(request, recorded) for request in requests]


def _once(request: Request, recorded: Sequence[Job]) -> Request:
    """Return a request with the id that any other program gives to the same job at the same time."""
    if not isinstance(request, StartRequest):
        return request
    job = next(each for each in recorded if each.id == request.rerun_of)
    if job.moved_as and all(each.id != job.moved_as for each in recorded):
        # Nobody has started the one in its place: as every other program would.
        code = KeptCode({job.moved_to: job.moved_copy}, job.git_commit, job.git_branch, job.git_dirty)
        return replace(request, servers=(job.moved_to,), job_id=job.moved_as, code=code, sync=False)
    return replace(request, job_id=id_when_put_back(job, [each for each in recorded if each.rerun_of == job.id]))


async def requests_again(context: Context, words: Sequence[str], changes: RerunChanges) -> list[Request]:
    """Return the requests that start jobs again, each launch once, and report how the code differs.

    Args:
        context: The command's context.
        words: Keys or ids of jobs.
        changes: What differs from the records.

    Raises:
        UsageError: There is no such job, it cannot be repeated, or a variable has no value.
    """
    if not words:
        raise UsageError("No job is selected", hint="remote-tool job-rerun KEY")
    jobs = context.registry.load()[0]
    found = [find_job(jobs, word) for word in words]
    together = {nodes[0].id: nodes for nodes in (_with_its_launch(job, jobs) for job in found)}
    pairs = [(nodes[0], await _request_again(context, nodes, changes)) for nodes in together.values()]
    await report_kept_code(context, [job for job, request in pairs if request.code is not None])
    await report_code(context, [job for job, request in pairs if request.code is None])
    return [request for _, request in pairs]


async def start_requests(context: Context, requests: Sequence[Request]) -> JobsAnswer:
    """Start the jobs of requests together, then those that wait for others, and then each launch."""
    starts = [request for request in requests if isinstance(request, StartRequest)]
    together = [request for request in starts if not request.after]
    answers = [await start_jobs(context, together)] if together else []
    answers += [
        await start_jobs(context, [replace(request, after=_latest(context, request))])
        # By age: a job may wait for an earlier one.
        for request in sorted(starts, key=lambda each: each.rerun_of)
        if request.after
    ]
    answers += [await launch(context, request) for request in requests if isinstance(request, LaunchRequest)]
    errors = {server: error for answer in answers for server, error in answer.errors.items()}
    return JobsAnswer(
        tuple(job for answer in answers for job in answer.jobs),
        errors,
        answered=tuple(dict.fromkeys(server for answer in answers for server in answer.answered)),
        warnings=tuple(dict.fromkeys(warning for answer in answers for warning in answer.warnings)),
    )


def _latest(context: Context, request: StartRequest) -> tuple[str, ...]:
    """Return the jobs to wait for: in place of one that was started again on this server, the newest of these."""
    recorded = context.registry.load()[0]
    repeats = {job.rerun_of: job.id for job in recorded if job.rerun_of and job.server in request.servers}
    found = []
    for job_id in request.after:
        latest, seen = job_id, {job_id}
        while (newer := repeats.get(latest)) is not None and newer not in seen:
            latest = newer
            seen.add(newer)
        found.append(latest)
    return tuple(dict.fromkeys(found))


def _with_its_launch(job: Job, jobs: Sequence[Job]) -> list[Job]:
    """Return a job, or all nodes of its launch by rank.

    Raises:
        UsageError: It is none that can be started again from its record.
    """
    if special := own_start(job):
        what, command = special
        raise UsageError(f"Job {job.key} is {what}, which job-rerun does not repeat", hint=f"remote-tool {command}")
    if not job.launch_id or job.sweep_tag:
        return [job]
    nodes = [each for each in jobs if each.launch_id == job.launch_id]
    return sorted(nodes, key=lambda each: each.node_rank or 0)


async def _request_again(context: Context, nodes: Sequence[Job], changes: RerunChanges) -> Request:
    job, options = nodes[0], _options_of(nodes)
    running = [str(node.key) for node in nodes if not node.state.is_finished] if options else []
    if running:
        hint = f"remote-tool job-kill {' '.join(running)} ends it"
        context.report(Notice("", f"the launch of job {job.key} has not ended; {hint}"))
    servers = _servers(context.config, nodes, changes)
    code = None if changes.current_code else await find_kept_code(context, nodes, servers)
    if changes.kept_code and code is None:
        raise UsageError(
            f"The code of job {job.key} is not kept: only jobs with --frozen, or that waited, run in a copy",
            hint=f"remote-tool job-rerun {job.key} --current-code",
        )
    common: dict[str, Any] = {
        "command": _command(job, options) if changes.command is None else changes.command,
        "servers": servers,
        "environment": await _environment(context, nodes, servers, changes),
        "tags": tuple(tag for tag in job.tags if tag != job.sweep_tag and not (options and tag == MASTER_TAG)),
        "devices": () if job.gpu_count else _devices(context.config, nodes, servers),
        "gpus": job.gpu_count or 0,
        "rerun_of": job.id,
        "code": code,
        "frozen": bool(job.copy),
        "sync": code is None,
        # A limit that was turned off stays off, whatever is configured now.
        "max_duration": job.max_duration or 0,
        "stop_if_idle": job.stop_if_idle or 0,
    }
    if options is None:
        after = () if job.sweep_tag else _earlier(context, job, servers)
        return StartRequest(after=after, retries=job.retries or 0, **_settings(job, StartRequest), **common)
    of_launch = {**options.of_request}
    if of_launch["processes"] is None and options.listed:
        of_launch["processes"] = _listed_processes(nodes, options)
    # Slurm has all nodes behind one login node.
    nodes_there = options.nodes if is_scheduled(context.config, servers[0]) else None
    common |= {"servers": tuple(dict.fromkeys(servers)), "nnodes": nodes_there}
    return LaunchRequest(**{**of_launch, **_settings(job, LaunchRequest), **common})


def _settings(job: Job, kind: type[Request]) -> dict[str, Any]:
    """Return the options that start a job with its recorded settings."""
    names = {**option_names(kind), "artifacts": "artifacts", "workdir": "workdir"}
    return {
        option: value
        for name, option in names.items()
        if option not in _OWN_OPTIONS and (value := getattr(job, name)) is not None
    }


def _command(job: Job, options: RecordedLaunch | None) -> str:
    if options is not None:
        return options.command
    if len(job.command) == COMMAND_LIMIT:
        problem = f"The command of job {job.key} is longer than its record, which another machine wrote"
        raise UsageError(problem, hint="--cmd 'COMMAND'")
    return job.command


def _earlier(context: Context, job: Job, servers: Sequence[str]) -> tuple[str, ...]:
    """Return the jobs that a job waited for, without those that are not on its server."""
    known = context.registry.find(job.after)
    left = [each for each in job.after if each in known and all(known[each].server == name for name in servers)]
    if len(left) < len(job.after):
        count = counted(len(job.after) - len(left), "job")
        context.report(Notice("", f"job {job.key} does not wait for {count} that {', '.join(servers)} does not have"))
    return tuple(left)


def _options_of(nodes: Sequence[Job]) -> RecordedLaunch | None:
    """Return what a launch was asked for; None for a job without one.

    Raises:
        UsageError: Its record does not have it, or has not all of its nodes.
    """
    job = nodes[0]
    if not job.launch_id or job.sweep_tag:
        return None
    if job.node_rank or not job.launch_options:
        raise UsageError(
            f"The record of the launch of job {job.key} does not say how it was started",
            hint="Start it again with the command that started it",
        )
    options = read_options(job.launch_options)
    if [node.node_rank for node in nodes] != list(range(options.nodes)):
        raise UsageError(
            f"The launch of job {job.key} had {options.nodes} nodes, of which {len(nodes)} can be found",
            hint="remote-tool job-list --stopped asks the servers; if the rest was cleaned away, start it anew",
        )
    return options


def _servers(config: Config, nodes: Sequence[Job], changes: RerunChanges) -> tuple[str, ...]:
    if changes.servers:
        return choose_servers(config, changes.servers)
    for job in nodes:
        if job.server not in config.servers:
            raise UsageError(
                f"Job {job.key} ran on {job.server}, which is not configured", hint="--server NAME chooses another one"
            )
    return tuple(job.server for job in nodes)


def _devices(config: Config, nodes: Sequence[Job], servers: Sequence[str]) -> tuple[str, ...]:
    """Return the recorded GPUs; empty if they are the configured ones, or UUIDs of another server's GPUs."""
    recorded = {job.gpus or () for job in nodes}
    configured = [config.servers[job.server].devices if job.server in config.servers else () for job in nodes]
    if [job.gpus or () for job in nodes] == configured:
        return ()
    if len(recorded) > 1:
        raise UsageError(
            f"The nodes of job {nodes[0].key} had different GPUs, and configs.yaml has others now",
            hint="Set devices: of these servers in .remote/configs.yaml",
        )
    (gpus,) = recorded
    are_numbers = all(gpu.isdigit() for gpu in gpus)
    return gpus if are_numbers or [job.server for job in nodes] == list(servers) else ()


def _listed_processes(nodes: Sequence[Job], options: RecordedLaunch) -> int | None:
    """Return the number of processes that a host list gave every node."""
    counts = set(options.listed)
    if len(counts) > 1:
        hosts = ",".join(f"{job.server}:{count or 1}" for job, count in zip(nodes, options.listed, strict=False))
        raise UsageError(
            f"The launch of job {nodes[0].key} had a host list with a number of processes for each host",
            hint=f"Start it again with --hosts {hosts}",
        )
    return counts.pop()


async def _environment(
    context: Context, nodes: Sequence[Job], servers: Sequence[str], changes: RerunChanges
) -> dict[str, str]:
    """Return the values of the variables that were given with a command.

    Raises:
        UsageError: One has no value; all of them are listed.
    """
    job = nodes[0]
    configured_now = set.intersection(*({*context.config.variables_of(server)} for server in servers))
    configured_then = {name for node in nodes for name in node.configured_variables or ()}
    given = set(job.variables or ())
    if job.variables is None:
        configured_then |= await _names_on_server(context, job)
    needed = given | (configured_then - configured_now)
    here = {name: os.environ[name] for name in needed & os.environ.keys() - OF_THIS_MACHINE}
    found = {**here, **changes.environment}
    if missing := sorted(needed - found.keys() - configured_now):
        raise UsageError(
            f"Job {job.key} had variables whose values are not known here: {', '.join(missing)}",
            hint=" ".join(f"--env {name} VALUE" for name in missing) + ", or export them and repeat the command",
        )
    for place, names in (
        ("this command's environment", here.keys() - changes.environment.keys()),
        ("configs.yaml", given - found.keys()),
    ):
        if names:
            context.report(Notice("", f"job {job.key}: from {place}: {', '.join(sorted(names))}"))
    return found


async def _names_on_server(context: Context, job: Job) -> set[str]:
    """Return the names of a job's variables for a record of an older version, which lacks them."""
    try:
        names = await ask_about_variables(context, job)
    except RemoteToolError as error:
        context.report(Notice("", f"job {job.key}: the names of its variables are not known: {error}"))
        return set()
    return {name for name in names if not name.startswith(_OURS)}
