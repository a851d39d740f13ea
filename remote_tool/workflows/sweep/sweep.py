"""helper-sweep: queue a job for each combination of parameters on all servers, and add what is missing later."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from remote_tool.config.artifacts import wanted_artifacts
from remote_tool.config.devices import command_environment, devices_of
from remote_tool.errors import JobError, SomeServersFailedError, UsageError
from remote_tool.jobs.job import SWEEP_TAG, Job, JobSpec, JobState, launch_name, new_job_id
from remote_tool.launchers.job_request import JobRequest
from remote_tool.protocol.limits import MOST_SLOTS
from remote_tool.transport.pool import Results
from remote_tool.workflows.events import Notice
from remote_tool.workflows.fan_out.slots import ask_slots, find_command_script
from remote_tool.workflows.jobs.listing import refresh
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.start.free_gpus import FreeGpus, ask_free_gpus
from remote_tool.workflows.start.send import Sent, complete, is_frozen, send_project
from remote_tool.workflows.start.start_specs import start_specs
from remote_tool.workflows.sweep.answer import SweepAnswer
from remote_tool.workflows.sweep.plan import ServerQueue, SweepJob, SweepPlan, plan_sweep
from remote_tool.workflows.sweep.records import SweepRecord, find_sweep, listing, write_sweep
from remote_tool.workflows.sweep.request import SweepRequest, shared_outputs
from remote_tool.workflows.sweep.values import NUMBER, SweepSpec, identity_of
from remote_tool.workflows.work.records import WorkStanding, sweep_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.fan_out.plan import ServerSlots


async def plan(context: Context, request: SweepRequest) -> SweepPlan:
    """Query the servers and plan, without starting anything.

    Raises:
        SomeServersFailedError: Some could not be asked.
    """
    servers = choose_servers(context.config, request.servers)
    find_command_script(context, request)
    errors = await refresh(context, servers)
    queues, failed = await _ask_queues(context, request, context.config.listed, servers, ())
    if errors := {**errors, **failed}:
        raise SomeServersFailedError(errors, [each.server for each in queues])
    _warn_of_shared_outputs(context, request)
    return _plan(request, range(len(request.made)), queues, new_job_id())


async def start(context: Context, request: SweepRequest) -> SweepAnswer:
    """Send the project, place all combinations over the servers, record them, and queue their jobs.

    Raises:
        SomeServersFailedError: No server is usable; nothing was started.
    """
    servers = choose_servers(context.config, request.servers)
    # Needed when a host list named the servers, or the configuration changes.
    named = replace(listing(request), servers=servers, workdir=context.config.workdir_for(request.workdir))
    record = SweepRecord(new_job_id(), named, tuple(request.environment), context.config.listed)
    sent, queues, errors = await _make_ready(context, named, context.config.listed, servers, ())
    planned = _plan(named, range(len(named.made)), queues, record.launch_id)
    write_sweep(context.config.local.sweeps, record)
    with sweep_files(context.config.local.sweeps).locked(record.launch_id, "starting"):
        answer = await _start(context, named, planned, sent, errors)
    return replace(answer, warnings=(*answer.warnings, *_warn_of_shared_outputs(context, request)))


async def resume(
    context: Context,
    word: str,
    environment: Mapping[str, str],
    more: SweepSpec | None = None,
    *,
    sync: bool = True,
    overwrite: bool = False,
) -> SweepAnswer:
    """Start the combinations that failed, are lost or are new; leave those that are done, queued or running.

    Raises:
        UsageError: There is no such sweep, a required variable is missing, or the new combinations are of another one.
        SomeServersFailedError: No server is usable.
    """
    folder = context.config.local.sweeps
    files, launch_id = sweep_files(folder), find_sweep(folder, word).launch_id
    with files.locked(launch_id, "starting"):
        # Another program may have added combinations until now.
        record = find_sweep(folder, launch_id)
        files.refuse_missing_variables(record, environment)
        record = replace(record, request=_extended(record, more or SweepSpec()))
        request = replace(record.request, environment=environment, sync=sync, overwrite=overwrite)
        there = [server for server in request.servers if server in context.config.servers]
        servers = choose_servers(context.config, there)
        failed = await refresh(context, servers)
        jobs = jobs_of(context.registry.load()[0], record)
        standing = WorkStanding.of(len(request.made), record.done, jobs)
        waiting = {job.node_rank or 0: job for job in standing.running}
        usable = [server for server in servers if server not in failed]
        listed, begun = {**record.listed, **context.config.listed}, list(waiting.values())
        sent, queues, errors = await _make_ready(context, request, listed, usable, begun, failed)
        planned = _plan(request, standing.missing, queues, launch_id)
        record = replace(record, request=request)
        write_sweep(folder, record)
        # The lock is of the file that was replaced.
        with files.locked(launch_id, "starting"):
            await _repeat_unconfirmed(context, record, begun, {queue.server for queue in queues}, sent)
            answer = await _start(context, request, planned, sent, _add_running(errors, begun, planned.name))
        return replace(answer, done=standing.done, waiting=frozenset(waiting))


def _warn_of_shared_outputs(context: Context, request: SweepRequest) -> tuple[tuple[str, str], ...]:
    """Warn, and return the warning, if every combination writes the same files, as far as the command says."""
    artifacts = [pattern.glob for pattern in wanted_artifacts(context.config.artifacts, request.artifacts)]
    found = shared_outputs(request.command, artifacts) if len(request.made) > 1 else ()
    if not found:
        return ()
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    example = PurePosixPath(found[0])
    kept_apart = f"{example.with_suffix('')}-{{{NUMBER}}}{example.suffix}"
    text = f"all {len(request.made)} combinations write {found[0]}{more}; a name such as {kept_apart} keeps them apart"
    context.report(Notice("", text))
    return (("", text),)


def jobs_of(jobs: Iterable[Job], record: SweepRecord) -> list[Job]:
    """Select the jobs that belong to a sweep."""
    numbers = range(len(record.request.made))
    return [job for job in jobs if job.launch_id == record.launch_id and job.node_rank in numbers]


def _extended(record: SweepRecord, more: SweepSpec) -> SweepRequest:
    """Return a sweep's request with more combinations; its seed draws the same first ones again."""
    request, name = record.request, launch_name(record.launch_id)
    if more.command not in {"", request.command}:
        raise UsageError(
            f"Sweep {name} has another command: {request.command:.200}", hint="Start another sweep, without --resume"
        )
    if more.is_empty:
        return request
    new = replace(more, random=more.random.seeded(request.random.seed)).made()
    if set(request.made[0]) != set(new[0]):
        raise UsageError(
            f"Sweep {name} has the parameters {', '.join(request.made[0])};"
            f" the new combinations have {', '.join(new[0])}",
            hint="Start another sweep, without --resume",
        )
    by_identity = {identity_of(each): each for each in (*new, *request.made)}
    known = dict.fromkeys(identity_of(each) for each in (*request.made, *new))
    return replace(request, combinations=tuple(by_identity[each] for each in known))


async def _make_ready(
    context: Context,
    request: SweepRequest,
    listed: Mapping[str, int | None],
    servers: Sequence[str],
    begun: Collection[Job],
    failed: Mapping[str, RemoteToolError] | None = None,
) -> tuple[Sent, list[ServerQueue], dict[str, RemoteToolError]]:
    """Send the project, and ask the servers for their GPUs and their load."""
    find_command_script(context, request)
    frozen = is_frozen(context.config, request, waits=True)
    sent = await send_project(context, servers, wanted=request.sync, overwrite=request.overwrite, frozen=frozen)
    errors = {**(failed or {}), **sent.errors}
    asked = [server for server in servers if server not in errors]
    if failed is None:
        errors |= await refresh(context, asked)
    queues, unasked = await _ask_queues(
        context, request, listed, [server for server in asked if server not in errors], begun
    )
    errors |= unasked
    if not queues:
        raise SomeServersFailedError(errors, [])
    return sent, queues, errors


async def _ask_queues(
    context: Context,
    request: SweepRequest,
    listed: Mapping[str, int | None],
    servers: Sequence[str],
    begun: Collection[Job],
) -> tuple[list[ServerQueue], dict[str, RemoteToolError]]:
    """Ask which GPUs are free, how many jobs wait for some, and whether two servers are one machine."""
    # How many GPUs there are is a question to nvidia-smi here, as it is for the jobs that wait for them.
    slots, errors = await ask_slots(context, replace(request, gpus=0, priority=0, backfill=False), listed, servers)
    free = Results[FreeGpus]()
    if request.may_lease:
        free = await ask_free_gpus(context, [each.server for each in slots if not each.is_scheduled])
        errors |= free.errors
    queues = []
    for each in slots:
        before = sorted((job for job in begun if job.server == each.server), key=lambda job: (job.created_at, job.key))
        try:
            queue = _queue_of(each, request, free.values.get(each.server), before)
        except JobError as error:
            errors[each.server] = error
        else:
            queues += [queue] if each.server not in errors else []
    return queues, errors


def _queue_of(server: ServerSlots, request: SweepRequest, free: FreeGpus | None, before: Sequence[Job]) -> ServerQueue:
    """Return how many jobs a server runs at once, and its load.

    Raises:
        JobError: It has too few GPUs, or cannot tell which are free.
    """
    if server.is_scheduled:
        ids = tuple(job.id for job in before)
        return ServerQueue(
            server.server, request.gpus, request.per_server or MOST_SLOTS, len(before), server.place, ids
        )
    total = free.total if free else 0
    per_job = request.gpus or min(1, total)
    if total < per_job or (request.may_lease and server.gpus and not total):
        why = free.problem(max(1, per_job)) if free else ""
        raise JobError(f"{server.server}: {why}", hint="--per-server 1 waits for no GPUs", server=server.server)
    ids = tuple(job.id for job in before)
    if free is None or not per_job:
        slots = request.per_server or server.listed or 1
        chained = tuple(job.id for job in before if job.slots is None and not job.gpu_count)
        return ServerQueue(server.server, 0, slots, len(before), server.place, ids, chained)
    load = (total - free.free + sum(free.waiting)) / per_job
    return ServerQueue(server.server, per_job, total // per_job, load, server.place, ids)


def _plan(request: SweepRequest, numbers: Sequence[int], queues: Sequence[ServerQueue], launch_id: str) -> SweepPlan:
    return plan_sweep(request, numbers, queues, launch_id, [new_job_id() for _ in numbers])


async def _start(
    context: Context,
    request: SweepRequest,
    planned: SweepPlan,
    sent: Sent,
    errors: Mapping[str, RemoteToolError],
) -> SweepAnswer:
    specs = [_as_spec(context, request, planned.launch_id, job, sent) for job in planned.jobs]
    answer = await start_specs(context, specs)
    return SweepAnswer(
        launch_id=planned.launch_id,
        combinations=planned.total,
        jobs=answer.jobs,
        errors={**errors, **answer.errors},
        warnings=sent.warnings,
    )


def _as_spec(context: Context, request: SweepRequest, launch_id: str, job: SweepJob, sent: Sent) -> JobSpec:
    """Return the job of a combination; its server chooses the GPUs of one that waits for some."""
    config, server = context.config, job.server
    devices = devices_of(config.servers[server].devices, request.devices, request.environment)
    spec = JobSpec(
        id=job.id,
        server=server,
        command=job.command,
        environment=command_environment(config.variables_of(server), request.environment, () if job.gpus else devices),
        tags=(*request.tags, f"{SWEEP_TAG}{launch_name(launch_id)}"),
        launch_id=launch_id,
        node_rank=job.number,
        artifacts=wanted_artifacts(config.artifacts, request.artifacts),
        gpus=devices or None,
        slots=job.slots,
    )
    # All of a sweep wait: if not for GPUs, then for slots.
    options = {each.name: getattr(request, each.name) for each in fields(JobRequest)}
    own = {"gpus": job.gpus, "after": job.after, "after_any": bool(job.after)}
    settings = JobRequest(**{**options, **own, "frozen": is_frozen(config, request, waits=True)})
    return complete(spec, config, settings, sent, may_run_on_end=False)


async def _repeat_unconfirmed(
    context: Context, record: SweepRecord, jobs: Iterable[Job], servers: Collection[str], sent: Sent
) -> None:
    """Repeat starts that no server has confirmed: the same id never starts anything twice."""
    request = record.request
    begun = [
        SweepJob(
            number=job.node_rank or 0,
            combination=request.made[job.node_rank or 0],
            command=job.command,
            server=job.server,
            gpus=job.gpu_count or 0,
            id=job.id,
            slots=job.slots,
            after=job.after,
        )
        for job in jobs
        if job.state is JobState.STARTING and job.server in servers
    ]
    await start_specs(context, [_as_spec(context, request, record.launch_id, job, sent) for job in begun], again=True)


def _add_running(
    errors: Mapping[str, RemoteToolError], jobs: Iterable[Job], name: str
) -> Mapping[str, RemoteToolError]:
    """Add to each server's error how many jobs may still run there; return the errors."""
    left = Counter(job.server for job in jobs)
    for server, error in errors.items():
        if count := left[server]:
            some, them = ("a combination", "it") if count == 1 else (f"{count} combinations", "them")
            error.message += f"; {some} may still run there, and will not be started elsewhere"
            error.hint = (
                f"To have --resume start {them} elsewhere:"
                f" remote-tool job-kill --tag {SWEEP_TAG}{name} --server {server}"
            )
    return errors
