"""The folders with the tickets and leases of each user: ``/var/tmp/remote-tool-<uid>``.

Each is directly below a folder that belongs to root and is sticky. Below a common folder of ours, the user who created
it could rename the folders of all others.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import time
from contextlib import suppress

from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

# Set by tests alone: their servers share a machine, but no GPUs.
BASE_VARIABLE = "REMOTE_TOOL_TEST_LEASES"
_BASE = "/var/tmp"  # noqa: S108 - every folder's owner is checked
_PREFIX = "remote-tool-"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Of one user; more cannot be there but on purpose.
MOST_NAMES = 20_000
# systemd-tmpfiles removes what nobody has touched for 30 days.
REFRESH_SECONDS = 86400.0
_ABANDONED_SECONDS = 3600.0
# Samples of a server name the same users again and again, and a directory service may be slow.
_names_of_users: Dict[int, str] = {}
# These errors are about this process, not about what it reads.
NO_MEANS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class FolderOfUser(NamedTuple):
    """An open folder of a user.

    Attributes:
        uid: Its owner.
        descriptor: To be closed.
        names: What is in it, up to a limit.
        is_cut: Whether there is more.
    """

    uid: int
    descriptor: int
    names: List[str]
    is_cut: bool = False


class LeaseError(Exception):
    """A job can never get its GPUs here; the message says why."""


class TakenError(OSError):
    """Something else has the name of this user's folder."""


def base() -> str:
    """Return the folder of the folders of all users."""
    return os.environ.get(BASE_VARIABLE) or _BASE


def have_leases() -> bool:
    """Return whether somebody on this machine has had leases, without loading the modules that read them."""
    with suppress(OSError):
        return any(name.startswith(_PREFIX) for name in os.listdir(base()))
    return False


def path_of(uid: int, pool: str = "") -> str:
    """Return a user's folder, or one in it."""
    return f"{base()}/{_PREFIX}{uid}" + (f"/{pool}" if pool else "")


def open_own(pool: str = "") -> int:
    """Open this user's folder, or the one in it for leases of something that is not a GPU, and create it if needed.

    Raises:
        OSError: This is impossible now: a disk that is full or read-only, or something of somebody else's is there.
    """
    uid = os.geteuid()
    path = path_of(uid)
    with suppress(FileExistsError):
        os.mkdir(path, 0o755)
    there = os.lstat(path)
    if there.st_uid != uid:
        why = f"{path} belongs to {name_of(there.st_uid)}, who or an administrator has to remove it"
        raise TakenError(errno.EEXIST, why)
    if not stat.S_ISDIR(there.st_mode):
        raise TakenError(errno.EEXIST, f"{path} is not a folder: remove it")
    folder = os.open(path, _OPEN)
    # Whatever has come between, a folder of somebody else's is not used.
    found = os.fstat(folder)
    if (found.st_dev, found.st_ino) != (there.st_dev, there.st_ino):
        os.close(folder)
        raise TakenError(errno.EAGAIN, f"{path} changes")
    if stat.S_IMODE(found.st_mode) != 0o755:  # noqa: PLR2004 - for others to read
        os.fchmod(folder, 0o755)
    return _open_pool(folder, pool) if pool else folder


def _open_pool(own: int, pool: str) -> int:
    try:
        with suppress(FileExistsError):
            os.mkdir(pool, 0o755, dir_fd=own)
        return os.open(pool, _OPEN, dir_fd=own)
    finally:
        os.close(own)


def remove_pool(pool: str) -> None:
    """Remove the folder of a pool once nothing is in it."""
    with suppress(OSError):
        os.rmdir(path_of(os.geteuid(), pool))


def list_pool(pool: str) -> List[FolderOfUser]:
    """Open the folder of a pool of this user for reading, if there is one."""
    try:
        folder = os.open(path_of(os.geteuid(), pool), _OPEN)
    except FileNotFoundError:
        return []
    return [FolderOfUser(os.geteuid(), folder, *_names(folder))]


def is_own(name: str, descriptor: int, pool: str = "") -> bool:
    """Return whether a name in this user's folder, as others find it, is that of an open file."""
    try:
        there = os.stat(f"{path_of(os.geteuid(), pool)}/{name}", follow_symlinks=False)
    except OSError:
        return False
    held = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)


def name_of(uid: int) -> str:
    """Return the name of a user; the number without one."""
    if uid not in _names_of_users:
        try:
            _names_of_users[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            _names_of_users[uid] = str(uid)
    return _names_of_users[uid]


def open_all(only: Optional[int] = None) -> List[FolderOfUser]:
    """Open the folders of all users, or of one, where name and owner agree."""
    found: List[FolderOfUser] = []
    try:
        device = os.stat(base()).st_dev
        names = [f"{_PREFIX}{only}"] if only is not None else os.listdir(base())
        for name in names:
            each = _open(name, device) if name.startswith(_PREFIX) else None
            if each is not None:
                found.append(each)
    except FileNotFoundError:
        return found
    except OSError:
        close_all(found)
        raise
    return found


def _open(name: str, device: int) -> Optional[FolderOfUser]:
    uid = name[len(_PREFIX) :]
    if not (uid.isascii() and uid.isdigit()) or str(int(uid)) != uid:
        return None
    folder = -1
    found = None
    try:
        folder = os.open(f"{base()}/{name}", _OPEN)
        status = os.fstat(folder)
        # A file system that a user has mounted there may never answer.
        if status.st_uid == int(uid) and status.st_dev == device:
            names, is_cut = _names(folder)
            found = FolderOfUser(int(uid), folder, names, is_cut)
    except OSError as error:
        # Whatever is wrong with the folder of one user is not for all others to bear.
        if error.errno in NO_MEANS:
            raise
    finally:
        if found is None and folder >= 0:
            os.close(folder)
    return found


def _names(folder: int) -> tuple[List[str], bool]:
    names: List[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(names) >= MOST_NAMES:
                return names, True
            names.append(entry.name)
    return names, False


def close_all(found: List[FolderOfUser]) -> None:
    """Close open folders."""
    for each in found:
        os.close(each.descriptor)


def refresh(folder: int, names: List[str]) -> None:
    """Set the times of this user's folder, and of files in it, to now."""
    for name in names:
        with suppress(OSError):
            os.utime(name, dir_fd=folder, follow_symlinks=False)
    with suppress(OSError):
        os.utime(folder)


def remove_abandoned(folder: int, prefix: str, names: List[str]) -> None:
    """Remove this user's temporary files of processes that were killed."""
    for name in names:
        if name.startswith(prefix):
            with suppress(OSError):
                if time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > _ABANDONED_SECONDS:
                    os.unlink(name, dir_fd=folder)


def find_privacy() -> str:
    """Return why other users' leases are not visible here; empty if they are."""
    if base() != _BASE:
        return ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
            mounts = [line.split() for line in stream]
    except OSError:
        return ""
    if any(fields[4] in {"/var", _BASE} and "systemd-private-" in fields[3] for fields in mounts):
        return f"{_BASE} is private to this service (PrivateTmp), so leases of other users are not visible"
    is_container = any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv"))
    if is_container and not any(fields[4] == _BASE for fields in mounts):
        return f"{_BASE} is this container's own, so leases of others on the machine are not visible"
    return ""
