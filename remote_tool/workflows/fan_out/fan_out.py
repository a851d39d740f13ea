"""helper-fan-out: split work over every slot of every server, or hand it out item by item."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.errors import SomeServersFailedError
from remote_tool.jobs.job import JobState, new_job_id
from remote_tool.launchers.fan_out import (
    FanOutPlan,
    FanOutRequest,
    plan_fan_out,
)
from remote_tool.workflows.fan_out.dispatcher import Dispatcher
from remote_tool.workflows.fan_out.gather import gather, gathering_folder
from remote_tool.workflows.fan_out.observer import Observer
from remote_tool.workflows.fan_out.work_queue import Assignment, WorkQueue
from remote_tool.workflows.fan_out_records import FanOutRecord, followed, write_record
from remote_tool.workflows.jobs.listing import fetch_artifacts
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.start.start_specs import start_specs

if TYPE_CHECKING:
    from remote_tool.workflows.context import Context
from remote_tool.workflows.fan_out.answer import FanOutAnswer
from remote_tool.workflows.fan_out.work import Work, ask_slots, find_command_script, jobs_of, make_ready


async def plan(context: Context, request: FanOutRequest) -> FanOutPlan:
    """Query the servers and plan, without starting anything.

    Raises:
        SomeServersFailedError: Some could not be asked.
    """
    servers = choose_servers(context.config, request.servers)
    find_command_script(context, request)
    slots, errors = await ask_slots(context, request, context.config.listed, servers)
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
    with followed(context.config.local.fan_outs, work.plan.launch_id):
        queue = WorkQueue(work.plan.slots, deque(work.plan.shards), request.retries)
        return await finish(context, work, queue, observer)


async def _begin(context: Context, request: FanOutRequest, observer: Observer) -> Work:
    ready = await make_ready(context, request, context.config.listed)
    work = Work(context.config, request, plan_fan_out(request, ready.slots, new_job_id()), ready)
    # Needed when a host list named the servers, or the configuration changes.
    workdir = context.config.workdir_for(request.workdir)
    named = replace(request, servers=choose_servers(context.config, request.servers), workdir=workdir)
    record = FanOutRecord(
        work.plan.launch_id, len(work.plan.shards), named, tuple(request.environment), context.config.listed
    )
    write_record(context.config.local.fan_outs, record)
    observer.on_plan(work.plan)
    return work


async def finish(
    context: Context, work: Work, queue: WorkQueue, observer: Observer, recorded: frozenset[int] = frozenset()
) -> FanOutAnswer:
    """Do what is waiting; ``recorded`` are the shards that are known to be done without their jobs."""
    errors = await Dispatcher(context, queue, work.make_spec, observer).run()
    jobs = jobs_of(context, work, context.config.servers)
    home = [job for job in jobs if job.state.is_finished and job.server not in errors]
    errors = {**errors, **await fetch_artifacts(context, home)}
    folder = gathering_folder(context.config, work.request.gather, work.plan.name)
    return FanOutAnswer(
        launch_id=work.plan.launch_id,
        shards=len(work.plan.shards),
        jobs=tuple(jobs),
        done=recorded | queue.done.keys(),
        failed={number: attempt.job for number, attempt in queue.failed.items()},
        errors={**work.ready.errors, **errors},
        warnings=work.ready.warnings,
        gathered=gather(context, {number: attempt.job for number, attempt in queue.done.items()}, folder),
        folder=folder,
    )
