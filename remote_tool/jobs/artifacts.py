"""What came home of a job's files: ``.remote/jobs/<id>/artifacts/``, each file whole or not there at all.

With ``artifacts_folder`` it is ``<that folder>/<id>/``. What is not whole yet lies in ``.remote-tool/partial`` beside
them, named by what it will be and which state of the file on the server it is a part of: so it is gone on with only as
long as that is the very file. No link is followed.
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
from remote_tool.system.locks import lock

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
    """Which state of which file: bytes, nanoseconds since the epoch, inode on the server."""

    size: int
    modified: int
    inode: int


class RemoteFile(NamedTuple):
    """A file that a job has written.

    Attributes:
        path: Relative to the project.
        stamp: Which state of it.
        gives_way: Whether newer ones take its place here.
    """

    path: str
    stamp: Stamp
    gives_way: bool = False


def why_not_here(path: str) -> str:
    """Return why a path cannot be one in our folder; empty when it can."""
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
    """The artifacts of one job.

    Attributes:
        parent: The job's folder here, or one that has a folder for each job.
        name: Of the folder in it.
    """

    parent: Path
    name: str = FOLDER

    @classmethod
    def at(cls, folder: Path) -> ArtifactFolder:
        """Return the artifacts that a folder holds."""
        return cls(folder.parent, folder.name)

    @property
    def folder(self) -> Path:
        return self.parent / self.name

    def path(self, name: str) -> Path:
        """Return where a file lies."""
        return self.folder / name

    def state(self, name: str) -> os.stat_result | None:
        """Return what is here under a name; None when there is no plain file."""
        *folders, last = name.split("/")
        with suppress(OSError), self._opened(folders) as parent:
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
            return found if stat.S_ISREG(found.st_mode) else None
        return None

    def has(self, file: RemoteFile) -> bool:
        """Whether the copy here is of just this state."""
        here = self.state(file.path)
        return here is not None and (here.st_size, here.st_mtime_ns) == file.stamp[:2]

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file that is whole."""
        found: dict[str, int] = {}
        with suppress(OSError), self._opened([]) as root:
            for folder, folders, names, descriptor in os.fwalk(".", dir_fd=root, follow_symlinks=False):
                if folder == "." and OURS in folders:
                    folders.remove(OURS)
                for name in names:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    found[os.path.normpath(os.path.join(folder, name))] = status.st_size  # noqa: PTH118 - names
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Have the folder alone.

        Raises:
            BlockingIOError: Another program has it.
            JobError: It cannot be made.
        """
        with self.writing(""), self._opened([OURS], create=True) as folder:
            file = os.open(LOCK, os.O_RDWR | os.O_CREAT | _FILE_FLAGS, 0o600, dir_fd=folder)
        try:
            lock(file)
            yield
        finally:
            os.close(file)

    def partial_size(self, file: RemoteFile) -> int:
        """Return how much of a file is here already, of its present state."""
        with suppress(OSError), self._opened(PARTIAL.split("/")) as folder:
            found = os.stat(_partial_name(file), dir_fd=folder, follow_symlinks=False)
            return found.st_size if stat.S_ISREG(found.st_mode) else 0
        return 0

    def partial_digest(self, file: RemoteFile) -> tuple[int, str]:
        """Return how much of a file is here already, and its SHA-256."""
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
    def receiving(self, file: RemoteFile, offset: int) -> Iterator[Arrival]:
        """Take the bytes of a file from an offset on, which is where the part that is here ends, or 0.

        Raises:
            JobError: It cannot be written; the message names it and says why.
        """
        with self.writing(file.path), self._opened(PARTIAL.split("/"), create=True) as folder:
            descriptor = os.open(_partial_name(file), os.O_RDWR | os.O_CREAT | _FILE_FLAGS, 0o600, dir_fd=folder)
            try:
                os.ftruncate(descriptor, offset)
                yield Arrival(file, descriptor, offset)
            finally:
                os.close(descriptor)

    def publish(self, file: RemoteFile) -> None:
        """Give a file that has arrived its name.

        Raises:
            JobError: It cannot be; the message names it and says why.
        """
        *folders, last = file.path.split("/")
        with (
            self.writing(file.path),
            self._opened(PARTIAL.split("/")) as partial,
            self._opened(folders, create=True) as parent,
        ):
            os.rename(_partial_name(file), last, src_dir_fd=partial, dst_dir_fd=parent)

    def drop(self, file: RemoteFile) -> None:
        """Forget the part of a file that is here."""
        with suppress(OSError), self._opened(PARTIAL.split("/")) as folder:
            os.unlink(_partial_name(file), dir_fd=folder)

    def keep_parts_of(self, wanted: Iterable[RemoteFile]) -> None:
        """Remove the parts of files, or of states of them, that nobody wants any more."""
        kept = {_partial_name(file) for file in wanted}
        with suppress(OSError), self._opened(PARTIAL.split("/")) as folder:
            with os.scandir(folder) as entries:
                names = {entry.name for entry in entries}
            for name in names - kept:
                os.unlink(name, dir_fd=folder)

    def giving_way(self) -> dict[str, int]:
        """Return the time of each file that gives way to newer ones, and is still as it came."""
        try:
            noted = strict_json.parse(read_bounded(self.folder / OURS / GIVING_WAY, LARGEST_NOTE)[0])
        except (OSError, ValueError):
            return {}
        if not isinstance(noted, dict):
            return {}
        return {name: modified for name, modified in noted.items() if self._is_as_it_came(name, modified)}

    def note_giving_way(self, files: Mapping[str, int]) -> None:
        """Remember which files give way; without the note none does."""
        with self.writing(""), self._opened([OURS], create=True):
            write_atomically(self.folder / OURS / GIVING_WAY, json.dumps(dict(files)).encode())

    def remove(self, name: str) -> None:
        """Remove a file, and the folders that are empty then."""
        parts = name.split("/")
        with suppress(OSError), self._opened(parts[:-1]) as parent:
            os.unlink(parts[-1], dir_fd=parent)
        for depth in range(len(parts) - 1, 0, -1):
            with suppress(OSError), self._opened(parts[: depth - 1]) as parent:
                os.rmdir(parts[depth - 1], dir_fd=parent)

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Name a file, or the folder, that something cannot be done with.

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
        """Open the folder; OSError when there is none."""
        with self._opened([]) as folder:
            yield folder

    def _is_as_it_came(self, name: str, modified: object) -> bool:
        if why_not_here(name):
            return False
        here = self.state(name)
        return here is not None and here.st_mtime_ns == modified

    def _opened(self, folders: list[str], *, create: bool = False) -> AbstractContextManager[int]:
        """Open a folder below ours."""
        return opened_beneath(self.parent, (self.name, *folders), create=create)


def make_folder(folder: Path) -> None:
    """Make the folder that the user has chosen, but not the one that it lies in: a disk may be missing there.

    Raises:
        JobError: It cannot be made.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        quoted = shlex.quote(str(folder))
        raise JobError(f"Cannot make the folder {folder}: {error.strerror}", hint=f"mkdir -p {quoted}") from error


class Arrival:
    """A file that is being written here.

    Attributes:
        size: How far it is.
    """

    def __init__(self, file: RemoteFile, descriptor: int, offset: int) -> None:
        self.size = offset
        self._file = file
        self._descriptor = descriptor

    @property
    def readable_path(self) -> bytes:
        """Return a path under which just this file can be read."""
        return b"/dev/fd/%d" % self._descriptor

    def status(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def add(self, offset: int, data: bytes) -> None:
        """Write what comes next; what is left out before it is a hole.

        Raises:
            JobError: It does not go on where the file ends, or is more than was announced.
            OSError: It cannot be written.
        """
        if not data or offset < self.size or offset + len(data) > self._file.stamp.size:
            raise JobError(f"{self._file.path}: received bytes that do not continue the local copy")
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            data, offset = data[written:], offset + written
        self.size = offset

    def complete(self) -> None:
        """See all of it on the disk, with its length and time; what is left out at the end is a hole."""
        os.ftruncate(self._descriptor, self._file.stamp.size)
        os.utime(self._descriptor, ns=(self._file.stamp.modified, self._file.stamp.modified))
        os.fsync(self._descriptor)


def _partial_name(file: RemoteFile) -> str:
    return hashlib.sha256(json.dumps([file.path, *file.stamp]).encode()).hexdigest()
