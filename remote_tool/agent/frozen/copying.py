"""Copy files quickly: by reflink where the file system can, else small ones by their bytes and large ones by link."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat

from remote_tool.protocol import job_folder
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, List, Optional

# ioctl of linux/fs.h: the new file shares the bytes of another until one of them is written.
_FICLONE = 0x40049409
_SMALL = 1024 * 1024
_CHUNK = 1024 * 1024
# Python would share the byte code of different sources.
NEVER_LINKED = ("__pycache__", ".remote-tool-partial")
_MISSING = {errno.ENOENT, errno.ENOTDIR}
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class File(NamedTuple):
    """A file, link or folder.

    Attributes:
        mode: Its kind and permissions.
        size: Bytes; 0 of a folder.
        modified: Nanoseconds; 0 of a folder.
        name: Relative to the project.
    """

    mode: int
    size: int
    modified: int
    name: bytes

    @property
    def record(self) -> bytes:
        return b"%o %d %d %b" % self[:]

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def sent_record(self) -> bytes:
        slash = b"/" if self.is_folder else b""
        return b"%d %d %b%b" % (self.size, self.modified // 1_000_000_000, self.name, slash)


def parse(record: bytes) -> File:
    """Read a record."""
    mode, size, modified, name = record.split(b" ", 3)
    return File(int(mode, 8), int(size), int(modified), name)


def look(project: str, names: List[bytes]) -> List[File]:
    """Return the files that exist, by name: a folder comes before its contents."""
    base = os.fsencode(project)
    found = []
    for name in sorted(set(names)):
        each = _look_at(base, name.rstrip(b"/"), is_folder=name.endswith(b"/"))
        if each is not None:
            found.append(each)
    return found


def _look_at(base: bytes, name: bytes, *, is_folder: bool) -> Optional[File]:
    try:
        # A folder may have been moved to another disk; the sync follows such a link too.
        status = os.stat(base + b"/" + name, follow_symlinks=is_folder)
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise
    if stat.S_ISDIR(status.st_mode):
        return File(status.st_mode, 0, 0, name)
    is_copied = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
    return File(status.st_mode, status.st_size, status.st_mtime_ns, name) if is_copied else None


def is_as(base: bytes, file: File) -> bool:
    """Return whether a file has the kind, size and time that were recorded; rsync changes modes of linked ones."""
    try:
        status = os.lstat(base + b"/" + file.name)
    except OSError:
        return False
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(file.mode):
        return False
    return stat.S_ISDIR(file.mode) or (status.st_size, status.st_mtime_ns) == (file.size, file.modified)


def digest_of(records: Iterable[bytes]) -> str:
    """Return a digest of records."""
    digest = hashlib.sha256()
    for each in records:
        digest.update(b"%d " % len(each) + each)
    return digest.hexdigest()


def copy_all(files: List[File], project: str, code: str, *, may_link: bool) -> List[File]:
    """Copy files into an empty folder; return those that share their bytes with the project's.

    Args:
        files: What to copy.
        project: The project's folder.
        code: The empty folder.
        may_link: Whether large files may be links: syncs replace files, but people edit them.

    Raises:
        OSError: One cannot be copied.
    """
    source, target = os.fsencode(project), os.fsencode(code)
    folders = {b""}
    linked: List[File] = []
    can_reflink = _can_reflink(
        next((source + b"/" + each.name for each in files if stat.S_ISREG(each.mode)), b""), code
    )
    for each in files:
        path, copied = source + b"/" + each.name, target + b"/" + each.name
        _make_folders(target, each.name.rpartition(b"/")[0], folders)
        if stat.S_ISDIR(each.mode):
            _make_folders(target, each.name, folders)
            os.chmod(copied, stat.S_IMODE(each.mode) | stat.S_IRWXU)
        elif stat.S_ISLNK(each.mode):
            os.symlink(os.readlink(path), copied)
            os.utime(copied, ns=(each.modified, each.modified), follow_symlinks=False)
        elif can_reflink or each.size < _SMALL or not (may_link and _link(path, copied)):
            _copy_bytes(path, copied, each, can_reflink=can_reflink)
        else:
            linked.append(each)
    return linked


def _make_folders(target: bytes, name: bytes, known: set[bytes]) -> None:
    if name in known:
        return
    _make_folders(target, name.rpartition(b"/")[0], known)
    os.mkdir(target + b"/" + name, 0o755)
    known.add(name)


def _can_reflink(path: bytes, folder: str) -> bool:
    """Return whether a file can share its bytes with a new one in a folder."""
    if not path:
        return False
    probe = f"{folder}/.probe"
    try:
        _copy_into(path, os.fsencode(probe), lambda old, new: fcntl.ioctl(new, _FICLONE, old))
    except OSError:
        return False
    finally:
        if os.path.lexists(probe):
            os.unlink(probe)
    return True


def _link(path: bytes, copied: bytes) -> bool:
    """Link a file; return False where that is impossible: on another disk, or too many links."""
    try:
        os.link(path, copied, follow_symlinks=False)
    except OSError:
        return False
    return True


def copy_file(path: str, copied: str, status: os.stat_result, see: Optional[Callable[[int], None]] = None) -> None:
    """Copy a file to a new name, onto the disk; ``see`` gets the number of copied bytes, before each part."""

    def fill(old: int, new: int) -> None:
        done = 0
        while True:
            if see is not None:
                see(done)
            data = os.read(old, _CHUNK)
            if not data:
                break
            job_folder.write_all(new, data)
            done += len(data)
        os.fchmod(new, stat.S_IMODE(status.st_mode))
        os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.fsync(new)

    _copy_into(os.fsencode(path), os.fsencode(copied), fill)


def _copy_bytes(path: bytes, copied: bytes, file: File, *, can_reflink: bool) -> None:
    def fill(old: int, new: int) -> None:
        if not (can_reflink and _reflink(old, new)):
            while data := os.read(old, _CHUNK):
                job_folder.write_all(new, data)
        os.fchmod(new, stat.S_IMODE(file.mode) & 0o777)
        os.utime(new, ns=(file.modified, file.modified))

    _copy_into(path, copied, fill)


def _copy_into(path: bytes, copied: bytes, fill: Callable[[int, int], object]) -> None:
    old = os.open(path, _READ)
    try:
        new = os.open(copied, _CREATE, 0o600)
        try:
            fill(old, new)
        finally:
            os.close(new)
    finally:
        os.close(old)


def _reflink(old: int, new: int) -> bool:
    try:
        fcntl.ioctl(new, _FICLONE, old)
    except OSError:
        return False
    return True
