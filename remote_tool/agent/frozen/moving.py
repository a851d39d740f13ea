"""Move files and folders without replacing anything by accident, also to another disk and out of read-only folders."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from remote_tool.agent.frozen import copying
from remote_tool.agent.frozen.links import leads_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Tuple, TypeVar

    Result = TypeVar("Result")
    # Copies a file with this status to a new name, onto the disk.
    Copier = Callable[[str, str, os.stat_result], None]

# A clean removes what is left in such a folder.
_PARTIAL = ".remote-tool-partial"
_CHUNK = 1024 * 1024


def with_rights(action: Callable[[], Result], *folders: str) -> Result:
    """Do something in folders, even if a job has made them read-only."""
    try:
        return action()
    except PermissionError:
        opened = [each for each in map(_open_up, folders) if each]
        if not opened:
            raise
        try:
            return action()
        finally:
            for folder, mode in opened:
                with suppress(OSError):
                    os.chmod(folder, mode)


def _open_up(folder: str) -> Tuple[str, int] | Tuple[()]:
    with suppress(OSError):
        mode = stat.S_IMODE(os.stat(folder).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(folder, mode | stat.S_IRWXU)
            return folder, mode
    return ()


def put_link(text: str, path: str, spare: str) -> None:
    """Put a link in a place, instead of a file or link there, by way of a spare name on the same disk."""
    with suppress(FileNotFoundError):
        os.unlink(spare)
    os.symlink(text, spare)
    try:
        with_rights(lambda: os.rename(spare, path), os.path.dirname(path))
    except OSError:
        os.unlink(spare)
        raise


def make_folder(path: str, like: str) -> None:
    """Make a folder with the permissions of another one.

    Raises:
        FileExistsError: The name is taken.
        OSError: It cannot be made.
    """
    mode = stat.S_IMODE(os.stat(like).st_mode)
    with_rights(lambda: os.mkdir(path, stat.S_IRWXU), os.path.dirname(path))
    # Our own umask says nothing about what jobs make.
    os.chmod(path, mode)


def add(path: str, target: str, *, stays: bool = False, copy: Copier = copying.copy_file) -> None:
    """Give a file, link or pipe a second name; where there are no hard links, move it, or copy one that stays.

    Args:
        path: The file.
        target: Its second name.
        stays: Whether it must not move.
        copy: Copies it to another disk.

    Raises:
        FileExistsError: The name is taken.
        OSError: It cannot be made.
    """
    try:
        with_rights(lambda: os.link(path, target, follow_symlinks=False), os.path.dirname(target))
    except FileExistsError:
        raise
    except OSError as error:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
        if error.errno == errno.EXDEV:
            _copy_to(path, target, lambda new: os.link(new, target, follow_symlinks=False), copy)
        elif error.errno in {errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR}:
            raise
        elif stays:
            _copy_to(path, target, lambda new: os.rename(new, target), copy)
        else:
            with_rights(lambda: os.rename(path, target), *map(os.path.dirname, (path, target)))


def replace(path: str, target: str, copy: Copier = copying.copy_file) -> None:
    """Move a file, link or pipe to a name, instead of the file or link there.

    Raises:
        FileExistsError: Another file has come there while this one was copied to another disk.
        OSError: It cannot be moved.
    """
    before = os.lstat(target)

    def put(new: str) -> None:
        now = os.lstat(target)
        if (now.st_ino, now.st_ctime_ns) != (before.st_ino, before.st_ctime_ns):
            raise FileExistsError(errno.EEXIST, "it has changed in the project meanwhile", target)
        os.rename(new, target)

    try:
        with_rights(lambda: os.rename(path, target), *map(os.path.dirname, (path, target)))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_to(path, target, put, copy)


def move_folder(path: str, target: str) -> bool:
    """Move a folder to a free name; return False if that is on another disk.

    Raises:
        OSError: The name is taken, or the folder cannot be moved.
    """
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    try:
        # A folder that moves must be writable itself: its ``..`` changes.
        with_rights(lambda: os.rename(path, target), path, *map(os.path.dirname, (path, target)))
    except OSError as error:
        if error.errno == errno.EXDEV:
            return False
        raise
    if stat.S_IMODE(os.lstat(target).st_mode) != mode:
        os.chmod(target, mode)
    return True


def _copy_to(path: str, target: str, put: Callable[[str], None], copy: Copier) -> None:
    """Copy to another disk; the name appears when all of it is there."""
    status = os.lstat(path)
    is_link = stat.S_ISLNK(status.st_mode)
    if not is_link and not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    parent = os.path.dirname(target)
    folder = f"{parent}/{_PARTIAL}"
    with suppress(FileExistsError):
        with_rights(lambda: os.mkdir(folder, stat.S_IRWXU), parent)
    new = f"{folder}/{os.urandom(8).hex()}"
    try:
        if is_link:
            os.symlink(os.readlink(path), new)
        else:
            copy(path, new, status)
        with_rights(lambda: put(new), parent)
    finally:
        with suppress(OSError):
            os.unlink(new)
        with suppress(OSError):
            with_rights(lambda: os.rmdir(folder), parent)


def is_same(path: str, other: str) -> bool:
    """Return whether two files have the same content, or two links the same text."""
    one, two = os.lstat(path), os.lstat(other)
    if stat.S_IFMT(one.st_mode) != stat.S_IFMT(two.st_mode):
        return False
    if stat.S_ISLNK(one.st_mode):
        return os.readlink(path) == os.readlink(other)
    return stat.S_ISREG(one.st_mode) and one.st_size == two.st_size and _has_same_bytes(path, other)


def _has_same_bytes(path: str, other: str) -> bool:
    try:
        with open(path, "rb") as one, open(other, "rb") as two:
            while True:
                part = one.read(_CHUNK)
                if part != two.read(_CHUNK):
                    return False
                if not part:
                    return True
    except OSError:
        return False


def turn_links(path: str, old: Tuple[str, ...], new: str, spare: str) -> None:
    """Have absolute links below a path that lead into an old folder lead into a new one."""
    if os.path.islink(path):
        _turn_link(path, old, new, spare)
        return
    waiting: List[str] = [path] if os.path.isdir(path) else []
    for folder in waiting:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    _turn_link(entry.path, old, new, spare)
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def follow_project(code: str, project: str, jobs: str, spare: str) -> None:
    """Have the links of a copy lead into the project's folder after that has moved.

    Args:
        code: The copy's folder in place of the project's.
        project: The project's folder.
        jobs: Name of the link to our folder of jobs, which every copy has.
        spare: A name for new links.
    """
    before = leads_to(f"{code}/{jobs}")
    if not before.startswith("/") or not before.endswith(f"/{jobs}") or before == f"{project}/{jobs}":
        return
    # That link is the last: it tells from where.
    for name in [*(each for each in os.listdir(code) if each != jobs), jobs]:
        turn_links(f"{code}/{name}", (before[: -len(jobs) - 1],), project, spare)


def _turn_link(path: str, old: Tuple[str, ...], new: str, spare: str) -> None:
    text = leads_to(path)
    for folder in old:
        if text.startswith(f"{folder}/"):
            put_link(new + text[len(folder) :], path, spare)
            return
