"""--follow of a launch: restart it when its port was taken, and with --max-restarts when it lost a node.

A port that is free during planning may be taken when torchrun opens it. Nothing has run yet then, so a launch
on another port is safe.

torchrun itself restarts failed workers. It cannot bring back a machine that rebooted, because torchrun no longer runs
there. We can, for as long as we follow. Without torchrun, we also restart failures.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.errors import ConnectError, JobError, SomeServersFailedError
from remote_tool.jobs.job import JobState
from remote_tool.launchers.job_request import KeptCode
from remote_tool.launchers.plan import Launcher
from remote_tool.workflows.events import Notice
from remote_tool.workflows.jobs.follow import FollowAnswer, FollowOptions, OnChunk, follow_jobs
from remote_tool.workflows.jobs.stop import stop_on_servers
from remote_tool.workflows.launch.launch import git_of, launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.launchers.request import LaunchRequest
    from remote_tool.workflows.context import Context

# Timeout for the nodes to reach each other again.
GIVE_UP_AFTER = 600.0
PAUSE = 5.0
# A program that takes this many ports in a row will take the next one as well.
MOST_NEW_PORTS = 2


async def follow_launch(
    context: Context, request: LaunchRequest, jobs: Sequence[Job], on_chunk: OnChunk
) -> FollowAnswer:
    """Follow a launch to its end; restart it when its port was taken or, with ``max_restarts``, a node was lost.

    Where nothing restarts failed ranks, ``max_restarts`` also applies to failed launches.

    Raises:
        JobError: The nodes did not reach each other again in time.
        ConnectError: A server could not be reached again in time.
    """
    restarts = new_ports = 0
    while True:
        answer = await follow_jobs(context, jobs, on_chunk, FollowOptions())
        lost = _find_lost(answer, or_failed=not Launcher.named(request.launcher).restarts_ranks)
        without_port = _find_without_port(answer)
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
        context.report(
            Notice(
                job.server,
                f"job {job.key}: {job.reason or f'exit code {job.exit_code}'}; restarting the launch, {count}",
            )
        )
        jobs = await _start_again(context, request, answer.jobs, jobs[0])


def _find_lost(answer: FollowAnswer, *, or_failed: bool) -> Job | None:
    """Return a job that lost a node, or failed; None when the launch ended in another way."""
    if any(job.state is JobState.KILLED for job in answer.jobs):
        return None
    ended = {JobState.LOST, JobState.FAILED} if or_failed else {JobState.LOST}
    found = [job for job in answer.jobs if job.state in ended or job.lost_node is not None]
    return min(found, key=lambda job: job.stopped_with_launch, default=None)


def _find_without_port(answer: FollowAnswer) -> Job | None:
    """Return the job whose torchrun found its port taken, so that no rank has run; None without one."""
    if any(job.state is JobState.KILLED for job in answer.jobs):
        return None
    return next((job for job in answer.jobs if job.taken_port is not None), None)


async def _start_again(context: Context, request: LaunchRequest, ended: Sequence[Job], before: Job) -> tuple[Job, ...]:
    """Restart all nodes once nothing of the launch runs and they reach each other; the project is up to date."""
    git = git_of(before)
    copies = {job.server: job.copy for job in ended}
    # Later syncs may have changed the project, and what the launch wrote is in its copies.
    kept = KeptCode(copies, before.git_commit, before.git_branch, before.git_dirty)
    code = kept if all(copies.values()) else request.code
    again = replace(request, sync=False, from_job="", code=code)
    deadline = time.monotonic() + GIVE_UP_AFTER
    while True:
        try:
            # A job without a supervisor may have processes left, which would hold the GPUs.
            (await stop_on_servers(context, ended)).raise_if_any_failed()
            answer = await launch(context, again, git)
            answer.raise_if_any_failed()
        except (ConnectError, JobError, SomeServersFailedError) as error:
            if time.monotonic() > deadline:
                raise
            context.report(Notice("", f"{error}; trying again in {PAUSE:.0f} s"))
            await asyncio.sleep(PAUSE)
        else:
            return answer.jobs
