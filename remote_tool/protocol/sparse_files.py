"""Read files after their oldest part was released as a hole, so that offsets do not change."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

# The beginning of a file is never released.
KEPT_BEGINNING = 256 * 1024
# A file at its limit keeps this part, so that the work is not done for every byte.
_KEPT_PART = 0.75
# A multiple of the block size of every usual file system.
_BLOCK = 64 * 1024
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def bytes_on_disk(file: int) -> int:
    """Return an open file's size on disk; holes take no space."""
    return os.fstat(file).st_blocks * 512


def give_back(file: int, limit: int) -> int:
    """Make a hole behind the beginning of a file that exceeds a limit; return its length, 0 for none.

    Args:
        file: A descriptor for writing.
        limit: In bytes, at least SMALLEST_LOG_LIMIT.

    Raises:
        OSError: Holes are not supported here.
    """
    used = bytes_on_disk(file)
    end = (os.fstat(file).st_size - int(limit * _KEPT_PART)) // _BLOCK * _BLOCK
    if used <= limit or end <= KEPT_BEGINNING:
        return 0
    _punch_hole(file, KEPT_BEGINNING, end - KEPT_BEGINNING)
    return end - KEPT_BEGINNING


def end_of_hole(file: int, offset: int, size: int) -> int:
    """Return the first offset with data between this one and a size; this one if unknown."""
    try:
        found = os.lseek(file, offset, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == errno.ENXIO else offset
    return max(offset, min(found, size))


def read_stored(file: int, offset: int, end: int, most: int) -> Tuple[int, bytes]:
    """Read data from an offset on: return its offset, and its bytes up to the next hole or a maximum."""
    while True:
        start = end_of_hole(file, offset, end)
        data = os.pread(file, min(most, end - start), start)
        # Checked after the read: a part dropped meanwhile may have been read as zeros.
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
