"""Keeps what a job prints within bounds: the oldest part of a file that grows too large is given back to the disk.

A job writes straight into its files, so nobody can hold it up and nothing of what it writes is lost on the way. While
it runs, its supervisor looks at the sizes. What is given back becomes a hole: offsets stay as they are, and whoever
follows the file skips the hole. The beginning stays, because it says what was started and how.
"""

from __future__ import annotations

import errno
import os
import time

from . import job_files
from .named_tuple import NamedTuple
from .streams import find_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Tuple

DEFAULT_LIMIT = 4 * 1024**3
SMALLEST_LIMIT = 1024**2
KEPT_BEGINNING = 256 * 1024
# All output of a job together gets no more of a disk than one part in so many.
_DISK_PART = 4
# When a file is at its limit, this part of it stays, so that the work is not done for every byte.
_KEPT_PART = 0.75
# A multiple of the block size of every usual file system.
_BLOCK = 64 * 1024
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
# Nobody fills a disk faster than this, and the next look comes before it could be full.
_BYTES_PER_SECOND = 2e9
_SHORTEST, _LONGEST = 0.005, 1.0
# When nothing has grown for a second, the next look waits for this long at least.
_CALM = 0.05


class Room(NamedTuple):
    """How many bytes each file may have on the disk, and how many are free there."""

    each: int
    free: int


class LogLimit:
    """Looks after the output files of one job."""

    def __init__(self, folder: int, limit: int) -> None:
        """Look after the files below a job's folder.

        Args:
            folder: Its descriptor.
            limit: Bytes that each of its files may have.
        """
        self._folder = folder
        self._limit = max(limit, SMALLEST_LIMIT)
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
            return f"its output is larger than log_limit, and nothing of it could be dropped: {self._problem}"
        dropped = sum(self._holes.values())
        return f"{dropped:,} bytes of older output were dropped by log_limit" if dropped else ""

    def look_if_due(self) -> None:
        """Give back what is too much, when it is time to look."""
        now = time.monotonic()
        if now < self._next_look:
            return
        try:
            self._look(now)
        except OSError:
            # A network disk that does not answer now does so later.
            self._next_look = now + _LONGEST

    def _look(self, now: float) -> None:
        if now >= self._next_search:
            self._paths = find_streams(self._folder)
            self._next_search = now + _LONGEST
        room = self._find_room()
        used = {path: self._keep_within(path, room.each) for path in self._paths.values()}
        left = min([room.free, *(room.each - bytes_used for bytes_used in used.values())])
        soonest = min(max(left / _BYTES_PER_SECOND, _SHORTEST), _LONGEST)
        if any(bytes_used > self._used.get(path, 0) for path, bytes_used in used.items()):
            self._last_growth = now
        is_calm = now - self._last_growth > _LONGEST
        self._next_look = now + (max(soonest, _CALM) if is_calm else soonest)
        if self._problem:
            self._next_look = now + _LONGEST
        self._used = used

    def _find_room(self) -> Room:
        disk = os.fstatvfs(self._folder)
        part = disk.f_blocks * disk.f_frsize // _DISK_PART // max(1, len(self._paths))
        return Room(max(min(self._limit, part), SMALLEST_LIMIT), disk.f_bavail * disk.f_frsize)

    def _keep_within(self, path: str, limit: int) -> int:
        """Return how many bytes a file had on the disk before it was cut, 0 when it is not there."""
        try:
            file = job_files.open_file_beneath(self._folder, path)
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
            file = job_files.open_file_beneath(self._folder, path, for_writing=True)
            try:
                # One that the job began anew has lost less than before.
                self._holes[path] = max(give_back(file, limit), self._holes.get(path, 0))
            finally:
                os.close(file)
        except OSError as error:
            self._problem = error.strerror or str(error)


def bytes_on_disk(file: int) -> int:
    """Return how much of the disk an open file has; a hole has nothing."""
    return os.fstat(file).st_blocks * 512


def give_back(file: int, limit: int) -> int:
    """Make a hole in a file that has more than a limit, behind its beginning; returns how long it is, 0 for none.

    Args:
        file: A descriptor for writing.
        limit: In bytes, at least SMALLEST_LIMIT.

    Raises:
        OSError: This file system, or this system, makes no holes.
    """
    used = bytes_on_disk(file)
    end = (os.fstat(file).st_size - int(limit * _KEPT_PART)) // _BLOCK * _BLOCK
    if used <= limit or end <= KEPT_BEGINNING:
        return 0
    _punch_hole(file, KEPT_BEGINNING, end - KEPT_BEGINNING)
    return end - KEPT_BEGINNING


def end_of_hole(file: int, offset: int, size: int) -> int:
    """Return the first offset from this one on, up to a size, that holds data; this one where nobody can tell."""
    try:
        found = os.lseek(file, offset, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == errno.ENXIO else offset
    return max(offset, min(found, size))


def read_stored(file: int, offset: int, end: int, most: int) -> Tuple[int, bytes]:
    """Read what is stored from an offset on: where it begins, and its bytes up to the next hole, or so many at most."""
    while True:
        start = end_of_hole(file, offset, end)
        data = os.pread(file, min(most, end - start), start)
        # Asked after the read: what was dropped meanwhile may have been read as zeros.
        stored = data[: _start_of_hole(file, start, start + len(data)) - start]
        if stored or not data:
            return start, stored


def _start_of_hole(file: int, offset: int, end: int) -> int:
    try:
        return min(os.lseek(file, offset, os.SEEK_HOLE), end)
    except OSError:
        return end


def _punch_hole(file: int, start: int, length: int) -> None:
    import ctypes  # noqa: PLC0415 - for the few that print so much

    library = ctypes.CDLL(None, use_errno=True)
    allocate = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if allocate is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    allocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if allocate(file, _PUNCH_HOLE | _KEEP_SIZE, start, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
