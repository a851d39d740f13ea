"""Download files over several connections; each resumes after its local part."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from remote_tool.errors import ConnectError, HostKeyError, JobError, LoginError
from remote_tool.transport.sync.secrets import is_private_key
from remote_tool.workflows import agent_client
from remote_tool.workflows.artifacts.listing import LARGEST_FILE, LONGEST_REASON, read_number, read_stamp
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_tool.jobs.artifacts import ArtifactFolder, Download, RemoteFile, Stamp
    from remote_tool.protocol.framing import Frame
    from remote_tool.workflows.artifacts.limits import Quota
    from remote_tool.workflows.context import Context

    OnProgress = Callable[[str], None]

# Tries for a file that changes while being read, before it is left for the next pull.
MOST_CHANGES = 3
# Lost connections in a row without a byte in between.
MOST_LOSSES = 4
# Connections in total: a server that restarts again and again would never end it.
MOST_CONNECTIONS = 100
# Files that are synced to disk in parallel, which takes hardly longer than one.
MOST_ENDING = 16


class Transfer:
    """The download of one file.

    Attributes:
        file: The file, with the last stamp that the server has reported.
        is_here: Whether it is complete.
        is_refused: Whether it may never be downloaded.
        trouble: The reason why it was not downloaded, or empty.
        arrived: The number of bytes that are here.
    """

    def __init__(self, folder: ArtifactFolder, file: RemoteFile, quota: Quota, job_id: str = "") -> None:
        self.file = file
        self.is_here = False
        self.is_refused = False
        self.trouble = ""
        self.arrived = 0
        self._folder = folder
        self._quota = quota
        self._job_id = job_id
        self._reserved = file.stamp.size
        self._most = file.stamp.size
        self._changes = 0
        self._have = 0
        self._checked = 0
        self._stack = ExitStack()
        self._download: Download | None = None
        self._ending = threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.is_here or bool(self.trouble)

    @property
    def is_arriving(self) -> bool:
        return self._download is not None

    async def request(self) -> dict[str, Any]:
        """Return the request for the rest of the file, after the local part."""
        self._checked, self._have, digest = 0, 0, ""
        if self._folder.partial_size(self.file):
            self._have, digest = await asyncio.to_thread(self._folder.partial_digest, self.file)
        self._most = self._quota.most(self._reserved)
        return {
            "path": self.file.path,
            "job": self._job_id,
            "stamp": list(self.file.stamp),
            "have": self._have,
            "sha256": digest,
            "most": self._most,
        }

    def take(self, header: Mapping[str, Any], body: bytes) -> None:
        """Process a frame about the file.

        Raises:
            ValueError: It is invalid.
        """
        if "begin" in header:
            self._begin(read_stamp(header["begin"]), read_number(header.get("offset"), LARGEST_FILE))
        elif "checked" in header:
            self._note_checked(read_number(header["checked"], LARGEST_FILE))
        elif self._download is None:
            raise ValueError("bytes arrived before the file began")
        else:
            offset = read_number(header.get("offset"), LARGEST_FILE)
            with self._folder.writing(self.file.path):
                self._download.add(offset, body)
            self.arrived = offset + len(body)

    def end(self, word: str) -> None:
        """Process the final status; runs in a thread, as it waits for the disk."""
        with self._ending:
            if word == "whole" and not self.is_arriving:
                return  # leave() came first
            self._end(word[:LONGEST_REASON])
            self._close()
            if not self.is_here:
                self._folder.drop(self.file)

    def leave(self) -> None:
        """Close the file; the downloaded part is kept."""
        # Not while the thread of end() uses the descriptor: it may refer to another file later.
        with self._ending:
            self._close()

    def _close(self) -> None:
        self._download = None
        self._stack.close()

    def _note_checked(self, size: int) -> None:
        if not self._checked < size <= self._have:
            raise ValueError("it compared bytes that are not here")
        self._checked = size

    def _begin(self, stamp: Stamp, offset: int) -> None:
        if self._download is not None or stamp.size > self._most:
            raise ValueError("a file began that was not requested")
        if offset and (offset != self._have or stamp != self.file.stamp):
            raise ValueError("it continued past the bytes that are here")
        self._reserve(stamp.size)
        if stamp != self.file.stamp:
            self._folder.drop(self.file)
        self.file = self.file._replace(stamp=stamp)
        self._download = self._stack.enter_context(self._folder.receiving(self.file, offset))
        self.arrived = offset

    def _reserve(self, size: int) -> None:
        # Other files may have grown since this one was requested.
        if size > self._reserved and not self._quota.grow(size - self._reserved):
            raise JobError(
                f"{self.file.path} grew during the pull, beyond artifact_limit or the disk space here",
                hint="remote-tool job-pull",
            )
        self._reserved = max(size, self._reserved)

    def _end(self, word: str) -> None:
        download = self._download
        if word == "whole" and download is not None:
            self._complete(download)
        elif word == "changed" and download is not None:
            self._changes += 1
            if self._changes >= MOST_CHANGES:
                self.trouble = "it kept changing while it was read; the next pull tries again"
        elif word == "grew":
            self.trouble = "it grew beyond artifact_limit or the disk space here"
        else:
            self.trouble = word or "the server did not say why"

    def _complete(self, download: Download) -> None:
        with self._folder.writing(self.file.path):
            download.complete()
            self.is_refused = is_private_key(download.readable_path, download.status())
        if self.is_refused:
            self.trouble = "it is a private key"
            return
        self._folder.publish(self.file)
        self.is_here = True


async def fetch_files(context: Context, server: str, transfers: Sequence[Transfer], on_progress: OnProgress) -> None:
    """Download files; connect again when the connection is lost.

    Raises:
        JobError: A file cannot be written here, or the server's answer is invalid.
        ConnectError: The connection was lost too often; downloaded parts are kept.
    """
    meter = _Meter(on_progress)
    losses = connections = 0
    while waiting := [each for each in transfers if not each.is_over]:
        connections += 1
        before = meter.received
        try:
            await _fetch_once(context, server, waiting, meter)
        except (HostKeyError, LoginError):
            raise
        except ConnectError as error:
            losses = 1 if meter.received > before else losses + 1
            if losses > MOST_LOSSES or connections > MOST_CONNECTIONS:
                raise
            context.report(Notice(server, f"{error}; trying again"))
            await asyncio.sleep(agent_client.PAUSES[min(losses, len(agent_client.PAUSES)) - 1])


class _Meter:
    """Counts downloaded bytes, and reports progress."""

    def __init__(self, on_progress: OnProgress) -> None:
        self.received = 0
        self._on_progress = on_progress

    def count(self, name: str, size: int) -> None:
        self.received += size
        self._on_progress(name)


async def _fetch_once(context: Context, server: str, waiting: Sequence[Transfer], meter: _Meter) -> None:
    host = await context.pool.host(server)
    request = {"files": [await each.request() for each in waiting]}
    stream = _FileStream(server, waiting, meter)
    try:
        async with agent_client.converse(
            host, context.config, "send", request, silence=agent_client.LONGEST_SILENCE
        ) as frames:
            async for frame in frames:
                await stream.take(frame)
        await stream.finish()
    finally:
        for each in waiting:
            each.leave()


class _FileStream:
    """The files that arrive over one connection, in order; several are synced to disk in parallel."""

    def __init__(self, server: str, waiting: Sequence[Transfer], meter: _Meter) -> None:
        self._server = server
        self._waiting = waiting
        self._meter = meter
        self._current = 0
        self._ending: set[asyncio.Task[None]] = set()

    async def take(self, frame: Frame) -> None:
        """Pass a frame to its file."""
        if self._current >= len(self._waiting) or frame.header.get("file") != self._current:
            raise JobError(f"{self._server}: sent an artifact that was not requested", server=self._server)
        transfer = self._waiting[self._current]
        if "end" in frame.header:
            self._current += 1
            await self._end(transfer, str(frame.header["end"]))
            return
        try:
            transfer.take(frame.header, frame.body)
        except (TypeError, ValueError) as error:
            message = f"{self._server}: cannot read the artifacts that it sent ({error})"
            raise JobError(message, server=self._server) from error
        self._meter.count(transfer.file.path, len(frame.body))

    async def finish(self) -> None:
        """Wait until all files are in place.

        Raises:
            JobError: A file cannot be written, or not all have arrived.
        """
        while self._ending:
            await self._collect()
        if self._current < len(self._waiting):
            message = f"{self._server}: stopped sending in the middle of the artifacts"
            raise JobError(message, server=self._server)

    async def _end(self, transfer: Transfer, word: str) -> None:
        if word in {"whole", "changed"} and not transfer.is_arriving:
            raise JobError(f"{self._server}: ended an artifact that it had not begun", server=self._server)
        while len(self._ending) >= MOST_ENDING:
            await self._collect()
        task = asyncio.create_task(asyncio.to_thread(transfer.end, word))
        # If something else has failed, nobody asks for this error.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._ending.add(task)

    async def _collect(self) -> None:
        done, self._ending = await asyncio.wait(self._ending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
