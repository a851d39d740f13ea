"""Bringing home what jobs write: from the byte that is missing here to the last one that is there."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.jobs.job import JobState
from remote_tool.jobs.logs import LogFolder
from remote_tool.jobs.records import parse_job
from remote_tool.supervisor.streams import MOST_STREAMS
from remote_tool.transport.pool import on_every
from remote_tool.workflows import supervisor
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job
    from remote_tool.supervisor.framing import Frame
    from remote_tool.workflows.context import Context

LARGEST_LOG = 2**50
# What is there at one moment is not more than its limit, by far.
MOST_LIMITS = 2
# The local copy is compared with its limit after so many new bytes.
CHECK_EVERY = 16 * 1024 * 1024
# The server keeps a folder open for each job that is asked for at once, and may open about a thousand files.
PORTION = 500


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
        missing = by_server[server]
        for first in range(0, len(missing), PORTION):
            await stream_logs(context, server, missing[first : first + PORTION], Listener(), wait=False)

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
    limit = context.config.log_limit
    copies = {
        job.id: _Copy(job, LogFolder(context.registry.folder / job.id), _Bounds(limit, wanted=logs, endless=wait))
        for job in jobs
    }
    request = {
        "jobs": [{"id": copy.job.id, "offsets": dict(copy.sizes)} for copy in copies.values()],
        "wait": wait,
        "streams": logs,
    }
    # A job that runs may write nothing for hours; but what is there already comes at once.
    silence = None if wait else supervisor.LONGEST_SILENCE
    async with supervisor.converse(host, context.config, "follow", request, silence=silence) as frames:
        async for frame in frames:
            copy = copies.get(str(frame.header.get("job")))
            if copy is None:
                raise JobError(f"{server}: sent output of a job that was not asked for", server=server)
            if copy.is_over:
                raise JobError(f"{server}: goes on about job {copy.job.id} after its end", server=server)
            _take(context, copy, frame, listener)


@dataclass(frozen=True)
class _Bounds:
    """How much of a job's output is taken: bytes per stream, whether any, and whether it may go on for ever."""

    limit: int
    wanted: bool
    endless: bool


class _Copy:
    """The local copy of one job's logs while it is followed; unless they are wanted, nothing comes."""

    def __init__(self, job: Job, folder: LogFolder, bounds: _Bounds) -> None:
        self.job = job
        self._bounds = bounds
        self._unchecked: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self.folder = folder
        self.wanted = bounds.wanted
        self.is_over = False
        self.sizes: dict[str, int] = folder.sizes()

    def add(self, header: Mapping[str, object], data: bytes) -> str:
        """Write what came; the server has to go on where we are."""
        stream = str(header.get("stream"))
        if header.get("reset"):
            self.folder.reset(stream)
            self.sizes[stream] = 0
        elif header.get("offset") != self.sizes.get(stream, 0) + skipped_bytes(header):
            raise JobError(f"{self.job.server}: sent bytes of job {self.job.id} that do not go on where ours end")
        if stream not in self.sizes and len(self.sizes) >= MOST_STREAMS:
            raise JobError(f"{self.job.server}: job {self.job.id} has more than {MOST_STREAMS} output files")
        offset = self.sizes.get(stream, 0) + skipped_bytes(header)
        if skipped_bytes(header):
            self.folder.skip(stream, offset)
        self.folder.write(stream, offset, data)
        self.sizes[stream] = offset + len(data)
        self._keep_within_limit(stream, len(data))
        return stream

    def _keep_within_limit(self, stream: str, count: int) -> None:
        self._unchecked[stream] += count
        self._received[stream] += count
        if self._unchecked[stream] >= CHECK_EVERY:
            self._unchecked[stream] = 0
            self.folder.keep_within(stream, self._bounds.limit)
        if not self._bounds.endless and self._received[stream] > MOST_LIMITS * self._bounds.limit:
            raise JobError(
                f"{self.job.server}: sends more of job {self.job.key} than log_limit allows; what came is kept, and the"
                f" rest of {stream} is not brought home",
                hint="Set log_limit in .remote/configs.yaml",
                server=self.job.server,
            )


def skipped_bytes(header: Mapping[str, object]) -> int:
    """Return how many bytes the server has dropped before these; 0 for what cannot be meant."""
    skipped = header.get("skipped")
    return skipped if isinstance(skipped, int) and 0 < skipped < LARGEST_LOG else 0


def _take(context: Context, copy: _Copy, frame: Frame, listener: Listener) -> None:
    copy.is_over = "status" in frame.header or "error" in frame.header
    if "status" in frame.header:
        _take_status(context, copy, frame.header["status"], listener)
        return
    if "error" in frame.header:
        _take_loss(context, copy, str(frame.header["error"]), listener)
        return
    stream = copy.add(frame.header, frame.body)
    if skipped := skipped_bytes(frame.header):
        text = f"job {copy.job.key}: {skipped:,} bytes of older output ({stream}) were dropped by log_limit"
        context.report(Notice(copy.job.server, text))
    if frame.body:
        listener.on_bytes(copy.job, stream, frame.body)


def _take_status(context: Context, copy: _Copy, status: object, listener: Listener) -> None:
    remote = parse_job(status, copy.job.server, time.time())
    seen = remote.job
    if seen.id != copy.job.id:
        raise JobError(f"{copy.job.server}: answered about another job", server=copy.job.server)
    if copy.wanted and len(remote.sizes) >= MOST_STREAMS:
        text = f"job {copy.job.key}: only {MOST_STREAMS} of its output files are brought home"
        context.report(Notice(copy.job.server, text))
    recorded = context.registry.update([replace(seen, logs_complete=seen.state.is_finished and copy.wanted)])
    if recorded and seen.state.is_finished:
        listener.on_end(recorded[0])


def _take_loss(context: Context, copy: _Copy, why: str, listener: Listener) -> None:
    """The server has no readable record of the job: there is nothing more to come of it."""
    context.report(Notice(copy.job.server, f"job {copy.job.key}: {why}"))
    lost = replace(copy.job, state=JobState.LOST, reason=why, ended_at=time.time(), logs_complete=True)
    for job in context.registry.update([lost]):
        listener.on_end(job)
