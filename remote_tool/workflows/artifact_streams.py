"""What goes between here and a server for artifacts: the list of files, and their bytes, checked as they come."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote_tool.errors import ConnectError, HostKeyError, JobError, LoginError
from remote_tool.jobs.artifacts import RemoteFile, Stamp
from remote_tool.supervisor.artifact_patterns import as_record
from remote_tool.supervisor.artifacts import MOST_FILES
from remote_tool.transport.private_files import is_private_key
from remote_tool.workflows import supervisor
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_tool.jobs.artifacts import Arrival, ArtifactFolder
    from remote_tool.supervisor.artifact_patterns import ArtifactPattern
    from remote_tool.supervisor.framing import Frame
    from remote_tool.workflows.artifact_limits import Allowance
    from remote_tool.workflows.context import Context

    OnProgress = Callable[[str, int], None]

# A file system over the network takes its time to tell of many files.
LISTING_SILENCE = 300.0
LARGEST_FILE = 2**50
LARGEST_TIME = 2**34 * 10**9
LARGEST_INODE = 2**64
# A file that changes while it is read is tried so often, then left for the next time.
MOST_CHANGES = 3
# So often in a row the link may go without a byte in between.
MOST_LOSSES = 4
# So often at all: one that begins again each time would never end.
MOST_CONNECTIONS = 100
LONGEST_REASON = 300
# So many files wait for the disk at once: together that takes hardly longer than one.
MOST_ENDING = 16


@dataclass
class Listing:
    """What a server tells of a job's files.

    Attributes:
        files: Those that are wanted.
        older: How many match that the job did not write.
        is_cut: Whether there are more than are told.
        error: Why there is nothing; empty without a reason.
        is_final: Whether there will never be more: no error, or one that stays.
        is_over: Whether all of it was told.
    """

    files: list[RemoteFile] = field(default_factory=list)
    older: int = 0
    is_cut: bool = False
    error: str = ""
    is_final: bool = True
    is_over: bool = False

    def take(self, header: Mapping[str, Any]) -> None:
        """Take a piece of it; ValueError for what cannot be."""
        if self.is_over:
            raise ValueError("it goes on after its end")
        if "files" in header:
            self.files += [_read_file(each) for each in _list(header["files"])]
            if len(self.files) > MOST_FILES:
                raise ValueError(f"more than {MOST_FILES} files")
            return
        self.is_over = True
        self.error = str(header.get("error") or "")[:LONGEST_REASON]
        self.is_final = not self.error or header.get("gone") is True
        self.is_cut = header.get("cut") is True
        self.older = _whole(header.get("older", 0), LARGEST_FILE)


async def list_files(
    context: Context, server: str, wanted: Mapping[str, tuple[ArtifactPattern, ...]]
) -> dict[str, Listing]:
    """Ask which files there are, by job.

    Raises:
        JobError: The server cannot tell, or says what cannot be.
        ConnectionLostError: The link went.
    """
    host = await context.pool.host(server)
    listings = {job_id: Listing() for job_id in wanted}
    request = {"jobs": [{"id": job_id, "patterns": as_record(patterns)} for job_id, patterns in wanted.items()]}
    async with supervisor.converse(host, context.config, "artifacts", request, silence=LISTING_SILENCE) as frames:
        async for frame in frames:
            try:
                listings[str(frame.header.get("job"))].take(frame.header)
            except (KeyError, TypeError, ValueError) as error:
                raise JobError(f"{server}: its list of artifacts is not understood ({error})", server=server) from error
    if not all(listing.is_over for listing in listings.values()):
        raise JobError(f"{server}: did not tell all its artifacts", server=server)
    return listings


class Transfer:
    """A file that comes home.

    Attributes:
        file: Which; its stamp is the one that the server told last.
        is_here: Whether it is here, whole.
        is_refused: Whether it never comes, whatever happens.
        trouble: Why it did not come; empty when it is here, or may still come.
    """

    def __init__(self, folder: ArtifactFolder, file: RemoteFile, allowance: Allowance) -> None:
        self.file = file
        self.is_here = False
        self.is_refused = False
        self.trouble = ""
        self._folder = folder
        self._allowance = allowance
        self._reserved = file.stamp.size
        self._most = file.stamp.size
        self._changes = 0
        self._have = 0
        self._checked = 0
        self._stack = ExitStack()
        self._arrival: Arrival | None = None
        self._ending = threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.is_here or bool(self.trouble)

    @property
    def is_arriving(self) -> bool:
        return self._arrival is not None

    async def request(self) -> dict[str, Any]:
        """Return what to ask for: the file from where the part that is here ends."""
        self._checked, self._have, digest = 0, 0, ""
        if self._folder.partial_size(self.file):
            self._have, digest = await asyncio.to_thread(self._folder.partial_digest, self.file)
        self._most = self._allowance.most(self._reserved)
        return {
            "path": self.file.path,
            "stamp": list(self.file.stamp),
            "have": self._have,
            "sha256": digest,
            "most": self._most,
        }

    def take(self, header: Mapping[str, Any], body: bytes) -> None:
        """Take what the server says of it; ValueError for what cannot be."""
        if "begin" in header:
            self._begin(_read_stamp(header["begin"]), _whole(header.get("offset"), LARGEST_FILE))
        elif "checked" in header:
            self._note_checked(_whole(header["checked"], LARGEST_FILE))
        elif self._arrival is None:
            raise ValueError("bytes came before the beginning")
        else:
            with self._folder.writing(self.file.path):
                self._arrival.add(_whole(header.get("offset"), LARGEST_FILE), body)

    def end(self, word: str) -> None:
        """Take how it ended; waits for the disk, so it is called on another thread."""
        with self._ending:
            if word == "whole" and not self.is_arriving:
                return  # given up meanwhile
            self._end(word[:LONGEST_REASON])
            self._close()
            if not self.is_here:
                self._folder.drop(self.file)

    def leave(self) -> None:
        """Close what is open; the part that came stays."""
        # Never under the hands of the other thread: its descriptor may be another file's by then.
        with self._ending:
            self._close()

    def _close(self) -> None:
        self._arrival = None
        self._stack.close()

    def _note_checked(self, size: int) -> None:
        if not self._checked < size <= self._have:
            raise ValueError("it compares what is not here")
        self._checked = size

    def _begin(self, stamp: Stamp, offset: int) -> None:
        if self._arrival is not None or stamp.size > self._most:
            raise ValueError("a file begins that was not asked for")
        if offset and (offset != self._have or stamp != self.file.stamp):
            raise ValueError("it goes on where nothing is")
        self._reserve(stamp.size)
        if stamp != self.file.stamp:
            self._folder.drop(self.file)
        self.file = self.file._replace(stamp=stamp)
        self._arrival = self._stack.enter_context(self._folder.receiving(self.file, offset))

    def _reserve(self, size: int) -> None:
        # Others may have grown since this one was asked for.
        if size > self._reserved and not self._allowance.grow(size - self._reserved):
            raise JobError(
                f"{self.file.path} grew while artifacts came, beyond artifact_limit or the room here",
                hint="remote-tool job-pull",
            )
        self._reserved = max(size, self._reserved)

    def _end(self, word: str) -> None:
        arrival = self._arrival
        if word == "whole" and arrival is not None:
            self._complete(arrival)
        elif word == "changed" and arrival is not None:
            self._changes += 1
            if self._changes >= MOST_CHANGES:
                self.trouble = "it changes while it is read; it comes the next time"
        elif word == "grew":
            self.trouble = "it grew beyond artifact_limit or the room here"
        else:
            self.trouble = word or "the server does not say why"

    def _complete(self, arrival: Arrival) -> None:
        with self._folder.writing(self.file.path):
            arrival.complete()
            self.is_refused = is_private_key(arrival.readable_path, b"", arrival.status())
        if self.is_refused:
            self.trouble = "it is a private key"
            return
        self._folder.publish(self.file)
        self.is_here = True


async def fetch_files(context: Context, server: str, transfers: Sequence[Transfer], on_progress: OnProgress) -> None:
    """Bring files home, over as many connections as it takes.

    Raises:
        JobError: One cannot be written here, or the server says what cannot be.
        ConnectError: The link went and does not come back; what came is kept.
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
            await asyncio.sleep(supervisor.PAUSES[min(losses, len(supervisor.PAUSES)) - 1])


class _Meter:
    """Counts what comes."""

    def __init__(self, on_progress: OnProgress) -> None:
        self.received = 0
        self._on_progress = on_progress

    def count(self, name: str, size: int) -> None:
        self.received += size
        self._on_progress(name, self.received)


async def _fetch_once(context: Context, server: str, waiting: Sequence[Transfer], meter: _Meter) -> None:
    host = await context.pool.host(server)
    request = {"files": [await each.request() for each in waiting]}
    stream = _Stream(server, waiting, meter)
    try:
        async with supervisor.converse(
            host, context.config, "send", request, silence=supervisor.LONGEST_SILENCE
        ) as frames:
            async for frame in frames:
                await stream.take(frame)
        await stream.finish()
    finally:
        for each in waiting:
            each.leave()


class _Stream:
    """Files as they come, one after the other; the disk has several at a time."""

    def __init__(self, server: str, waiting: Sequence[Transfer], meter: _Meter) -> None:
        self._server = server
        self._waiting = waiting
        self._meter = meter
        self._current = 0
        self._ending: set[asyncio.Task[None]] = set()

    async def take(self, frame: Frame) -> None:
        """Hand a piece to the file that it is of."""
        if self._current >= len(self._waiting) or frame.header.get("file") != self._current:
            raise JobError(f"{self._server}: sends an artifact that is not on its way", server=self._server)
        transfer = self._waiting[self._current]
        if "end" in frame.header:
            self._current += 1
            await self._end(transfer, str(frame.header["end"]))
            return
        try:
            transfer.take(frame.header, frame.body)
        except (TypeError, ValueError) as error:
            message = f"{self._server}: what it sends of artifacts is not understood ({error})"
            raise JobError(message, server=self._server) from error
        self._meter.count(transfer.file.path, len(frame.body))

    async def finish(self) -> None:
        """See all of them at their places.

        Raises:
            JobError: One cannot be written, or they did not all come.
        """
        while self._ending:
            await self._collect()
        if self._current < len(self._waiting):
            message = f"{self._server}: stopped sending in the middle of the artifacts"
            raise JobError(message, server=self._server)

    async def _end(self, transfer: Transfer, word: str) -> None:
        if word in {"whole", "changed"} and not transfer.is_arriving:
            raise JobError(f"{self._server}: ends an artifact that has not begun", server=self._server)
        while len(self._ending) >= MOST_ENDING:
            await self._collect()
        task = asyncio.create_task(asyncio.to_thread(transfer.end, word))
        # Where something else has failed already, nobody hears of this one.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._ending.add(task)

    async def _collect(self) -> None:
        done, self._ending = await asyncio.wait(self._ending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


def _read_file(value: object) -> RemoteFile:
    path, size, modified, inode, gives_way = _list(value)
    if not isinstance(path, str) or not isinstance(gives_way, bool):
        raise TypeError("a path is no text")
    return RemoteFile(path, _read_stamp([size, modified, inode]), gives_way)


def _read_stamp(value: object) -> Stamp:
    size, modified, inode = _list(value)
    return Stamp(_whole(size, LARGEST_FILE), _whole(modified, LARGEST_TIME), _whole(inode, LARGEST_INODE))


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list is none")
    return value


def _whole(value: object, largest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise ValueError("a number is out of range")
    return value
