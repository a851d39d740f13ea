"""Limit a job's output on disk: release the oldest part of a file that grows too large.

A job writes straight into its files, so nothing delays it and no output is lost in between. Its supervisor checks the
sizes while it runs. A released part becomes a hole: offsets do not change, and followers skip the hole. The beginning
is kept, because it says what was started and how.
"""

from __future__ import annotations

import os
import time

from remote_tool.protocol import job_folder
from remote_tool.protocol.limits import SMALLEST_LOG_LIMIT
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.sparse_files import bytes_on_disk, give_back
from remote_tool.protocol.streams import find_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

# All output of a job together may use at most one part in this many of a disk.
_DISK_PART = 4
# No disk fills faster than this, so the next check comes before it could be full.
_BYTES_PER_SECOND = 2e9
_SHORTEST, _LONGEST = 0.005, 1.0
# Longest interval between checks, when nothing has grown fast for a second.
_CALM = 0.05
# Fast means using up one part in this many of the remaining space between two checks.
_FAST_PART = 20


class DiskSpace(NamedTuple):
    """Disk space allowed for each file, and free space, in bytes."""

    each: int
    free: int

    def left(self, largest: int) -> int:
        """Return how many bytes may be written until action is needed, given the largest file's size.

        A disk that is full before any file reaches its limit was filled by others: no check could drop
        anything then.
        """
        return min(self.each - largest, self.free) if largest + self.free > self.each else self.each - largest


class LogLimit:
    """Limits the output files of one job."""

    def __init__(self, folder: int, limit: int) -> None:
        """Initialize for the files below a job's folder.

        Args:
            folder: Descriptor of the folder.
            limit: Bytes that each file may have.
        """
        self._folder = folder
        self._limit = max(limit, SMALLEST_LOG_LIMIT)
        self._paths: Dict[str, str] = {}
        self._used: Dict[str, int] = {}
        self._holes: Dict[str, int] = {}
        self._problem = ""
        self._next_look = 0.0
        self._next_search = 0.0
        self._last_growth = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds until the next check."""
        return max(0.0, self._next_look - time.monotonic())

    @property
    def note(self) -> str:
        """Return a note about dropped output, for the job's record; empty without any."""
        if self._problem:
            return f"its output exceeds log_limit, and the oldest part could not be dropped: {self._problem}"
        dropped = sum(self._holes.values())
        return f"{dropped:,} bytes of older output were dropped by log_limit" if dropped else ""

    def check_if_due(self) -> None:
        """Release output beyond the limit, when a check is due."""
        now = time.monotonic()
        if now < self._next_look:
            return
        try:
            self._scan(now)
        except OSError:
            # A network disk that does not answer now will later.
            self._next_look = now + _LONGEST

    def _scan(self, now: float) -> None:
        if now >= self._next_search:
            self._paths = find_streams(self._folder)
            self._next_search = now + _LONGEST
        space = self._find_space()
        used = {path: self._keep_within(path, space.each) for path in self._paths.values()}
        left = space.left(max(used.values(), default=0))
        soonest = min(max(left / _BYTES_PER_SECOND, _SHORTEST), _LONGEST)
        grown = [bytes_used - self._used.get(path, 0) for path, bytes_used in used.items()]
        if max(grown, default=0) > left / _FAST_PART:
            self._last_growth = now
        is_calm = now - self._last_growth > _LONGEST
        self._next_look = now + (max(soonest, _CALM) if is_calm else soonest)
        if self._problem:
            self._next_look = now + _LONGEST
        self._used = used

    def _find_space(self) -> DiskSpace:
        disk = os.fstatvfs(self._folder)
        part = disk.f_blocks * disk.f_frsize // _DISK_PART // max(1, len(self._paths))
        return DiskSpace(max(min(self._limit, part), SMALLEST_LOG_LIMIT), disk.f_bavail * disk.f_frsize)

    def _keep_within(self, path: str, limit: int) -> int:
        """Return a file's size on disk before it was cut; 0 if missing."""
        try:
            file = job_folder.open_file_beneath(self._folder, path)
        except OSError:
            return 0
        try:
            used = bytes_on_disk(file)
        finally:
            os.close(file)
        if used > limit and not self._problem:
            self._cut(path, limit)
        return used

    def _cut(self, path: str, limit: int) -> None:
        try:
            file = job_folder.open_file_beneath(self._folder, path, for_writing=True)
            try:
                # A file that the job truncated and rewrote has lost less than before.
                self._holes[path] = max(give_back(file, limit), self._holes.get(path, 0))
            finally:
                os.close(file)
        except OSError as error:
            self._problem = error.strerror or str(error)
