"""Wait for changes in folders with inotify, where the kernel and Python support it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, Optional, Set, Tuple

_EVENT = struct.Struct("iIII")
_MODIFIED, _MOVED_IN, _CREATED = 0x2, 0x80, 0x100
_OVERFLOW = 0x4000
_ONLY_FOLDERS = 0x1000000
_READ_SIZE = 64 * 1024
_MISSING = {errno.ENOENT, errno.ENOTDIR}


class FolderChanges:
    """FolderChanges in watched folders, each with an owner.

    Attributes:
        descriptor: Readable when something changed.
        is_complete: Whether every folder is watched; the kernel limits watches per user.
    """

    def __init__(self) -> None:
        """Start; OSError or AttributeError on systems without inotify."""
        self._library = ctypes.CDLL(None, use_errno=True)
        self._owners: Dict[int, Set[str]] = {}
        self.is_complete = True
        self.descriptor = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise _last_error()

    def watch(self, folder: int, owner: str) -> None:
        """Watch an open folder for writes to its files and for new names."""
        # Watching by descriptor cannot be redirected by a link.
        path = b"/proc/self/fd/%d" % folder
        watch = self._library.inotify_add_watch(
            self.descriptor, path, ctypes.c_uint32(_MODIFIED | _MOVED_IN | _CREATED | _ONLY_FOLDERS)
        )
        if watch >= 0:
            self._owners.setdefault(watch, set()).add(owner)
        elif ctypes.get_errno() not in _MISSING:
            self.is_complete = False

    def take(self) -> Optional[Dict[str, bool]]:
        """Return the owners of changed folders, and whether names appeared; None if the queue overflowed.

        Each call returns the changes since the previous one.
        """
        changed: Dict[str, bool] = {}
        for watch, mask in self._events():
            if mask & _OVERFLOW:
                return None
            for owner in self._owners.get(watch, ()):
                changed[owner] = changed.get(owner, False) or bool(mask & (_MOVED_IN | _CREATED))
        return changed

    def close(self) -> None:
        """Stop watching."""
        os.close(self.descriptor)

    def _events(self) -> Iterator[Tuple[int, int]]:
        try:
            data = os.read(self.descriptor, _READ_SIZE)
        except BlockingIOError:
            return
        position = 0
        while position < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size + length
            yield watch, mask


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
