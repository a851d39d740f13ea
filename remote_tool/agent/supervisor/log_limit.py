"""Keeps what a job prints within bounds: the oldest part of a file that grows too large is given back to the disk.

A job writes straight into its files, so nobody can hold it up and nothing of what it writes is lost on the way. While
it runs, its supervisor looks at the sizes. What is given back becomes a hole: offsets stay as they are, and whoever
follows the file skips the hole. The beginning stays, because it says what was started and how.
"""

from __future__ import annotations

import os
import time

from remote_tool.protocol import job_folder
from remote_tool.protocol.lean.namedtuple import NamedTuple
from remote_tool.protocol.limits import SMALLEST_LOG_LIMIT
from remote_tool.protocol.sparse_files import bytes_on_disk, give_back
from remote_tool.protocol.streams import find_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

# All output of a job together gets no more of a disk than one part in so many.
_DISK_PART = 4
# Nobody fills a disk faster than this, and the next look comes before it could be full.
_BYTES_PER_SECOND = 2e9
_SHORTEST, _LONGEST = 0.005, 1.0
# When nothing has grown fast for a second, the next look waits for this long at least.
_CALM = 0.05
# Fast is what uses up a part of what is left, one in so many, from one look to the next.
_FAST_PART = 20


class DiskSpace(NamedTuple):
    """How many bytes each file may have on the disk, and how many are free there."""

    each: int
    free: int

    def left(self, largest: int) -> int:
        """Return how many bytes may come until there is something to do, when the largest file has so many.

        A disk that is full before any file reaches its limit is filled by others: no look, however soon, could drop
        anything then.
        """
        return min(self.each - largest, self.free) if largest + self.free > self.each else self.each - largest


class LogLimit:
    """Looks after the output files of one job."""

    def __init__(self, folder: int, limit: int) -> None:
        """Look after the files below a job's folder.

        Args:
            folder: Its descriptor.
            limit: Bytes that each of its files may have.
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
        """How long the next look can wait."""
        return max(0.0, self._next_look - time.monotonic())

    @property
    def note(self) -> str:
        """What happened, for the record of the job; empty when nothing did."""
        if self._problem:
            return f"its output exceeds log_limit, and the oldest part could not be dropped: {self._problem}"
        dropped = sum(self._holes.values())
        return f"{dropped:,} bytes of older output were dropped by log_limit" if dropped else ""

    def look_if_due(self) -> None:
        """Give back what is too much, when it is time to look."""
        now = time.monotonic()
        if now < self._next_look:
            return
        try:
            self._scan(now)
        except OSError:
            # A network disk that does not answer now does so later.
            self._next_look = now + _LONGEST

    def _scan(self, now: float) -> None:
        if now >= self._next_search:
            self._paths = find_streams(self._folder)
            self._next_search = now + _LONGEST
        room = self._find_room()
        used = {path: self._keep_within(path, room.each) for path in self._paths.values()}
        left = room.left(max(used.values(), default=0))
        soonest = min(max(left / _BYTES_PER_SECOND, _SHORTEST), _LONGEST)
        grown = [bytes_used - self._used.get(path, 0) for path, bytes_used in used.items()]
        if max(grown, default=0) > left / _FAST_PART:
            self._last_growth = now
        is_calm = now - self._last_growth > _LONGEST
        self._next_look = now + (max(soonest, _CALM) if is_calm else soonest)
        if self._problem:
            self._next_look = now + _LONGEST
        self._used = used

    def _find_room(self) -> DiskSpace:
        disk = os.fstatvfs(self._folder)
        part = disk.f_blocks * disk.f_frsize // _DISK_PART // max(1, len(self._paths))
        return DiskSpace(max(min(self._limit, part), SMALLEST_LOG_LIMIT), disk.f_bavail * disk.f_frsize)

    def _keep_within(self, path: str, limit: int) -> int:
        """Return how many bytes a file had on the disk before it was cut, 0 when it is not there."""
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
                # One that the job began anew has lost less than before.
                self._holes[path] = max(give_back(file, limit), self._holes.get(path, 0))
            finally:
                os.close(file)
        except OSError as error:
            self._problem = error.strerror or str(error)
