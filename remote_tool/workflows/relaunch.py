"""--follow of a launch with --max-restarts: when a node was lost and is back, all nodes start again.

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


async def follow_launch(
    context: Context, request: LaunchRequest, jobs: Sequence[Job], on_chunk: OnChunk
) -> FollowAnswer:
    """Follow a launch to its end, and start it again as often as ``max_restarts`` says when it lost a node.

    Raises:
        JobError: The nodes did not reach each other again in time.
        ConnectError: A server could not be reached again in time.
    """
    restarts = 0
    while True:
        answer = await follow_jobs(context, jobs, on_chunk, FollowOptions())
        lost = _find_lost(answer)
        if lost is None or answer.errors or restarts >= request.max_restarts:
            return answer
        restarts += 1
        count = f"restart {restarts} of {request.max_restarts}"
        context.report(Notice(lost.server, f"job {lost.key} {lost.reason}; starting the launch again, {count}"))
        # Of a job whose supervisor is gone, processes may be left, and they would hold the GPUs.
        await stop_on_servers(context, answer.jobs)
        jobs = await _start_again(context, request)


def _find_lost(answer: FollowAnswer) -> Job | None:
    """Return a job that tells of a lost node; None when the launch ended in another way."""
    if any(job.state is JobState.KILLED for job in answer.jobs):
        return None
    return next((job for job in answer.jobs if job.state is JobState.LOST or job.lost_node is not None), None)


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
