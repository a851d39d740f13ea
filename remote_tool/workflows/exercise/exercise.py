"""check --exercise: have all servers multiply matrices and sum tensors together for a minute, as one launch.

It is a launch like any other, so its GPUs are reserved, its processes end with it, and its output is kept. It sends no
files: the program is an environment variable.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import shlex
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from remote_tool.environments.checks.checks import Check, Status
from remote_tool.environments.checks.exercise import (
    ExercisedDevice,
    GpuHealth,
    NodeMeasurement,
    judge,
    read_measurement,
    with_medians,
)
from remote_tool.errors import JobError, RemoteToolError, SomeServersFailedError, UsageError
from remote_tool.jobs.job import EXERCISE_COMMAND
from remote_tool.launchers.plan import Launcher
from remote_tool.launchers.request import LaunchRequest
from remote_tool.protocol import rank_errors
from remote_tool.workflows.context import REPORTED_AFTER, Context
from remote_tool.workflows.events import Notice
from remote_tool.workflows.exercise import program
from remote_tool.workflows.jobs.follow import Chunk, FollowAnswer, FollowOptions, follow_jobs
from remote_tool.workflows.jobs.stop import stop_on_servers
from remote_tool.workflows.launch.launch import all_or_none, make_plan, make_specs
from remote_tool.workflows.launch.node_facts import ask_facts
from remote_tool.workflows.start.free_gpus import ask_free_gpus
from remote_tool.workflows.start.send import Sent, complete
from remote_tool.workflows.start.start_specs import start_specs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.jobs.job import Job, JobSpec
    from remote_tool.launchers.plan import LaunchPlan, NodeFacts
    from remote_tool.workflows.selection import JobsAnswer

LEAST_SECONDS, MOST_SECONDS = 20.0, 3600.0
# Until the servers have started it, and have reported its end.
SPARE_SECONDS = 30.0
# After Ctrl-C: until its start is known, and then until the servers have ended it.
START_SECONDS, END_SECONDS = 10.0, 30.0
GPU_PAUSE = 2.0
# A program that prints without end does not fill this machine's memory.
MOST_PRINTED = 1024 * 1024
NAME = "exercise"


@dataclass(frozen=True)
class Exercise:
    """What an exercise measured.

    Attributes:
        devices: Every GPU, and the CPU of each server without one.
        health: What nvidia-smi said about the GPUs of each server.
        ranks: The number of ranks that took part.
        all_reduce_bits: Bus bandwidth of the all-reduce over all ranks, in bit/s; None with one rank.
        checks: The checks of each server.
    """

    devices: tuple[ExercisedDevice, ...] = ()
    health: Mapping[str, tuple[GpuHealth, ...]] = field(default_factory=dict)
    ranks: int = 0
    all_reduce_bits: float | None = None
    checks: Mapping[str, tuple[Check, ...]] = field(default_factory=dict)


def check_seconds(seconds: float) -> None:
    """Refuse a time in which nothing can be measured, or that nobody would wait for."""
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds must be from {LEAST_SECONDS:g} to {MOST_SECONDS:g}, found {seconds:g}")


async def exercise(context: Context, servers: Sequence[str], seconds: float) -> Exercise:
    """Exercise servers together; a server that cannot take part has a failed check, and raises nothing.

    Args:
        context: The command's context.
        servers: Those that answered.
        seconds: The most that the exercise takes, after waiting at most as long for GPUs.
    """
    failed: dict[str, tuple[Check, ...]] = {}
    request = _request(servers, seconds)
    nodes = await _find_nodes(context, request, servers, failed)
    nodes = await _find_gpus(context, nodes, seconds, failed)
    begun = _Begun()
    jobs: tuple[Job, ...] = ()
    ranks, measured, problems = 0, dict[str, NodeMeasurement](), dict[str, Check]()
    others = Check(NAME, Status.UNKNOWN, "not exercised, as another server failed")
    try:
        if nodes:
            jobs, ranks = await _start(context, request, list(nodes.values()), seconds, begun)
            measured, problems = await _follow(context, jobs, seconds)
    except SomeServersFailedError as error:
        found = {server: _failed(each) for server, each in error.failures.items()}
        failed |= {server: (found.get(server, others),) for server in nodes}
    except RemoteToolError as error:
        failed |= {server: (others if error.server not in {"", server} else _failed(error),) for server in nodes}
    except asyncio.CancelledError:
        await _end(context, begun, seconds)
        raise
    answer = _judged(measured, problems, ranks)
    return replace(answer, checks={**failed, **answer.checks})


@dataclass
class _Begun:
    """The ids of the jobs, before anything starts, and their start."""

    ids: tuple[str, ...] = ()
    starting: asyncio.Task[JobsAnswer] | None = None


async def _end(context: Context, begun: _Begun, seconds: float) -> None:
    """End the exercise after Ctrl-C; without a connection, it ends when its time is up."""
    text = f"ending the exercise; if you press Ctrl-C again, it may go on for up to {seconds:.0f} s"
    notice = asyncio.get_running_loop().call_later(REPORTED_AFTER, context.report, Notice("", text))
    try:
        if begun.starting is not None:
            # A stop that overtakes the start would find nothing.
            await asyncio.wait([begun.starting], timeout=START_SECONDS)
        await stop_on_servers(context, list(context.registry.find(begun.ids).values()), signal="SIGKILL")
    finally:
        notice.cancel()


def _request(servers: Sequence[str], seconds: float) -> LaunchRequest:
    return LaunchRequest(
        EXERCISE_COMMAND,
        tuple(servers),
        sync=False,
        launcher="shell",
        frozen=False,
        name=NAME,
        workdir="",
        max_duration=seconds + SPARE_SECONDS,
        stop_if_idle=0,
        on_end="",
    )


def _judged(measured: Mapping[str, NodeMeasurement], problems: Mapping[str, Check], ranks: int) -> Exercise:
    devices = with_medians(each for found in measured.values() for each in found.devices)
    bits = next((found.bits for found in measured.values() if found.bits is not None), None)
    checks = judge(measured, devices, bits, ranks)
    return Exercise(
        devices,
        {server: tuple(found.health) for server, found in measured.items() if found.health},
        ranks,
        bits,
        {server: (*own, *([problems[server]] if server in problems else [])) for server, own in checks.items()},
    )


def _failed(error: RemoteToolError) -> Check:
    return Check(NAME, Status.FAIL, error.message, error.hint)


async def _find_nodes(
    context: Context, request: LaunchRequest, servers: Sequence[str], failed: dict[str, tuple[Check, ...]]
) -> dict[str, NodeFacts]:
    """Return the servers with torch, one for each machine."""
    asked = await ask_facts(context, request, servers, Launcher.named(request.launcher))
    failed |= {server: (_failed(error),) for server, error in asked.errors.items()}
    for server, facts in asked.values.items():
        if not facts.torch:
            hint = f"add torch to the requirements; remote-tool update-packages --server {server}"
            failed[server] = (Check(NAME, Status.FAIL, "its environment has no torch", hint),)
    nodes = {server: facts for server, facts in asked.values.items() if server not in failed}
    while True:
        try:
            Launcher.named(request.launcher).check(list(nodes.values()))
        except JobError as error:
            failed[error.server] = (_failed(error),)
            del nodes[error.server]
        else:
            return nodes


async def _find_gpus(
    context: Context, nodes: Mapping[str, NodeFacts], seconds: float, failed: dict[str, tuple[Check, ...]]
) -> dict[str, NodeFacts]:
    """Return the servers whose GPUs are free, after waiting for them; their devices are the number to reserve."""
    deadline, last = time.monotonic() + seconds, ""
    while True:
        asked = await ask_free_gpus(context, [*nodes])
        taken = {server: text for server, gpus in asked.values.items() if (text := gpus.problem(gpus.total))}
        if not taken or time.monotonic() > deadline:
            break
        text = "; ".join(f"{server}: {why}" for server, why in taken.items())
        if text != last:
            context.report(Notice("", f"the exercise waits for GPUs: {text}"))
            last = text
        await asyncio.sleep(GPU_PAUSE)
    failed |= {server: (_failed(error),) for server, error in asked.errors.items()}
    for server, text in taken.items():
        failed[server] = (Check(NAME, Status.FAIL, f"its GPUs are in use: {text}", "remote-tool gpus"),)
    for server, gpus in asked.values.items():
        if nodes[server].gpus and not gpus.total:
            # Such as AMD's: without a reservation, somebody's training may run on them.
            failed[server] = (Check(NAME, Status.UNKNOWN, f"its GPUs cannot be reserved: {gpus.why}"),)
    return {
        server: replace(nodes[server], gpus=gpus.total) for server, gpus in asked.values.items() if server not in failed
    }


async def _start(
    context: Context, request: LaunchRequest, nodes: Sequence[NodeFacts], seconds: float, begun: _Begun
) -> tuple[tuple[Job, ...], int]:
    """Start the launch; return its jobs and the number of ranks. ``begun`` is filled in before anything starts.

    Raises:
        JobError: A server cannot reach the first one; nothing was started.
        SomeServersFailedError: Some did not start; nothing runs.
    """
    plan = await make_plan(
        context, replace(request, lost_after=context.config.lost_after), nodes, Launcher.named(request.launcher)
    )
    specs = _make_specs(context, request, plan, nodes, seconds)
    begun.ids = tuple(spec.id for spec in specs)
    begun.starting = asyncio.create_task(start_specs(context, specs))
    answer = await all_or_none(context, await asyncio.shield(begun.starting))
    if answer.errors:
        raise SomeServersFailedError(answer.errors, [])
    return answer.jobs, sum(map(_count_ranks, nodes))


def _count_ranks(node: NodeFacts) -> int:
    return max(1, node.gpus)


def _make_specs(
    context: Context, request: LaunchRequest, plan: LaunchPlan, nodes: Sequence[NodeFacts], seconds: float
) -> list[JobSpec]:
    counts = [_count_ranks(node) for node in nodes]
    leaders = [sum(counts[:place]) for place in range(len(counts))]
    nccl = all(node.gpus for node in nodes)
    common = {"seconds": seconds, "ranks": sum(counts), "leaders": leaders, "nccl": nccl}
    # Not in the request, whose variables are secrets: their words are redacted.
    source = inspect.getsource(program)
    return [
        replace(
            complete(spec, context.config, request, Sent({})),
            environment={
                **spec.environment,
                program.SOURCE: source,
                program.PLAN: json.dumps({**common, "devices": node.gpus, "first_rank": leader}),
            },
            gpus=node.devices or None,
            gpu_count=node.gpus or None,
            waits=False,
            on_empty=None,
        )
        for node, leader, spec in zip(nodes, leaders, make_specs(plan, request), strict=True)
    ]


async def _follow(
    context: Context, jobs: Sequence[Job], seconds: float
) -> tuple[dict[str, NodeMeasurement], dict[str, Check]]:
    """Follow the jobs to their end; return what each server measured, and why one did not."""
    printed: dict[str, bytearray] = {job.server: bytearray() for job in jobs}

    def keep(chunk: Chunk) -> None:
        if chunk.stream == "out" and len(printed[chunk.job.server]) < MOST_PRINTED:
            printed[chunk.job.server] += chunk.data

    answer, is_late = FollowAnswer(tuple(jobs)), False
    try:
        async with asyncio.timeout(seconds + SPARE_SECONDS):
            answer = await follow_jobs(context, jobs, keep, FollowOptions(started=True))
    except TimeoutError:
        is_late = True
        await stop_on_servers(context, jobs, signal="SIGKILL")
    measured = {server: read_measurement(server, text.decode(errors="replace")) for server, text in printed.items()}
    if is_late:
        late = Check(NAME, Status.FAIL, f"did not end within {seconds + SPARE_SECONDS:g} s", "remote-tool job-list")
        return measured, {job.server: late for job in jobs}
    return measured, _find_problems(answer, measured)


def _find_problems(answer: FollowAnswer, measured: Mapping[str, NodeMeasurement]) -> dict[str, Check]:
    problems, consequences = {}, []
    for job in answer.jobs:
        hint = f"remote-tool job-tail {shlex.quote(str(job.key))}"
        if error := answer.errors.get(job.server):
            problems[job.server] = _failed(error)
        elif measured[job.server].problems:
            problems[job.server] = Check(NAME, Status.FAIL, measured[job.server].problems[0], hint)
            if rank_errors.is_consequence(measured[job.server].problems[0]):
                consequences.append(job.server)
        elif job.program_exit_code != 0:
            ended = job.reason or f"ended as {job.state}"
            problems[job.server] = Check(NAME, Status.FAIL, f"did not complete: {ended}", hint)
    if len(consequences) < len(problems):
        for server in consequences:
            problems[server] = Check(NAME, Status.UNKNOWN, "ended, as another server failed")
    return problems
