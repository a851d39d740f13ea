"""The download of one file, resumed after the local part."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.transport.sync.secrets import is_private_key
from remote_tool.workflows.artifacts.listing import LARGEST_FILE, LONGEST_REASON, read_number, read_stamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.jobs.artifacts import Arrival, ArtifactFolder, RemoteFile, Stamp
    from remote_tool.workflows.artifacts.limits import Quota

# Tries for a file that changes while being read, before it is left for the next pull.
MOST_CHANGES = 3


class Transfer:
    """A file being downloaded.

    Attributes:
        file: The file, with the stamp last reported by the server.
        is_here: Whether it is complete.
        is_refused: Whether it can never be downloaded.
        trouble: Why it was not downloaded, or empty.
        arrived: Its local bytes.
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
        self._arrival: Arrival | None = None
        self._ending = threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.is_here or bool(self.trouble)

    @property
    def is_arriving(self) -> bool:
        return self._arrival is not None

    async def request(self) -> dict[str, Any]:
        """Return the request for the file from the end of the local part."""
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
        """Process a frame about the file; ValueError if invalid."""
        if "begin" in header:
            self._begin(read_stamp(header["begin"]), read_number(header.get("offset"), LARGEST_FILE))
        elif "checked" in header:
            self._note_checked(read_number(header["checked"], LARGEST_FILE))
        elif self._arrival is None:
            raise ValueError("bytes arrived before the file began")
        else:
            offset = read_number(header.get("offset"), LARGEST_FILE)
            with self._folder.writing(self.file.path):
                self._arrival.add(offset, body)
            self.arrived = offset + len(body)

    def end(self, word: str) -> None:
        """Process the final status; runs in a thread, as it waits for the disk."""
        with self._ending:
            if word == "whole" and not self.is_arriving:
                return  # given up meanwhile
            self._end(word[:LONGEST_REASON])
            self._close()
            if not self.is_here:
                self._folder.drop(self.file)

    def leave(self) -> None:
        """Close the file; the downloaded part is kept."""
        # Not while the other thread uses it: the descriptor may refer to another file by then.
        with self._ending:
            self._close()

    def _close(self) -> None:
        self._arrival = None
        self._stack.close()

    def _note_checked(self, size: int) -> None:
        if not self._checked < size <= self._have:
            raise ValueError("it compared bytes that are not here")
        self._checked = size

    def _begin(self, stamp: Stamp, offset: int) -> None:
        if self._arrival is not None or stamp.size > self._most:
            raise ValueError("a file began that was not requested")
        if offset and (offset != self._have or stamp != self.file.stamp):
            raise ValueError("it continued past the bytes that are here")
        self._reserve(stamp.size)
        if stamp != self.file.stamp:
            self._folder.drop(self.file)
        self.file = self.file._replace(stamp=stamp)
        self._arrival = self._stack.enter_context(self._folder.receiving(self.file, offset))
        self.arrived = offset

    def _reserve(self, size: int) -> None:
        # Others may have grown since this one was requested.
        if size > self._reserved and not self._quota.grow(size - self._reserved):
            raise JobError(
                f"{self.file.path} grew during the pull, beyond artifact_limit or the disk space here",
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
                self.trouble = "it kept changing while it was read; the next pull tries again"
        elif word == "grew":
            self.trouble = "it grew beyond artifact_limit or the disk space here"
        else:
            self.trouble = word or "the server did not say why"

    def _complete(self, arrival: Arrival) -> None:
        with self._folder.writing(self.file.path):
            arrival.complete()
            self.is_refused = is_private_key(arrival.readable_path, arrival.status())
        if self.is_refused:
            self.trouble = "it is a private key"
            return
        self._folder.publish(self.file)
        self.is_here = True
