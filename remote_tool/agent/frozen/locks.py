"""Locks of a project on a server: against its syncs, and against others that bring output home."""

from __future__ import annotations

import errno
import fcntl
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

# In our own folder in the project. A sync locks the first; see ``receive.sh``.
SYNC = "sync-lock"
HOME = "home-lock"
_PAUSE = 0.02
# As long as a sync waits for another one.
_LONG_PATIENCE = 600.0


def hold(path: str, kind: int, patience: float) -> int:
    """Open and lock a file; where the file system has no locks, open it only.

    Args:
        path: The file, which is made if there is none.
        kind: ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``.
        patience: Seconds to wait for others.

    Raises:
        BlockingIOError: Others hold it for longer.
        OSError: It cannot be opened.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(file)
                raise
            time.sleep(_PAUSE)
        except OSError:
            return file
        else:
            return file


class SyncLock:
    """Keeps syncs away while names in the project change: rsync replaces files that appear after its comparison.

    Attributes:
        is_free: Whether no sync is running.
    """

    def __init__(self, scripts: str, patience: float, *, has_it: bool = False) -> None:
        """Initialize, and wait for a sync that is running.

        Args:
            scripts: Our own folder in the project.
            patience: Seconds to wait.
            has_it: Whether this program holds the lock already, until it exits.
        """
        self._path = f"{scripts}/{SYNC}"
        self._file: Optional[int] = None
        self.is_free = has_it or self._take(patience)

    def without(self, action: Callable[[], None]) -> None:
        """Do something long that changes no name in the project, while syncs may run.

        Raises:
            BlockingIOError: A sync has begun meanwhile, and takes long.
        """
        had = self._file is not None
        self.release()
        action()
        if had and not self._take(_LONG_PATIENCE):
            raise BlockingIOError(errno.EAGAIN, "a sync is running")

    def release(self) -> None:
        """Let syncs run."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take(self, patience: float) -> bool:
        try:
            self._file = hold(self._path, fcntl.LOCK_SH, patience)
        except BlockingIOError:
            return False
        except OSError:
            return True  # no sync can open it either
        return True
