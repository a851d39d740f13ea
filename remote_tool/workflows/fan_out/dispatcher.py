"""Assign shards to free slots until all are done, and retry failed ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from remote_tool.errors import RemoteToolError
from remote_tool.jobs.logs import LogFolder
from remote_tool.transport.pool import on_every
from remote_tool.workflows.events import Notice
from remote_tool.workflows.fan_out.work_queue import Assignment, Attempt, WorkQueue
from remote_tool.workflows.jobs.follow import Chunk, Patience, follow_server, is_interruption
from remote_tool.workflows.jobs.log_streams import LogListener, Viewer
from remote_tool.workflows.start.start_specs import start_specs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_tool.jobs.job import Job, JobSpec
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.fan_out.observer import Observer

# A server that does not answer for this many seconds gets no more shards.
GONE_AFTER = 120.0


class Dispatcher:
    """Assigns the shards of a queue; each server has one task, and starts and follows its jobs over one channel.

    Args:
        context: The command's context.
        queue: The shards to do.
        make_spec: Creates the job of an assignment.
        observer: Receives progress.
    """

    def __init__(
        self, context: Context, queue: WorkQueue, make_spec: Callable[[Assignment], JobSpec], observer: Observer
    ) -> None:
        self._context = context
        self._queue = queue
        self._make_spec = make_spec
        self._observer = observer
        self._listener = LogListener(Viewer(self._show, _is_shown), self._on_end)
        self._begin_where_copies_end()

    async def run(self) -> Mapping[str, RemoteToolError]:
        """Run until every shard is done or cannot be; return the servers that failed."""
        return (await on_every(self._queue.servers, self._serve)).errors

    async def _serve(self, server: str) -> None:
        try:
            await self._work(server)
        except RemoteToolError as error:
            if left := self._queue.give_up(server):
                _add_remaining(error, left)
            raise

    async def _work(self, server: str) -> None:
        queue, patience = self._queue, Patience(GONE_AFTER)
        refusal: RemoteToolError | None = None
        while True:
            problem = await self._start(server, queue.take(server))
            if problem is None:
                patience.restore()
            elif is_interruption(problem):
                pause = patience.next_pause(problem)
                self._context.report(Notice(server, f"{problem}; trying again in {pause:.1f} s"))
                await asyncio.sleep(pause)
            else:
                refusal = problem
                queue.retire(server)
            if queue.attempts_on(server):
                await self._follow(server)
            elif refusal is not None:
                raise refusal
            elif queue.is_over:
                return
            else:
                await queue.until(lambda: queue.is_over or queue.has_work_for(server))

    async def _start(self, server: str, taken: Sequence[Assignment]) -> RemoteToolError | None:
        """Start jobs with one request; return the error of those that did not start."""
        if not taken:
            return None
        answer = await start_specs(self._context, [self._make_spec(each) for each in taken])
        problem, unstarted = answer.errors.get(server), []
        for assignment, job in zip(taken, answer.jobs, strict=True):
            if problem is not None and job.never_began:
                unstarted.append(assignment)
                continue
            self._queue.begin(Attempt(assignment.shard, assignment.slot, job))
            if job.state.is_finished:
                self._on_end(job)
        self._queue.give_back(unstarted)
        return problem

    async def _follow(self, server: str) -> None:
        """Follow a server's jobs until all have ended, or a slot is free and a shard is waiting."""
        jobs = [attempt.job for attempt in self._queue.attempts_on(server)]
        follow = follow_server(self._context, jobs, self._listener, logs=True, give_up_after=GONE_AFTER)
        try:
            # It waits until both have ended, and distinguishes our cancellation from theirs.
            async with asyncio.TaskGroup() as group:
                following = group.create_task(follow)
                work = group.create_task(self._queue.until(lambda: self._queue.has_work_for(server)))
                await asyncio.wait({following, work}, return_when=asyncio.FIRST_COMPLETED)
                following.cancel()
                work.cancel()
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None

    def _begin_where_copies_end(self) -> None:
        """Do not show output again that was pulled before the fan-out was resumed."""
        assert self._listener.viewer is not None
        for attempt in self._queue.attempts.values():
            for stream, size in LogFolder(self._context.registry.folder / attempt.job.id).sizes().items():
                self._listener.viewer.begin_at(attempt.job, stream, size)

    def _show(self, job: Job, stream: str, data: bytes) -> object:
        attempt = self._queue.attempts.get(job.id)
        if attempt is None:
            return None
        return self._observer.on_chunk(Chunk(job, stream, data, f"{attempt.shard.number} {attempt.slot.server}"))

    def _on_end(self, job: Job) -> None:
        attempt = self._queue.end(job)
        if attempt is not None:
            self._observer.on_end(attempt, not self._queue.is_settled(attempt.shard))


def _add_remaining(error: RemoteToolError, left: Sequence[Attempt]) -> None:
    """Add the shards that may still run on a server to its error."""
    numbers = ", ".join(str(attempt.shard.number) for attempt in left)
    jobs = " ".join(str(attempt.job.key) for attempt in left)
    shards, are, them = (f"shard {numbers}", "is", "it") if len(left) == 1 else (f"shards {numbers}", "are", "them")
    error.message += f"; {shards} may still run there, and {are} not started elsewhere"
    error.hint = f"To have --resume start {them} elsewhere: remote-tool job-kill {jobs}"


def _is_shown(_job: Job, stream: str) -> bool:
    return not stream.endswith("/error")
