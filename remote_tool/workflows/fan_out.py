"""helper-fan-out: work split over every slot of every server, or handed out item by item."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.artifacts import wanted_artifacts
from remote_tool.config.devices import command_environment, visible_devices
from remote_tool.errors import JobError, SomeServersFailedError, UsageError
from remote_tool.jobs.job import Job, JobSpec, JobState, new_job_id
from remote_tool.launchers.fan_out import (
    MOST_SLOTS,
    FanOutPlan,
    FanOutRequest,
    ServerSlots,
    Shard,
    Slot,
    fan_out_name,
    fan_out_tags,
    make_shards,
    make_slots,
    plan_fan_out,
)
from remote_tool.transport.pool import on_every
from remote_tool.workflows.audience import Audience, Turn
from remote_tool.workflows.fan_out_records import FanOutRecord, find_record, followed, write_record
from remote_tool.workflows.gather import gather, gathering_folder
from remote_tool.workflows.hand_out import Assignment, Board, HandOut
from remote_tool.workflows.launch import chosen_devices, find_script
from remote_tool.workflows.list_jobs import bring_artifacts_home, refresh
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.start_jobs import send_project, start_specs
from remote_tool.workflows.supervisor import call

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from remote_tool.config.model import Config
    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.context import Context

GPU_NAME = re.compile(r"[A-Za-z0-9/:._-]{1,100}")
SLOT_TAG = re.compile(r"slot-([0-9]{1,6})")
SHARDS_FAILED = 1


@dataclass(frozen=True)
class FanOutAnswer:
    """What became of a fan-out.

    Attributes:
        launch_id: Shared by its jobs.
        shards: How many there are.
        jobs: All of it, by key, also those that were started again.
        done: Numbers of the shards that succeeded.
        failed: The last job of each shard that failed, by its number.
        gathered: The files that were put into the project.
        folder: Where they are.
        errors: The error of each server that failed.
        warnings: Server and sentence.
        is_followed: Whether somebody stayed until nothing went on.
    """

    launch_id: str
    shards: int
    jobs: tuple[Job, ...]
    done: frozenset[int] = frozenset()
    failed: Mapping[int, Job] = field(default_factory=dict)
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    warnings: tuple[tuple[str, str], ...] = ()
    gathered: tuple[Path, ...] = ()
    folder: Path | None = None
    is_followed: bool = True

    @property
    def undone(self) -> int:
        """How many shards nobody has done: they failed, or never began."""
        return self.shards - len(self.done)

    @property
    def exit_code(self) -> int:
        """0: all is done, or begun where nobody follows; 1: a shard failed; 3: a server did."""
        if self.failed:
            return SHARDS_FAILED
        if self.errors:
            return self._servers_failed.exit_code
        return SHARDS_FAILED if self.is_followed and self.undone else 0

    def raise_if_any_failed(self) -> FanOutAnswer:
        """Raise what failed.

        Raises:
            SomeServersFailedError: Servers did.
            JobError: Shards did.
        """
        if self.errors:
            raise self._servers_failed
        if self.exit_code:
            raise JobError(
                f"{self.undone} of {self.shards} shards are not done",
                hint=f"remote-tool helper-fan-out --resume {fan_out_name(self.launch_id)}",
            )
        return self

    @property
    def _servers_failed(self) -> SomeServersFailedError:
        return SomeServersFailedError(self.errors, sorted({job.server for job in self.jobs} - set(self.errors)))


async def plan(context: Context, request: FanOutRequest) -> FanOutPlan:
    """Ask the servers and plan, and start nothing.

    Raises:
        SomeServersFailedError: Some could not be asked.
    """
    servers = choose_servers(context.config, request.servers)
    _find_script(context, request)
    slots, errors = await _ask_slots(context, request, context.config.listed, servers)
    if errors:
        raise SomeServersFailedError(errors, [each.server for each in slots])
    return plan_fan_out(request, slots, new_job_id())


async def start(context: Context, request: FanOutRequest, audience: Audience | None = None) -> FanOutAnswer:
    """Send, ask, plan, record and start every shard, and leave; what servers that fail would do, the others do.

    Raises:
        SomeServersFailedError: No server can do anything; nothing was started.
    """
    work = await _begin(context, request, audience or Audience())
    pairs = zip(work.plan.shards, work.plan.slots, strict=True)
    answer = await start_specs(context, [work.make_spec(Assignment(shard, slot)) for shard, slot in pairs])
    failed = [job for job in answer.jobs if job.state is JobState.FAILED and job.server not in answer.errors]
    return FanOutAnswer(
        launch_id=work.plan.launch_id,
        shards=len(work.plan.shards),
        jobs=answer.jobs,
        failed={job.node_rank or 0: job for job in failed},
        errors={**work.ready.errors, **answer.errors},
        warnings=work.ready.warnings,
        is_followed=False,
    )


async def follow(context: Context, request: FanOutRequest, audience: Audience | None = None) -> FanOutAnswer:
    """As :func:`start`, and stay until all is done: start again what fails, and hand out what waits.

    Raises:
        SomeServersFailedError: No server can do anything; nothing was started.
    """
    audience = audience or Audience()
    work = await _begin(context, request, audience)
    with followed(context.config.local.fan_outs, work.plan.launch_id):
        board = Board(work.plan.slots, deque(work.plan.shards), request.retries)
        return await _finish(context, work, board, audience)


async def resume(
    context: Context, word: str, environment: Mapping[str, str], audience: Audience | None = None, *, sync: bool = True
) -> FanOutAnswer:
    """Go on with a fan-out: follow what still runs, start what failed or never began, and nothing that is done.

    Raises:
        UsageError: There is no such fan-out, or a variable that it needs is not given.
        SomeServersFailedError: No server can do anything.
    """
    audience = audience or Audience()
    record = find_record(context.config.local.fan_outs, word)
    _refuse_missing_variables(record, environment)
    request = replace(record.request, environment=environment, sync=sync)
    with followed(context.config.local.fan_outs, record.launch_id):
        servers = choose_servers(context.config, request.servers)
        await refresh(context, servers)
        ready = await _make_ready(context, request, {**record.listed, **context.config.listed})
        slots, shards = make_slots(ready.slots, request.per_server), make_shards(request, record.shards)
        work = _Work(
            context.config, request, FanOutPlan(record.launch_id, request.command, slots, shards, is_queue=True), ready
        )
        audience.on_plan(work.plan)
        await _start_unconfirmed(context, work)
        return await _finish(context, work, _recall(work, _jobs_of(context, work, servers)), audience)


@dataclass(frozen=True)
class _Ready:
    """What the servers are, once they have the project."""

    slots: Sequence[ServerSlots]
    snapshots: Mapping[str, str]
    errors: Mapping[str, RemoteToolError]
    warnings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Work:
    """What is to be done, by whom."""

    config: Config
    request: FanOutRequest
    plan: FanOutPlan
    ready: _Ready

    def make_spec(self, assignment: Assignment) -> JobSpec:
        """Make the job of a shard on a slot; what the user sets counts."""
        shard, slot = assignment.shard, assignment.slot
        given = {**shard.environment, **self.request.environment}
        return JobSpec(
            id=new_job_id(),
            server=slot.server,
            command=shard.command(self.plan.command),
            environment=command_environment(self.config.variables_of(slot.server), given, slot.gpus),
            tags=(*self.request.tags, *fan_out_tags(self.plan.launch_id, shard, slot)),
            launch_id=self.plan.launch_id,
            node_rank=shard.number,
            snapshot=self.ready.snapshots.get(slot.server, ""),
            artifacts=wanted_artifacts(self.config, shard.globs(self.request.artifacts)),
        )


async def _begin(context: Context, request: FanOutRequest, audience: Audience) -> _Work:
    ready = await _make_ready(context, request, context.config.listed)
    work = _Work(context.config, request, plan_fan_out(request, ready.slots, new_job_id()), ready)
    # Also when a host list named the servers, or the configuration changes.
    named = replace(request, servers=choose_servers(context.config, request.servers))
    record = FanOutRecord(
        work.plan.launch_id, len(work.plan.shards), named, tuple(request.environment), context.config.listed
    )
    write_record(context.config.local.fan_outs, record)
    audience.on_plan(work.plan)
    return work


async def _finish(context: Context, work: _Work, board: Board, audience: Audience) -> FanOutAnswer:
    errors = await HandOut(context, board, work.make_spec, audience).run()
    jobs = _jobs_of(context, work, context.config.servers)
    home = [job for job in jobs if job.state.is_finished and job.server not in errors]
    errors = {**errors, **await bring_artifacts_home(context, home)}
    folder = gathering_folder(context.config, work.request.gather, work.plan.name)
    return FanOutAnswer(
        launch_id=work.plan.launch_id,
        shards=len(work.plan.shards),
        jobs=tuple(jobs),
        done=frozenset(board.done),
        failed={number: turn.job for number, turn in board.failed.items()},
        errors={**work.ready.errors, **errors},
        warnings=work.ready.warnings,
        gathered=gather(context, {number: turn.job for number, turn in board.done.items()}, folder),
        folder=folder,
    )


async def _make_ready(context: Context, request: FanOutRequest, listed: Mapping[str, int | None]) -> _Ready:
    servers = choose_servers(context.config, request.servers)
    _find_script(context, request)
    gathering_folder(context.config, request.gather)
    sent = await send_project(context, servers, wanted=request.sync)
    slots, errors = await _ask_slots(
        context, request, listed, [server for server in servers if server not in sent.errors]
    )
    errors = {**sent.errors, **errors}
    if not slots:
        raise SomeServersFailedError(errors, [])
    return _Ready(slots, sent.snapshots, errors, sent.warnings)


def _find_script(context: Context, request: FanOutRequest) -> None:
    first = request.command.split(maxsplit=1)[0]
    if first.endswith(".py"):
        find_script(context, first)


async def _ask_slots(
    context: Context, request: FanOutRequest, listed: Mapping[str, int | None], servers: Sequence[str]
) -> tuple[list[ServerSlots], dict[str, RemoteToolError]]:
    async def ask(server: str) -> ServerSlots:
        host = await context.pool.host(server)
        entry = context.config.entry_of(server)
        # Behind an entry there may be other GPUs, and only a launch asks there.
        question = {"launch": entry is not None, "entry": entry, "needs_python": False}
        answer = await call(host, context.config, "facts", question)
        found = _read_slots(server, answer)
        devices = chosen_devices(context.config.servers[server], request, answer)
        variables = command_environment(context.config.variables_of(server), request.environment, devices)
        visible = visible_devices(variables)
        gpus = found.gpus if visible is None else tuple(visible)
        return replace(found, gpus=gpus, listed=listed.get(server))

    results = await on_every(servers, ask)
    return list(results.values.values()), results.errors


def _read_slots(server: str, answer: Mapping[str, Any]) -> ServerSlots:
    names = answer.get("gpu_names")
    if not isinstance(names, list) or len(names) > MOST_SLOTS:
        raise JobError(f"{server}: does not say which GPUs it has", server=server)
    for name in names:
        if not isinstance(name, str) or not GPU_NAME.fullmatch(name):
            raise JobError(f"{server}: {name!r:.60} is no name of a GPU", server=server)
    return ServerSlots(server, tuple(names), place=json.dumps([answer.get("identity"), answer.get("project")]))


def _refuse_missing_variables(record: FanOutRecord, environment: Mapping[str, str]) -> None:
    missing = [name for name in record.variables if name not in environment]
    if missing:
        raise UsageError(
            f"The values of variables are written nowhere: fan-out {fan_out_name(record.launch_id)} needs"
            f" {', '.join(missing)} again",
            hint=" ".join(f"--env {name} VALUE" for name in missing),
        )


def _jobs_of(context: Context, work: _Work, servers: Collection[str]) -> list[Job]:
    jobs = context.registry.load()[0]
    return [job for job in jobs if job.launch_id == work.plan.launch_id and job.server in servers]


async def _start_unconfirmed(context: Context, work: _Work) -> None:
    """Ask again for starts whose answers nobody heard: the same id never starts anything twice."""
    slots = {(slot.server, slot.number): slot for slot in work.plan.slots}
    ready = [each.server for each in work.ready.slots]
    specs = [
        replace(
            work.make_spec(Assignment(shard, slots.get((job.server, _slot_of(job).number), _slot_of(job)))), id=job.id
        )
        for shard, job in _begun(work, _jobs_of(context, work, ready))
        if job.state is JobState.STARTING
    ]
    await start_specs(context, specs)


def _recall(work: _Work, jobs: Sequence[Job]) -> Board:
    """Return the board as the jobs that there are leave it."""
    known = _begun(work, jobs)
    done = {shard.number: Turn(shard, _slot_of(job), job) for shard, job in known if job.state is JobState.SUCCEEDED}
    # One that is to be stopped was given up, and its shard taken by another.
    running = [(shard, job) for shard, job in known if not job.state.is_finished and not job.stop_signal]
    turns = {job.id: Turn(shard, _slot_of(job), job) for shard, job in running if shard.number not in done}
    begun = done.keys() | {turn.shard.number for turn in turns.values()}
    waiting = deque(shard for shard in work.plan.shards if shard.number not in begun)
    return Board(work.plan.slots, waiting, work.request.retries, turns=turns, done=done)


def _begun(work: _Work, jobs: Sequence[Job]) -> list[tuple[Shard, Job]]:
    shards = {shard.number: shard for shard in work.plan.shards}
    return [(shards[job.node_rank], job) for job in jobs if job.node_rank in shards]


def _slot_of(job: Job) -> Slot:
    # Ours come after the user's.
    found = [SLOT_TAG.fullmatch(tag) for tag in reversed(job.tags)]
    return Slot(job.server, next((int(match[1]) for match in found if match), 0))
