"""Bringing home what jobs write: from the byte that is missing here to the last one that is there."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.jobs.job import JobState
from remote_tool.jobs.logs import LogFolder
from remote_tool.jobs.records import parse_job
from remote_tool.transport.pool import on_every
from remote_tool.workflows.events import Notice
from remote_tool.workflows.supervisor import converse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job
    from remote_tool.supervisor.framing import Frame
    from remote_tool.workflows.context import Context


@dataclass(frozen=True)
class Listener:
    """Who hears what comes: bytes of a job's stream, and the job when it is over."""

    on_bytes: Callable[[Job, str, bytes], None] = lambda _job, _stream, _data: None
    on_end: Callable[[Job], None] = lambda _job: None


async def bring_logs_home(context: Context, jobs: Sequence[Job]) -> dict[str, RemoteToolError]:
    """Bring home what these jobs wrote until now, all servers at once; return the servers that failed."""
    by_server: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if not job.logs_complete and job.server in context.config.servers:
            by_server[job.server].append(job)

    async def bring(server: str) -> None:
        await stream_logs(context, server, by_server[server], Listener(), wait=False)

    return dict((await on_every(by_server, bring)).errors)


async def stream_logs(
    context: Context, server: str, jobs: Sequence[Job], listener: Listener, *, wait: bool, logs: bool = True
) -> None:
    """Follow jobs of one server over one channel, writing the local copies.

    Args:
        context: Of this command.
        server: Where the jobs are.
        jobs: Which ones.
        listener: Hears what comes.
        wait: Whether to go on until the jobs have ended; else until all that is there now has come.
        logs: Whether the output is wanted, or only the end.

    Raises:
        ConnectionLostError: The link went; what came is kept, and a new call goes on from there.
        JobError: The server does not do it, or says what cannot be.
    """
    host = await context.pool.host(server)
    copies = {job.id: _Copy(job, LogFolder(context.registry.folder / job.id)) for job in jobs}
    request = {
        "jobs": [{"id": copy.job.id, "offsets": dict(copy.sizes)} for copy in copies.values()],
        "wait": wait,
        "streams": logs,
    }
    async with converse(host, context.config, "follow", request) as frames:
        async for frame in frames:
            copy = copies.get(str(frame.header.get("job")))
            if copy is None:
                raise JobError(f"{server}: sent output of a job that was not asked for", server=server)
            _take(context, copy, frame, listener)


class _Copy:
    """The local copy of one job's logs while it is followed."""

    def __init__(self, job: Job, folder: LogFolder) -> None:
        self.job = job
        self.folder = folder
        self.sizes: dict[str, int] = folder.sizes()

    def add(self, header: Mapping[str, object], data: bytes) -> str:
        """Write what came; the server has to go on where we are."""
        stream = str(header.get("stream"))
        if header.get("reset"):
            self.folder.reset(stream)
            self.sizes[stream] = 0
        elif header.get("offset") != self.sizes.get(stream, 0):
            raise JobError(f"{self.job.server}: sent bytes of job {self.job.id} that do not go on where ours end")
        self.folder.write(stream, self.sizes.get(stream, 0), data)
        self.sizes[stream] = self.sizes.get(stream, 0) + len(data)
        return stream


def _take(context: Context, copy: _Copy, frame: Frame, listener: Listener) -> None:
    if "status" in frame.header:
        _take_status(context, copy, frame.header["status"], listener)
        return
    if "error" in frame.header:
        _take_loss(context, copy, str(frame.header["error"]), listener)
        return
    stream = copy.add(frame.header, frame.body)
    if frame.body:
        listener.on_bytes(copy.job, stream, frame.body)


def _take_status(context: Context, copy: _Copy, status: object, listener: Listener) -> None:
    seen = parse_job(status, copy.job.server, time.time()).job
    if seen.id != copy.job.id:
        raise JobError(f"{copy.job.server}: answered about another job", server=copy.job.server)
    recorded = context.registry.update([replace(seen, logs_complete=seen.state.is_finished)])
    if recorded and seen.state.is_finished:
        listener.on_end(recorded[0])


def _take_loss(context: Context, copy: _Copy, why: str, listener: Listener) -> None:
    """The server has no readable record of the job: there is nothing more to come of it."""
    context.report(Notice(copy.job.server, f"job {copy.job.key}: {why}"))
    lost = replace(copy.job, state=JobState.LOST, reason=why, ended_at=time.time(), logs_complete=True)
    for job in context.registry.update([lost]):
        listener.on_end(job)
