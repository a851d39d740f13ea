"""--follow of a launch: it starts again when its port was taken, and with --max-restarts when it lost a node.

A port that is free when a launch is planned may be taken when torchrun opens it. Nothing has run yet then, so a launch
on another port does no harm.

torchrun itself starts workers anew that fail. It cannot bring back a machine that rebooted, because nobody starts
torchrun there. We can, for as long as we follow.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.errors import ConnectError, JobError, SomeServersFailedError
from remote_tool.jobs.job import JobState
from remote_tool.workflows.events import Notice
from remote_tool.workflows.follow_jobs import FollowAnswer, FollowOptions, OnChunk, follow_jobs
from remote_tool.workflows.launch import launch_torch
from remote_tool.workflows.stop_jobs import stop_on_servers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.launchers.torch import LaunchRequest
    from remote_tool.workflows.context import Context

# A node that reaches the others again only after this long is not waited for.
GIVE_UP_AFTER = 600.0
PAUSE = 5.0
# Whoever takes so many ports of ours in a row will take the next one as well.
MOST_NEW_PORTS = 2


async def follow_launch(
    context: Context, request: LaunchRequest, jobs: Sequence[Job], on_chunk: OnChunk
) -> FollowAnswer:
    """Follow a launch to its end; start it again when its port was taken or, with ``max_restarts``, a node was lost.

    Raises:
        JobError: The nodes did not reach each other again in time.
        ConnectError: A server could not be reached again in time.
    """
    restarts = new_ports = 0
    while True:
        answer = await follow_jobs(context, jobs, on_chunk, FollowOptions())
        lost, without_port = _find_lost(answer), _find_without_port(answer)
        if answer.errors:
            return answer
        if without_port is not None and request.master_port is None and new_ports < MOST_NEW_PORTS:
            new_ports += 1
            job, count = without_port, f"new port {new_ports} of {MOST_NEW_PORTS}"
        elif lost is not None and restarts < request.max_restarts:
            restarts += 1
            job, count = lost, f"restart {restarts} of {request.max_restarts}"
        else:
            return answer
        context.report(Notice(job.server, f"job {job.key}: {job.reason}; starting the launch again, {count}"))
        # Of a job whose supervisor is gone, processes may be left, and they would hold the GPUs.
        await stop_on_servers(context, answer.jobs)
        jobs = await _start_again(context, request)


def _find_lost(answer: FollowAnswer) -> Job | None:
    """Return a job that tells of a lost node; None when the launch ended in another way."""
    if any(job.state is JobState.KILLED for job in answer.jobs):
        return None
    return next((job for job in answer.jobs if job.state is JobState.LOST or job.lost_node is not None), None)


def _find_without_port(answer: FollowAnswer) -> Job | None:
    """Return the job whose torchrun found its port taken, so that no rank has run; None when that did not happen."""
    if any(job.state is JobState.KILLED for job in answer.jobs):
        return None
    return next((job for job in answer.jobs if job.taken_port is not None), None)


async def _start_again(context: Context, request: LaunchRequest) -> tuple[Job, ...]:
    """Start all nodes anew, as soon as they reach each other; the project is there already."""
    deadline = time.monotonic() + GIVE_UP_AFTER
    while True:
        try:
            answer = await launch_torch(context, replace(request, sync=False))
            answer.raise_if_any_failed()
        except (ConnectError, JobError, SomeServersFailedError) as error:
            if time.monotonic() > deadline:
                raise
            context.report(Notice("", f"{error}; trying again in {PAUSE:.0f} s"))
            await asyncio.sleep(PAUSE)
        else:
            return answer.jobs
