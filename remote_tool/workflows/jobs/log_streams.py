"""Pull the output of jobs, from the first byte that is missing here, and follow it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.jobs.job import JobState
from remote_tool.jobs.logs import LogFolder
from remote_tool.jobs.records import parse_job, read_folder_id, vanish, why_missing
from remote_tool.protocol.streams import MOST_STREAMS
from remote_tool.transport.pool import on_every
from remote_tool.workflows import agent_client
from remote_tool.workflows.events import Notice
from remote_tool.workflows.slurm.scheduler import may_begin_again
from remote_tool.workflows.status.query import ask_about_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job
    from remote_tool.protocol.framing import Frame
    from remote_tool.workflows.context import Context

LARGEST_LOG = 2**50
# The output at one moment does not exceed its limit by much.
MOST_LIMITS = 2
# The local copy is compared with its limit after this many new bytes.
CHECK_EVERY = 16 * 1024 * 1024
LONGEST_REASON = 200
# Jobs per request: the server keeps a folder open for each, and may open about a thousand files.
PORTION = 500
# From the request to end a job to what Slurm makes of it: its KillWait, which is 30 by default, and then some.
SECONDS_OF_ENDING = 90.0


class JobMissingError(JobError):
    """The server does not have a job, but its folder of jobs may be another one: the job may still run."""


class WaitsAgainError(JobError):
    """A job was ended, and waits for its next attempt, or has begun it."""


@dataclass(frozen=True)
class Viewer:
    """Shows the output of jobs once and in order, from the local copy or from a server.

    Other commands write the local copy too, so its size does not tell how much this viewer has shown.

    Attributes:
        show: Called with the bytes of a stream; a returned awaitable is awaited before reading more.
        is_shown: Whether a stream of a job is shown at all.
        ends: Offsets of the shown bytes, by job id and stream.
    """

    show: Callable[[Job, str, bytes], object]
    is_shown: Callable[[Job, str], bool]
    ends: dict[tuple[str, str], int] = field(default_factory=dict)

    def begin_at(self, job: Job, stream: str, offset: int) -> None:
        """Show a stream from an offset on."""
        self.ends[job.id, stream] = offset

    def next_offset(self, job: Job, stream: str, size: int) -> int:
        """Return the offset at which a server should continue a stream of which this many bytes are here."""
        return min(size, self._end_of(job, stream)) if self.is_shown(job, stream) else size

    async def take(self, job: Job, stream: str, offset: int, data: bytes) -> None:
        """Show bytes, without those that were shown before."""
        end = self._end_of(job, stream)
        if offset + len(data) <= end:
            return
        self.begin_at(job, stream, offset + len(data))
        if data and self.is_shown(job, stream):
            shown = self.show(job, stream, data[max(0, end - offset) :])
            if inspect.isawaitable(shown):
                await shown

    async def catch_up(self, context: Context, job: Job) -> None:
        """Show the local copy, without the bytes that were shown before."""
        logs = LogFolder(context.registry.folder / job.id)
        for stream, size in sorted(logs.sizes().items()):
            if not self.is_shown(job, stream):
                continue
            if size < self._end_of(job, stream):
                # The job restarted this stream, and another command has reset the copy.
                self.begin_at(job, stream, 0)
            for offset, data in logs.pieces(stream, self._end_of(job, stream)):
                _report_dropped(context, job, stream, offset - self._end_of(job, stream))
                await self.take(job, stream, offset, data)

    def _end_of(self, job: Job, stream: str) -> int:
        return self.ends.get((job.id, stream), 0)


@dataclass(frozen=True)
class LogListener:
    """Callbacks for following jobs.

    Attributes:
        viewer: Gets the output; None: it is not shown.
        on_end: Called with each job that has ended.
        on_answer: Called with each answer about a job that the server has.
    """

    viewer: Viewer | None = None
    on_end: Callable[[Job], None] = lambda _job: None
    on_answer: Callable[[], None] = lambda: None


async def fetch_logs(context: Context, jobs: Sequence[Job]) -> dict[str, RemoteToolError]:
    """Pull the current output of jobs from all servers in parallel; return the error of each server that failed."""
    by_server: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if not job.logs_complete and job.server in context.config.servers:
            by_server[job.server].append(job)

    async def fetch(server: str) -> None:
        incomplete = by_server[server]
        for first in range(0, len(incomplete), PORTION):
            await stream_logs(context, server, incomplete[first : first + PORTION], LogListener(), wait=False)

    return dict((await on_every(by_server, fetch)).errors)


async def stream_logs(
    context: Context, server: str, jobs: Sequence[Job], listener: LogListener, *, wait: bool, logs: bool = True
) -> None:
    """Follow jobs of one server over one channel, and write the local copies.

    Args:
        context: The command's context.
        server: The jobs' server.
        jobs: The jobs.
        listener: The callbacks.
        wait: Whether to continue until the jobs have ended; otherwise, until all current output has arrived.
        logs: Whether to pull the output; otherwise, only the end of each job.

    Raises:
        ConnectionLostError: The connection was lost; a new call resumes from the received output.
        JobMissingError: A job is missing that may run elsewhere; all output of the others has arrived.
        JobError: The server refuses, or its answer is invalid.
    """
    host = await context.pool.host(server)
    bounds = _LogBounds(context.config.log_limit, with_output=logs, endless=wait)
    copies = {job.id: await _open_copy(context, job, bounds, listener.viewer) for job in jobs}
    request = {
        "jobs": [{"id": copy.job.id, "offsets": dict(copy.ends)} for copy in copies.values()],
        "wait": wait,
        "streams": logs,
    }
    # A running job may write nothing for hours, but existing output arrives at once.
    silence = None if wait else agent_client.LONGEST_SILENCE
    async with agent_client.converse(host, context.config, "follow", request, silence=silence) as frames:
        async for frame in frames:
            copy = copies.get(str(frame.header.get("job")))
            if copy is None:
                raise JobError(f"{server}: sent output of a job that was not requested", server=server)
            if copy.is_over:
                raise JobError(f"{server}: continued with job {copy.job.id} after its end", server=server)
            if frame.header.keys() & {"status", "error", "queued"}:
                await context.may_write()
            if "error" not in frame.header:
                listener.on_answer()
            await _take(context, copy, frame, listener)
    problems = [copy.problem for copy in copies.values() if copy.problem is not None]
    if problems:
        # A missing job may be back next time, but an unreadable one stays unreadable.
        raise next((each for each in problems if isinstance(each, JobMissingError)), problems[0])


async def _open_copy(context: Context, job: Job, bounds: _LogBounds, viewer: Viewer | None) -> _LogCopy:
    """Return the local copy, which the server continues after the last byte that was shown."""
    folder = LogFolder(context.registry.folder / job.id)
    if viewer is None:
        return _LogCopy(job, folder, bounds, folder.sizes())
    await viewer.catch_up(context, job)
    # Output that another command pulls meanwhile arrives again, and is rewritten in place.
    ends = {stream: viewer.next_offset(job, stream, size) for stream, size in folder.sizes().items()}
    return _LogCopy(job, folder, bounds, ends)


@dataclass(frozen=True)
class _LogBounds:
    """The limits on the output of a job.

    Attributes:
        limit: Bytes per stream.
        with_output: Whether any output is pulled.
        endless: Whether the job is followed to its end, with more output than at one moment.
    """

    limit: int
    with_output: bool
    endless: bool


class _LogCopy:
    """The local copy of the output of a followed job.

    Attributes:
        ends: The offset of the next byte of each stream; another command may have written more.
        with_output: Whether the server sends output.
        is_awaited: Whether the caller waits for the end of the job.
        is_over: Whether nothing more is expected.
        problem: The reason why the output is incomplete; None if it is complete.
    """

    def __init__(self, job: Job, folder: LogFolder, bounds: _LogBounds, ends: dict[str, int]) -> None:
        self.job = job
        self._bounds = bounds
        self._unchecked: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self.folder = folder
        self.with_output = bounds.with_output
        self.is_awaited = bounds.endless
        self.is_over = False
        self.problem: JobError | None = None
        self.ends = ends

    def add(self, header: Mapping[str, object], data: bytes) -> int:
        """Write received bytes, and return their offset.

        Raises:
            JobError: They do not continue the copy, or there is too much output.
        """
        stream = str(header.get("stream"))
        if header.get("reset"):
            self.folder.reset(stream)
            self.ends[stream] = 0
        elif header.get("offset") != self.ends.get(stream, 0) + skipped_bytes(header):
            raise JobError(f"{self.job.server}: sent bytes of job {self.job.id} that do not continue the local copy")
        if stream not in self.ends and len(self.ends) >= MOST_STREAMS:
            raise JobError(f"{self.job.server}: job {self.job.id} has more than {MOST_STREAMS} output files")
        offset = self.ends.get(stream, 0) + skipped_bytes(header)
        if skipped_bytes(header):
            self.folder.skip(stream, offset)
        self.folder.write(stream, offset, data)
        self.ends[stream] = offset + len(data)
        self._keep_within_limit(stream, len(data))
        return offset

    def _keep_within_limit(self, stream: str, count: int) -> None:
        self._unchecked[stream] += count
        self._received[stream] += count
        if self._unchecked[stream] >= CHECK_EVERY:
            self._unchecked[stream] = 0
            self.folder.keep_within(stream, self._bounds.limit)
        if not self._bounds.endless and self._received[stream] > MOST_LIMITS * self._bounds.limit:
            raise JobError(
                f"{self.job.server}: sent more output of job {self.job.key} than log_limit allows;"
                f" the local copy is kept, and the rest of {stream} is not pulled",
                hint="Set log_limit in .remote/configs.yaml",
                server=self.job.server,
            )


def skipped_bytes(header: Mapping[str, object]) -> int:
    """Return the number of bytes that the server has dropped before these; 0 if invalid."""
    skipped = header.get("skipped")
    return skipped if isinstance(skipped, int) and 0 < skipped < LARGEST_LOG else 0


def _report_dropped(context: Context, job: Job, stream: str, count: int) -> None:
    if count > 0:
        text = f"job {job.key}: {count:,} bytes of older output ({stream}) were dropped by log_limit"
        context.report(Notice(job.server, text))


async def _take(context: Context, copy: _LogCopy, frame: Frame, listener: LogListener) -> None:
    copy.is_over = bool(frame.header.keys() & {"status", "error", "over"})
    if "status" in frame.header:
        await _take_status(context, copy, frame.header["status"], listener)
        return
    if "error" in frame.header:
        _take_missing(context, copy, frame.header, listener)
        return
    if "trouble" in frame.header:
        _take_trouble(context, copy, str(frame.header["trouble"])[:LONGEST_REASON])
        return
    if "queued" in frame.header:
        _take_queued(context, copy.job, frame.header["queued"])
        return
    offset, stream = copy.add(frame.header, frame.body), str(frame.header.get("stream"))
    _report_dropped(context, copy.job, stream, skipped_bytes(frame.header))
    if listener.viewer is None:
        return
    if frame.header.get("reset"):
        listener.viewer.begin_at(copy.job, stream, 0)
    await listener.viewer.take(copy.job, stream, offset, frame.body)


async def _take_status(context: Context, copy: _LogCopy, status: object, listener: LogListener) -> None:
    try:
        remote = parse_job(status, copy.job.server, time.time(), patterns=context.config.status)
    except JobError as error:
        # An unreadable copy says nothing about the job or the others.
        copy.problem = JobError(f"{copy.job.server}: job {copy.job.key}: {error}", server=copy.job.server)
        return
    job = remote.job
    if job.id != copy.job.id:
        raise JobError(f"{copy.job.server}: answered about another job", server=copy.job.server)
    if isinstance(status, dict) and may_begin_again(context.config, job.server, status):
        seen = replace(await _ask_for_end(context, job), status_values=job.status_values)
        if not seen.state.is_finished or _has_begun_again(seen, job):
            what = "waits again" if seen.state is JobState.QUEUED else "has begun again"
            raise WaitsAgainError(f"job {copy.job.key} {what}: {seen.reason}".removesuffix(": "), server=job.server)
        job = seen
    if copy.with_output and len(remote.sizes) >= MOST_STREAMS:
        text = f"job {copy.job.key}: only {MOST_STREAMS} of its output files are pulled"
        context.report(Notice(copy.job.server, text))
    # The job may have written more while the last bytes arrived.
    has_all = copy.with_output and all(copy.ends.get(stream, 0) >= size for stream, size in remote.sizes.items())
    recorded = context.registry.update([replace(job, logs_complete=has_all and not job.may_run)])
    if recorded and job.state.is_finished:
        listener.on_end(recorded[0])


async def _ask_for_end(context: Context, job: Job) -> Job:
    """Ask Slurm about a job that was told to end: for some seconds, it does not say whether it begins it again."""
    deadline = time.monotonic() + SECONDS_OF_ENDING
    while True:
        seen = (await ask_about_jobs(context, job.server, ids=[job.id])).jobs.get(job.id)
        if seen is not None and (
            seen.job.state.is_finished or seen.job.state is JobState.QUEUED or _has_begun_again(seen.job, job)
        ):
            return seen.job
        if time.monotonic() > deadline:
            return job
        await asyncio.sleep(1.0)


def _has_begun_again(seen: Job, ended: Job) -> bool:
    """Return whether another attempt has begun since a job has ended."""
    return seen.started_at is not None and len(seen.failed_attempts) > len(ended.failed_attempts)


def _take_queued(context: Context, job: Job, why: object) -> None:
    """Record and report the reason why a job waits, or that it has started."""
    text = "" if why is None else context.registry.with_keys(str(why)[:LONGEST_REASON])
    state = JobState.RUNNING if why is None else JobState.QUEUED
    context.registry.revise([(job.id, lambda known: replace(known, state=state, reason=text))])
    context.report(
        Notice(job.server, f"job {job.key} has started" if why is None else f"job {job.key} is queued: {text}")
    )


def _take_trouble(context: Context, copy: _LogCopy, why: str) -> None:
    """Handle a job that the server cannot read now, and tries to read again unless the frame ends the answer."""
    server, text = copy.job.server, f"job {copy.job.key} cannot be read on the server: {why}"
    if copy.is_over:
        copy.problem = JobError(f"{server}: {text}", hint=f"remote-tool job-tail {copy.job.key}", server=server)
    else:
        context.report(Notice(server, f"{text}; trying again"))


def _take_missing(context: Context, copy: _LogCopy, header: Mapping[str, object], listener: LogListener) -> None:
    """Handle a job of which the server has no readable record."""
    job, why = copy.job, str(header["error"])[:LONGEST_REASON]
    folder_id = read_folder_id(header.get("folder_id"))
    is_removed = folder_id != "" and folder_id == job.folder_id
    if is_removed or job.state.is_finished:
        context.report(Notice(job.server, f"job {job.key}: {why}"))
    if is_removed:
        # It was removed from its own folder of jobs, so nothing more will come.
        for removed in context.registry.revise([(job.id, _without_more_output)]):
            listener.on_end(removed)
    elif job.state.is_finished:
        listener.on_end(job)
    elif job.state is JobState.STARTING and not copy.is_awaited:
        pass  # The start may still arrive: there is nothing to pull yet.
    elif "folder_id" in header:
        copy.problem = JobMissingError(f"{job.server}: job {job.key}: {why_missing(job)}", server=job.server)
    else:
        copy.problem = JobError(f"{job.server}: job {job.key}: {why}", server=job.server)


def _without_more_output(known: Job) -> Job:
    return replace(known, logs_complete=True) if known.state.is_finished else vanish(known)
