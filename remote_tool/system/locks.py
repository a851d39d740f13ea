"""Locks between processes of this machine: flock on an open file, released however its holder ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress

_PAUSE_SECONDS = 0.01


def lock(descriptor: int, *, seconds: float = 0.0) -> None:
    """Lock an open file until :func:`unlock` closes it, or this process ends.

    Raises:
        BlockingIOError: Another process still holds it when time is up.
        OSError: The file system has no locks.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BlockingIOError(errno.EAGAIN, "another program holds its lock") from None
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def unlock(descriptor: int) -> None:
    """Close a file and release its lock, which a forked child would otherwise hold until it ends."""
    # A file system without locks has none to release.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def holders(descriptor: int) -> list[int]:
    """Return the processes that hold a lock on an open file, where the kernel lists them."""
    inode = str(os.fstat(descriptor).st_ino)
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - pathlib loads slowly
            locks = [line.split() for line in file]
    except OSError:
        return []
    # 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF
    pids = [fields[4] for fields in locks if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode]
    return [int(pid) for pid in pids if _has_open(pid, descriptor)]


def _has_open(pid: str, descriptor: int) -> bool:
    """Return whether a process has the same file open: inode numbers repeat across file systems."""
    status = os.fstat(descriptor)
    with suppress(OSError):
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - as above
        return any(_is_same(f"/proc/{pid}/fd/{name}", status) for name in names)
    return False


def _is_same(path: str, status: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.stat(path), status)  # noqa: PTH116 - as above
    return False
