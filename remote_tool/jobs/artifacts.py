"""Pulled artifacts of a job in ``.remote/jobs/<id>/artifacts/``; a file appears there only when complete.

With ``artifacts_folder`` they are in ``<that folder>/<id>/``. Incomplete files are in ``.remote-tool/partial`` beside
them, named by target and version of the server's file: a download resumes only while the file is unchanged. No
link is followed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shlex
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from remote_tool.errors import JobError
from remote_tool.protocol import strict_json
from remote_tool.system.files import opened_beneath, read_bounded, write_atomically
from remote_tool.system.locks import lock, unlock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

FOLDER = "artifacts"
OURS = ".remote-tool"
PARTIAL = f"{OURS}/partial"
GIVING_WAY = "giving-way.json"
LOCK = "lock"
LARGEST_NOTE = 16 * 1024 * 1024
LONGEST_NAME = 255
LONGEST_PATH = 3000
DEEPEST = 64
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_PLAIN = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENOTEMPTY, errno.EEXIST}
_PIECE = 1024 * 1024


class Stamp(NamedTuple):
    """Version of a file: bytes, nanoseconds since the epoch, inode on the server."""

    size: int
    modified: int
    inode: int


class RemoteFile(NamedTuple):
    """A file written by a job.

    Attributes:
        path: Relative to the project.
        stamp: Its version.
        gives_way: Whether newer files replace it here.
    """

    path: str
    stamp: Stamp
    gives_way: bool = False


def path_problem(path: str) -> str:
    """Explain why a path is not allowed in the folder of artifacts; empty if it is."""
    parts = path.split("/")
    if not path.isprintable():
        return "its name has characters that cannot be printed"
    if {"", ".", ".."} & set(parts) or len(path.encode()) > LONGEST_PATH or len(parts) > DEEPEST:
        return "that is not a path in the project"
    if any(len(part.encode()) > LONGEST_NAME for part in parts):
        return "its name is too long"
    return "that name is ours" if parts[0].casefold() == OURS else ""


@dataclass(frozen=True)
class ArtifactFolder:
    """The pulled artifacts of one job.

    Attributes:
        parent: The job's local folder, or one that has a folder for each job.
        name: Of the folder in the parent.
    """

    parent: Path
    name: str = FOLDER

    @classmethod
    def at(cls, folder: Path) -> ArtifactFolder:
        """Return the artifacts in a folder."""
        return cls(folder.parent, folder.name)

    @property
    def folder(self) -> Path:
        return self.parent / self.name

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.folder / name

    def state(self, name: str) -> os.stat_result | None:
        """Return a file's local status; None unless it is a plain file."""
        *folders, last = name.split("/")
        with suppress(OSError), self._opened(folders) as parent:
            status = os.stat(last, dir_fd=parent, follow_symlinks=False)
            return status if stat.S_ISREG(status.st_mode) else None
        return None

    def has(self, file: RemoteFile) -> bool:
        """Return whether the local copy is of exactly this version."""
        status = self.state(file.path)
        return status is not None and (status.st_size, status.st_mtime_ns) == file.stamp[:2]

    def sizes(self) -> dict[str, int]:
        """Return the size of each complete file."""
        sizes: dict[str, int] = {}
        with suppress(OSError), self._opened([]) as root:
            for folder, folders, names, descriptor in os.fwalk(".", dir_fd=root, follow_symlinks=False):
                if folder == "." and OURS in folders:
                    folders.remove(OURS)
                for name in names:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    sizes[os.path.normpath(os.path.join(folder, name))] = status.st_size  # noqa: PTH118 - names
        return sizes

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder.

        Raises:
            BlockingIOError: Another program holds the lock.
            JobError: The folder cannot be created.
        """
        with self.writing(""), self._opened([OURS], create=True) as folder:
            file = os.open(LOCK, os.O_RDWR | os.O_CREAT | _FILE_FLAGS, 0o600, dir_fd=folder)
        try:
            lock(file)
            yield
        finally:
            unlock(file)

    def partial_size(self, file: RemoteFile) -> int:
        """Return the downloaded bytes of the file's current version."""
        with suppress(OSError), self._opened(PARTIAL.split("/")) as folder:
            status = os.stat(_partial_name(file), dir_fd=folder, follow_symlinks=False)
            return status.st_size if stat.S_ISREG(status.st_mode) else 0
        return 0

    def partial_digest(self, file: RemoteFile) -> tuple[int, str]:
        """Return the downloaded bytes of a file, and their SHA-256."""
        digest = hashlib.sha256()
        size = 0
        with suppress(OSError), self._opened(PARTIAL.split("/")) as folder:
            descriptor = os.open(_partial_name(file), os.O_RDONLY | _FILE_FLAGS, dir_fd=folder)
            with os.fdopen(descriptor, "rb", buffering=0) as stream:
                while data := stream.read(_PIECE):
                    digest.update(data)
                    size += len(data)
        return size, digest.hexdigest()

    @contextmanager
    def receiving(self, file: RemoteFile, offset: int) -> Iterator[Download]:
        """Write a file's bytes from an offset on: the end of the downloaded part, or 0.

        Raises:
            JobError: It cannot be written; the message names it and says why.
        """
        with self.writing(file.path), self._opened(PARTIAL.split("/"), create=True) as folder:
            descriptor = os.open(_partial_name(file), os.O_RDWR | os.O_CREAT | _FILE_FLAGS, 0o600, dir_fd=folder)
            try:
                os.ftruncate(descriptor, offset)
                yield Download(file, descriptor, offset)
            finally:
                os.close(descriptor)

    def publish(self, file: RemoteFile) -> None:
        """Move a complete file into place.

        Raises:
            JobError: It cannot be moved; the message names it and says why.
        """
        *folders, last = file.path.split("/")
        with (
            self.writing(file.path),
            self._opened(PARTIAL.split("/")) as partial,
            self._opened(folders, create=True) as parent,
        ):
            os.rename(_partial_name(file), last, src_dir_fd=partial, dst_dir_fd=parent)

    def drop(self, file: RemoteFile) -> None:
        """Remove the downloaded part of a file."""
        with suppress(OSError), self._opened(PARTIAL.split("/")) as folder:
            os.unlink(_partial_name(file), dir_fd=folder)

    def keep_parts_of(self, requested: Iterable[RemoteFile]) -> None:
        """Remove parts of files or versions that are not requested any longer."""
        kept = {_partial_name(file) for file in requested}
        with suppress(OSError), self._opened(PARTIAL.split("/")) as folder:
            with os.scandir(folder) as entries:
                names = {entry.name for entry in entries}
            for name in names - kept:
                os.unlink(name, dir_fd=folder)

    def giving_way(self) -> dict[str, int]:
        """Return the times of the files that newer ones replace, unless they were changed here."""
        try:
            files = strict_json.parse(read_bounded(self.folder / OURS / GIVING_WAY, LARGEST_NOTE)[0])
        except (OSError, ValueError):
            return {}
        if not isinstance(files, dict):
            return {}
        return {name: modified for name, modified in files.items() if self._is_unchanged(name, modified)}

    def note_giving_way(self, files: Mapping[str, int]) -> None:
        """Record the files that newer ones replace; without this record, none is replaced."""
        with self.writing(""), self._opened([OURS], create=True):
            write_atomically(self.folder / OURS / GIVING_WAY, json.dumps(dict(files)).encode())

    def remove(self, name: str) -> None:
        """Remove a file, and its parents while they are empty."""
        parts = name.split("/")
        with suppress(OSError), self._opened(parts[:-1]) as parent:
            os.unlink(parts[-1], dir_fd=parent)
        for depth in range(len(parts) - 1, 0, -1):
            with suppress(OSError), self._opened(parts[: depth - 1]) as parent:
                os.rmdir(parts[depth - 1], dir_fd=parent)

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Name the file or folder in the message of an error.

        Raises:
            JobError: For any OSError within.
        """
        path = self.path(name)
        try:
            yield
        except OSError as error:
            if error.errno in _NOT_PLAIN:
                raise JobError(
                    f"{path} is not a regular file in regular folders; links are not followed", hint=f"ls -ld {path}"
                ) from None
            raise JobError(f"Cannot write {path}: {error.strerror}", hint=f"df -h {self.parent}") from error

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the folder; OSError when it does not exist."""
        with self._opened([]) as folder:
            yield folder

    def _is_unchanged(self, name: str, modified: object) -> bool:
        if path_problem(name):
            return False
        status = self.state(name)
        return status is not None and status.st_mtime_ns == modified

    def _opened(self, folders: list[str], *, create: bool = False) -> AbstractContextManager[int]:
        """Open a subfolder level by level, so that no link can redirect it."""
        return opened_beneath(self.parent, (self.name, *folders), create=create)


def make_folder(folder: Path) -> None:
    """Create the user's folder but not its parent: a disk may not be mounted there.

    Raises:
        JobError: It cannot be created.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        quoted = shlex.quote(str(folder))
        raise JobError(f"Cannot make the folder {folder}: {error.strerror}", hint=f"mkdir -p {quoted}") from error


class Download:
    """A file being downloaded.

    Attributes:
        size: Bytes so far.
    """

    def __init__(self, file: RemoteFile, descriptor: int, offset: int) -> None:
        self.size = offset
        self._file = file
        self._descriptor = descriptor

    @property
    def readable_path(self) -> bytes:
        """A path at which this very file can be read."""
        return b"/dev/fd/%d" % self._descriptor

    def status(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def add(self, offset: int, data: bytes) -> None:
        """Write the next bytes; an offset beyond the end leaves a hole.

        Raises:
            JobError: The offset is before the end, or there are more bytes than announced.
            OSError: It cannot be written.
        """
        if not data or offset < self.size or offset + len(data) > self._file.stamp.size:
            raise JobError(f"{self._file.path}: received bytes that do not continue the local copy")
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            data, offset = data[written:], offset + written
        self.size = offset

    def complete(self) -> None:
        """Set length and time, and sync to disk; missing bytes at the end become a hole."""
        os.ftruncate(self._descriptor, self._file.stamp.size)
        os.utime(self._descriptor, ns=(self._file.stamp.modified, self._file.stamp.modified))
        os.fsync(self._descriptor)


def _partial_name(file: RemoteFile) -> str:
    return hashlib.sha256(json.dumps([file.path, *file.stamp]).encode()).hexdigest()
