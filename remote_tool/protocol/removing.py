"""Remove our files: rename first, then delete; follow no link and cross no file system."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress

from remote_tool.protocol.job_folder import open_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

# The prefix of names being removed; the next clean resumes with them.
MARK = ".removed-"
_BLOCK = 512
_DEEPEST = 200


def names_in(folder: int) -> List[str]:
    """Return the names in a folder; none if unreadable."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def is_over(deadline: float) -> bool:
    return time.monotonic() > deadline


def size_of(parent: int, name: str, deadline: float) -> int:
    """Return the disk space of a file or folder in bytes, as far as time allows."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            return found.st_blocks * _BLOCK
        folder = open_folder(name, parent)
    except OSError:
        return 0
    try:
        return found.st_blocks * _BLOCK + _size_below(folder, found.st_dev, deadline, 0)
    finally:
        os.close(folder)


def _size_below(folder: int, device: int, deadline: float, depth: int) -> int:
    size = 0
    for name in names_in(folder):
        if is_over(deadline) or depth > _DEEPEST:
            break
        with suppress(OSError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            size += found.st_blocks * _BLOCK
            if stat.S_ISDIR(found.st_mode) and found.st_dev == device:
                inner = open_folder(name, folder)
                try:
                    size += _size_below(inner, device, deadline, depth + 1)
                finally:
                    os.close(inner)
    return size


def set_aside(parent: int, name: str) -> str:
    """Rename an entry for removal, in the same folder; empty if missing."""
    aside = f"{MARK}{os.urandom(8).hex()}"
    try:
        os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
    except FileNotFoundError:
        return ""
    return aside


def remove_marked(parent: int, deadline: float) -> bool:
    """Remove all renamed entries in a folder, also after interrupted cleans; return whether none is left."""
    left = [name for name in names_in(parent) if name.startswith(MARK) and not remove(parent, name, deadline)]
    return not left


def remove(parent: int, name: str, deadline: float) -> bool:
    """Remove a file, a link or a folder with its contents; return whether nothing is left."""
    return _remove(parent, name, os.fstat(parent).st_dev, deadline, 0)


def _remove(parent: int, name: str, device: int, deadline: float, depth: int) -> bool:
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=parent)
            return True
        if found.st_dev != device or depth > _DEEPEST:
            return False
        _empty(parent, name, device, deadline, depth)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _empty(parent: int, name: str, device: int, deadline: float, depth: int) -> None:
    folder = open_folder(name, parent)
    try:
        # Another file system may have been mounted since the check.
        if os.fstat(folder).st_dev != device:
            return
        with suppress(OSError):
            os.fchmod(folder, 0o700)
        for each in names_in(folder):
            if is_over(deadline):
                return
            _remove(folder, each, device, deadline, depth + 1)
    finally:
        os.close(folder)
