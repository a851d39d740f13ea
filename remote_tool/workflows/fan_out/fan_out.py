"""helper-fan-out: split work over every slot of every server, or hand it out item by item; resume it later."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from remote_tool.config.artifacts import wanted_artifacts
from remote_tool.config.devices import command_environment
from remote_tool.errors import SomeServersFailedError
from remote_tool.jobs.job import Job, JobSpec, JobState, new_job_id
from remote_tool.workflows.fan_out.answer import FanOutAnswer
from remote_tool.workflows.fan_out.dispatcher import Dispatcher
from remote_tool.workflows.fan_out.gather import gather, gathering_folder
from remote_tool.workflows.fan_out.observer import Observer
from remote_tool.workflows.fan_out.plan import (
    FanOutPlan,
    ServerSlots,
    Slot,
    fan_out_tags,
    make_shards,
    make_slots,
    plan_fan_out,
)
from remote_tool.workflows.fan_out.records import FanOutRecord, find_record, write_record
from remote_tool.workflows.fan_out.request import MOST_SLOTS
from remote_tool.workflows.fan_out.slots import ask_slots, find_command_script
from remote_tool.workflows.fan_out.work_queue import Assignment, Attempt, WorkQueue
from remote_tool.workflows.jobs.listing import fetch_artifacts, refresh
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.slurm.scheduler import refuse_scheduled
from remote_tool.workflows.start.send import Sent, complete, freeze, is_frozen, send_project
from remote_tool.workflows.start.start_specs import start_specs
from remote_tool.workflows.work.records import WorkStanding, fan_out_files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.fan_out.request import FanOutRequest

SLOT_TAG = re.compile(r"slot-([0-9]{1,6})")


@dataclass(frozen=True)
class Ready(Sent):
    """The project on the servers, and the facts about each server."""

    slots: Sequence[ServerSlots] = field(kw_only=True)


@dataclass(frozen=True)
class Work:
    """A fan-out with its slots; it makes the job of each shard."""

    config: Config
    request: FanOutRequest
    plan: FanOutPlan
    ready: Ready

    def make_spec(self, assignment: Assignment) -> JobSpec:
        """Return the job of a shard on a slot; the user's variables win."""
        shard, slot = assignment.shard, assignment.slot
        given = {**shard.environment, **self.request.environment}
        spec = JobSpec(
            id=new_job_id(),
            server=slot.server,
            command=shard.command(self.plan.command),
            environment=command_environment(self.config.variables_of(slot.server), given, slot.gpus),
            tags=(*self.request.tags, *fan_out_tags(self.plan.launch_id, shard, slot)),
            launch_id=self.plan.launch_id,
            node_rank=shard.number,
            artifacts=wanted_artifacts(self.config.artifacts, shard.globs(self.request.artifacts)),
            gpus=slot.gpus or (slot.reserved and self.config.servers[slot.server].devices) or None,
        )
        return complete(spec, self.config, self.request, self.ready, may_run_on_end=False)


async def plan(context: Context, request: FanOutRequest) -> FanOutPlan:
    """Query the servers and plan, without starting anything.

    Raises:
        SomeServersFailedError: Some could not be asked.
    """
    servers = choose_servers(context.config, request.servers)
    find_command_script(context, request)
    slots, errors = await ask_slots(
        context, request, context.config.listed, servers, in_slurm=_slots_in_slurm(context, request, servers)
    )
    if errors:
        raise SomeServersFailedError(errors, [each.server for each in slots])
    return plan_fan_out(request, slots, new_job_id())


async def start(context: Context, request: FanOutRequest, observer: Observer | None = None) -> FanOutAnswer:
    """Sync, query, plan, record and start every shard without following; other servers take over failed ones.

    Raises:
        SomeServersFailedError: No server is usable; nothing was started.
    """
    work = await _begin(context, request, observer or Observer())
    pairs = zip(work.plan.shards, work.plan.slots, strict=True)
    answer = await start_specs(context, [work.make_spec(Assignment(shard, slot)) for shard, slot in pairs])
    failed = [job for job in answer.jobs if job.state is JobState.FAILED and job.server not in answer.errors]
    return FanOutAnswer(
        launch_id=work.plan.launch_id,
        shards=len(work.plan.shards),
        jobs=answer.jobs,
        failed={job.node_rank or 0: job for job in failed},
        errors={**work.ready.errors, **answer.errors},
        warnings=(*work.ready.warnings, *answer.warnings),
        is_followed=False,
    )


async def follow(context: Context, request: FanOutRequest, observer: Observer | None = None) -> FanOutAnswer:
    """Like :func:`start`, then follow until all is done: retry failures, and hand out waiting shards.

    Raises:
        SomeServersFailedError: No server is usable; nothing was started.
    """
    observer = observer or Observer()
    work = await _begin(context, request, observer)
    with fan_out_files(context.config.local.fan_outs).locked(work.plan.launch_id, "following"):
        queue = WorkQueue(work.plan.slots, deque(work.plan.shards), request.retries)
        return await _finish(context, work, queue, observer)


async def resume(
    context: Context,
    word: str,
    environment: Mapping[str, str],
    observer: Observer | None = None,
    *,
    sync: bool = True,
    overwrite: bool = False,
) -> FanOutAnswer:
    """Resume a fan-out: follow running jobs, start failed or missing shards, and skip finished ones.

    Raises:
        UsageError: There is no such fan-out, or a required variable is missing.
        SomeServersFailedError: No server is usable.
    """
    observer = observer or Observer()
    files = fan_out_files(context.config.local.fan_outs)
    record = find_record(files.folder, word)
    files.refuse_missing_variables(record, environment)
    request = replace(record.request, environment=environment, sync=sync, overwrite=overwrite)
    with files.locked(record.launch_id, "following"):
        servers = choose_servers(context.config, request.servers)
        await refresh(context, servers)
        ready = await _make_ready(context, request, {**record.listed, **context.config.listed})
        slots = make_slots(ready.slots, request.per_server, request.gpus)
        shards = make_shards(request, record.shards)
        work = Work(
            context.config, request, FanOutPlan(record.launch_id, request.command, slots, shards, is_queue=True), ready
        )
        observer.on_plan(work.plan)
        await _repeat_unconfirmed(context, work)
        standing = WorkStanding.of(record.shards, record.done, _jobs_of(context, work, servers))
        return await _finish(context, work, _recall(work, standing), observer, standing.done)


async def _begin(context: Context, request: FanOutRequest, observer: Observer) -> Work:
    ready = await _make_ready(context, request, context.config.listed)
    work = Work(context.config, request, plan_fan_out(request, ready.slots, new_job_id()), ready)
    # Needed when a host list named the servers, or the configuration changes.
    workdir = context.config.workdir_for(request.workdir)
    named = replace(request, servers=choose_servers(context.config, request.servers), workdir=workdir)
    record = FanOutRecord(
        work.plan.launch_id,
        named,
        variables=tuple(request.environment),
        listed=context.config.listed,
        shards=len(work.plan.shards),
    )
    write_record(context.config.local.fan_outs, record)
    observer.on_plan(work.plan)
    return work


async def _make_ready(context: Context, request: FanOutRequest, listed: Mapping[str, int | None]) -> Ready:
    servers = choose_servers(context.config, request.servers)
    find_command_script(context, request)
    gathering_folder(context.config, request.gather)
    frozen = is_frozen(context.config, request)
    sent = await send_project(context, servers, wanted=request.sync, overwrite=request.overwrite, frozen=frozen)
    able = [server for server in servers if server not in sent.errors]
    # Shards are handed out later, while other syncs may come.
    not_copied = await freeze(context, sent, able) if frozen else {}
    usable, in_slurm = (
        [server for server in able if server not in not_copied],
        _slots_in_slurm(context, request, servers),
    )
    slots, errors = await ask_slots(context, request, listed, usable, in_slurm=in_slurm)
    errors = {**sent.errors, **not_copied, **errors}
    if not slots:
        raise SomeServersFailedError(errors, [])
    return Ready(sent.snapshots, errors, sent.warnings, sent.git, slots=slots)


def _slots_in_slurm(context: Context, request: FanOutRequest, servers: Sequence[str]) -> int:
    """Return how many jobs a Slurm cluster gets at once: all items, as it has a queue of its own.

    Raises:
        UsageError: Nothing says into how many parts the work is split.
    """
    if not request.items and request.per_server is None:
        what = "A fan-out without --items or --per-server"
        refuse_scheduled(context.config, servers, what, "--per-server N splits the work into N parts")
    return request.per_server or min(len(request.items), MOST_SLOTS)


async def _finish(
    context: Context, work: Work, queue: WorkQueue, observer: Observer, done: frozenset[int] = frozenset()
) -> FanOutAnswer:
    """Hand out the waiting shards and follow all; ``done`` are those that were done before."""
    errors = await Dispatcher(context, queue, work.make_spec, observer).run()
    jobs = _jobs_of(context, work, context.config.servers)
    home = [job for job in jobs if job.state.is_finished and job.server not in errors]
    errors = {**errors, **await fetch_artifacts(context, home)}
    folder = gathering_folder(context.config, work.request.gather, work.plan.name)
    return FanOutAnswer(
        launch_id=work.plan.launch_id,
        shards=len(work.plan.shards),
        jobs=tuple(jobs),
        done=done | queue.done.keys(),
        failed={number: attempt.job for number, attempt in queue.failed.items()},
        errors={**work.ready.errors, **errors},
        warnings=work.ready.warnings,
        gathered=gather(context, {number: attempt.job for number, attempt in queue.done.items()}, folder),
        folder=folder,
    )


async def _repeat_unconfirmed(context: Context, work: Work) -> None:
    """Repeat starts that no server has confirmed: the same id never starts anything twice."""
    slots = {(slot.server, slot.number): slot for slot in work.plan.slots}
    specs = []
    for job in _jobs_of(context, work, [each.server for each in work.ready.slots]):
        if job.state is JobState.STARTING and job.node_rank in range(len(work.plan.shards)):
            shard, slot = work.plan.shards[job.node_rank or 0], _slot_of(job)
            assignment = Assignment(shard, slots.get((slot.server, slot.number), slot))
            specs.append(replace(work.make_spec(assignment), id=job.id))
    await start_specs(context, specs, again=True)


def _recall(work: Work, standing: WorkStanding) -> WorkQueue:
    """Return the queue: running jobs keep their slots, and missing shards wait."""

    def attempt_of(job: Job) -> Attempt:
        return Attempt(work.plan.shards[job.node_rank or 0], _slot_of(job), job)

    return WorkQueue(
        work.plan.slots,
        deque(work.plan.shards[number] for number in standing.missing),
        work.request.retries,
        attempts={job.id: attempt_of(job) for job in standing.running},
        done={number: attempt_of(job) for number, job in standing.succeeded.items()},
    )


def _slot_of(job: Job) -> Slot:
    # Ours come after the user's.
    found = [SLOT_TAG.fullmatch(tag) for tag in reversed(job.tags)]
    return Slot(job.server, next((int(match[1]) for match in found if match), 0))


def _jobs_of(context: Context, work: Work, servers: Collection[str]) -> list[Job]:
    jobs = context.registry.load()[0]
    return [job for job in jobs if job.launch_id == work.plan.launch_id and job.server in servers]
