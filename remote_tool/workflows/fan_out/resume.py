"""helper-fan-out --resume: continue a fan-out from the state of its jobs."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.errors import UsageError
from remote_tool.jobs.job import Job, JobState
from remote_tool.launchers.fan_out import (
    FanOutPlan,
    Shard,
    Slot,
    fan_out_name,
    make_shards,
    make_slots,
)
from remote_tool.workflows.fan_out.observer import Observer
from remote_tool.workflows.fan_out.work_queue import Assignment, Attempt, WorkQueue
from remote_tool.workflows.fan_out_records import FanOutRecord, find_record, followed
from remote_tool.workflows.jobs.listing import refresh
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.start.start_specs import start_specs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.workflows.context import Context
    from remote_tool.workflows.fan_out.answer import FanOutAnswer
from remote_tool.workflows.fan_out.fan_out import finish
from remote_tool.workflows.fan_out.work import Work, jobs_of, make_ready

SLOT_TAG = re.compile(r"slot-([0-9]{1,6})")


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
    record = find_record(context.config.local.fan_outs, word)
    _refuse_missing_variables(record, environment)
    request = replace(record.request, environment=environment, sync=sync, overwrite=overwrite)
    with followed(context.config.local.fan_outs, record.launch_id):
        servers = choose_servers(context.config, request.servers)
        await refresh(context, servers)
        ready = await make_ready(context, request, {**record.listed, **context.config.listed})
        slots, shards = make_slots(ready.slots, request.per_server), make_shards(request, record.shards)
        work = Work(
            context.config, request, FanOutPlan(record.launch_id, request.command, slots, shards, is_queue=True), ready
        )
        observer.on_plan(work.plan)
        await _start_unconfirmed(context, work)
        queue = _recall(work, jobs_of(context, work, servers), record.done)
        return await finish(context, work, queue, observer, record.done)


def _refuse_missing_variables(record: FanOutRecord, environment: Mapping[str, str]) -> None:
    missing = [name for name in record.variables if name not in environment]
    if missing:
        raise UsageError(
            f"Values of variables are never stored: fan-out {fan_out_name(record.launch_id)} needs"
            f" {', '.join(missing)} again",
            hint=" ".join(f"--env {name} VALUE" for name in missing),
        )


async def _start_unconfirmed(context: Context, work: Work) -> None:
    """Repeat unconfirmed starts: the same id never starts anything twice."""
    slots = {(slot.server, slot.number): slot for slot in work.plan.slots}
    ready = [each.server for each in work.ready.slots]
    specs = [
        replace(
            work.make_spec(Assignment(shard, slots.get((job.server, _slot_of(job).number), _slot_of(job)))), id=job.id
        )
        for shard, job in _begun(work, jobs_of(context, work, ready))
        if job.state is JobState.STARTING
    ]
    await start_specs(context, specs, again=True)


def _recall(work: Work, jobs: Sequence[Job], recorded: frozenset[int]) -> WorkQueue:
    """Return the queue as given by the existing jobs, and by the records of removed ones."""
    known = _begun(work, jobs)
    done = {shard.number: Attempt(shard, _slot_of(job), job) for shard, job in known if job.state is JobState.SUCCEEDED}
    # A job with a pending stop was given up by the user; others may do its shard.
    running = [(shard, job) for shard, job in known if job.may_run and not job.stop_signal]
    attempts = {job.id: Attempt(shard, _slot_of(job), job) for shard, job in running if shard.number not in done}
    begun = recorded | done.keys() | {attempt.shard.number for attempt in attempts.values()}
    waiting = deque(shard for shard in work.plan.shards if shard.number not in begun)
    return WorkQueue(work.plan.slots, waiting, work.request.retries, attempts=attempts, done=done)


def _begun(work: Work, jobs: Sequence[Job]) -> list[tuple[Shard, Job]]:
    shards = {shard.number: shard for shard in work.plan.shards}
    return [(shards[job.node_rank], job) for job in jobs if job.node_rank in shards]


def _slot_of(job: Job) -> Slot:
    # Ours come after the user's.
    found = [SLOT_TAG.fullmatch(tag) for tag in reversed(job.tags)]
    return Slot(job.server, next((int(match[1]) for match in found if match), 0))
