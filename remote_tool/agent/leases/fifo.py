"""Named pipes that show to every user of this machine whether the process that made them is alive.

The process has the pipe open for writing, until the kernel closes it when the process dies. Others open it for reading,
for which they need no more than the right to read: they see at once whether it has a writer, and poll() returns when it
has none any more. It gets its name only when it is open, so one that is visible and has no writer is dead for ever.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress

from remote_tool.agent.leases.folders import NO_MEANS
from remote_tool.agent.proc import processes
from remote_tool.protocol import job_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Set, Tuple

TEMPORARY = ".new-"
# What the kernel adds to the path of a file that has no name any more.
_REMOVED = " (deleted)"
_HOLD = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
# F_SETPIPE_SZ, which Python names since 3.10, to one page.
_SET_SIZE, _SMALLEST = 1031, 4096
# Open in this process; a child that does not exec would keep them alive.
_held: Set[int] = set()
_registered: Set[int] = set()


def hold(folder: int, name: str, *, replaces: bool = True) -> int:
    """Make a pipe that lives as long as this process has the descriptor that is returned.

    Raises:
        FileExistsError: There is one of this name, which is not to be replaced.
    """
    temporary = f"{TEMPORARY}{os.urandom(8).hex()}"
    os.mkfifo(temporary, 0o644, dir_fd=folder)
    descriptor = -1
    try:
        descriptor = os.open(temporary, _HOLD, dir_fd=folder)
        shrink(descriptor)
        _held.add(descriptor)
        if os.getpid() not in _registered:
            _registered.add(os.getpid())
            os.register_at_fork(after_in_child=_close_all)
        # Regardless of the umask.
        os.fchmod(descriptor, 0o644)
        if replaces:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            os.unlink(temporary, dir_fd=folder)
    except OSError:
        if descriptor >= 0:
            let_go(descriptor)
        job_folder.remove(folder, temporary)
        raise
    return descriptor


def shrink(descriptor: int) -> None:
    """Let a pipe that carries little take one page: beyond 1,024 usual ones, the kernel shrinks all pipes of a user."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, _SET_SIZE, _SMALLEST)


def let_go(descriptor: int) -> None:
    """Close a pipe that this process holds."""
    _held.discard(descriptor)
    os.close(descriptor)


def watch(folder: int, name: str, owner: int) -> Optional[int]:
    """Return a descriptor on which poll() reports the end of the holder; None if nobody holds it."""
    try:
        descriptor = os.open(name, _LOOK, dir_fd=folder)
    except OSError as error:
        if error.errno in NO_MEANS:
            raise
        return None
    is_alive = False
    try:
        found = os.fstat(descriptor)
        is_alive = stat.S_ISFIFO(found.st_mode) and found.st_uid == owner and _has_writer(descriptor)
    finally:
        if not is_alive:
            os.close(descriptor)
    return descriptor if is_alive else None


def is_held(folder: int, name: str, owner: int) -> bool:
    """Return whether a process holds a pipe."""
    descriptor = watch(folder, name, owner)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def find_removed(path: str, endings: Tuple[str, ...]) -> bool:
    """Return whether another process of this user holds a pipe without a name, removed from this folder.

    Args:
        path: The folder.
        endings: Those of the names that count.
    """
    with suppress(OSError):
        others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
        return any(_holds_removed(name, path, endings) for name in others)
    return False


def _holds_removed(pid: str, path: str, endings: Tuple[str, ...]) -> bool:
    with suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid == os.geteuid():
            found = processes.descriptors(int(pid)).values()
            removed = tuple(ending + _REMOVED for ending in endings)
            return any(each.startswith(f"{path}/") and each.endswith(removed) for each in found)
    return False


def _has_writer(descriptor: int) -> bool:
    try:
        # Who writes into his own pipe deceives nobody but himself.
        return bool(os.read(descriptor, 1))
    except BlockingIOError:
        return True


def _close_all() -> None:
    while _held:
        with suppress(OSError):
            os.close(_held.pop())
