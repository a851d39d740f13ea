"""The GPUs of a launch: free on all of its servers, or on none; only a followed command waits for them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, RemoteToolError
from remote_tool.workflows.events import Notice
from remote_tool.workflows.start.free_gpus import ask_free_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.launchers.request import LaunchRequest
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.selection import JobsAnswer

PAUSE = 5.0
# In the reason of a node that found them taken.
NOT_FREE = " free GPU"


async def find_gpus(context: Context, request: LaunchRequest, servers: Sequence[str]) -> Mapping[str, RemoteToolError]:
    """Return why a launch cannot have its GPUs, by server; with ``wait``, wait until it can.

    This reserves nothing: the servers do, when the launch starts.
    """
    said = ""
    while request.gpus:
        asked = await ask_free_gpus(context, servers)
        problems = {server: gpus.problem(request.gpus) for server, gpus in asked.values.items()}
        errors = {
            server: JobError(f"{server}: {text}; nothing was started", server=server)
            for server, text in problems.items()
            if text
        }
        can_never = any(gpus.total < request.gpus for gpus in asked.values.values())
        if asked.errors or can_never or not errors or not request.wait:
            return {**errors, **asked.errors}
        text = "; ".join(f"{server}: {problem}" for server, problem in problems.items() if problem)
        if text != said:
            context.report(Notice("", f"the launch waits: {text}"))
            said = text
        await _pause()
    return {}


async def shall_retry(context: Context, request: LaunchRequest, answer: JobsAnswer) -> bool:
    """Return whether a launch that did not start should be tried again: another job was quicker to take GPUs."""
    failed = [job for job in answer.jobs if job.state.is_finished and job.started_at is None and job.gpu_count]
    if not request.wait or not any(NOT_FREE in job.reason for job in failed):
        return False
    context.report(Notice("", "another job has taken GPUs of the launch meanwhile; trying again"))
    await _pause()
    return True


async def _pause() -> None:
    # Two launches that want the same servers must not meet again.
    await asyncio.sleep(PAUSE * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, guards nothing
