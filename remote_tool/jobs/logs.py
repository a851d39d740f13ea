"""Local copies of a job's output: exact bytes at the server's offsets."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from remote_tool.errors import JobError
from remote_tool.jobs.records import STREAM
from remote_tool.protocol.job_folder import is_kept
from remote_tool.protocol.sparse_files import end_of_hole, give_back, read_stored
from remote_tool.system.files import opened_beneath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ_SIZE = 256 * 1024
# A planted pipe in place of a log must not block.
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class LogFolder:
    """The logs in ``.remote/jobs/<id>/``.

    Streams are named as by the supervisor: ``out``, ``err``, and for launches ``ranks/<attempt>/<local rank>/out``.
    Bytes are written at their offsets, so two programs that follow one job write the same file. The project may come
    from somebody else, with links planted in it: none is followed for writing or reading.
    """

    folder: Path

    def path(self, stream: str) -> Path:
        """Return the path of a stream.

        Raises:
            JobError: The name is not a stream's.
        """
        if not STREAM.fullmatch(stream):
            raise JobError(f"{stream!r} is not the name of a log")
        return self.folder / (f"job.{stream}" if "/" not in stream else stream)

    def sizes(self) -> dict[str, int]:
        """Return the local size of each stream."""
        found = {stream: self.path(stream) for stream in ("out", "err")}
        for path in self.folder.glob("ranks/*/*/*"):
            stream = path.relative_to(self.folder).as_posix()
            if STREAM.fullmatch(stream):
                found[stream] = path
        sizes = {}
        for stream in found:
            with contextlib.suppress(OSError, JobError), self._opened(stream, os.O_RDONLY) as descriptor:
                sizes[stream] = os.fstat(descriptor).st_size
        return sizes

    def write(self, stream: str, offset: int, data: bytes) -> None:
        """Write bytes at an offset.

        Raises:
            JobError: The file cannot be written; the message names it and says why.
        """
        with self._written(stream) as descriptor:
            while data:
                written = os.pwrite(descriptor, data, offset)
                data, offset = data[written:], offset + written

    def skip(self, stream: str, offset: int) -> None:
        """Leave a hole up to an offset, like the server's.

        Raises:
            JobError: The file cannot be written; the message names it and says why.
        """
        with self._written(stream) as descriptor:
            os.ftruncate(descriptor, max(offset, os.fstat(descriptor).st_size))

    def kept(self) -> dict[str, int]:
        """Return the local size of each file that the server keeps beside the output."""
        found = {}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                if is_kept(entry.name) and entry.is_file(follow_symlinks=False):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_size
        return found

    def keep(self, name: str, data: bytes) -> None:
        """Write a file that the server keeps beside the output, whole or not at all.

        Raises:
            JobError: It cannot be written; the message names it and says why.
        """
        temporary = f".{name}.{os.urandom(4).hex()}"
        try:
            with opened_beneath(self.folder.parent, [self.folder.name]) as parent:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
                with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=parent), "wb") as file:
                    file.write(data)
                os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            path = self.folder / name
            raise JobError(f"Cannot write {path}: {error.strerror}", hint=f"df -h {self.folder}") from error

    def keep_within(self, stream: str, limit: int) -> None:
        """Release the oldest part of a stream beyond a limit, where the file system supports it."""
        with contextlib.suppress(OSError), self._opened(stream, os.O_RDWR) as descriptor:
            give_back(descriptor, limit)

    def reset(self, stream: str) -> None:
        """Delete a stream that the server has restarted.

        Raises:
            JobError: The file cannot be written; the message names it and says why.
        """
        with self._written(stream) as descriptor:
            os.ftruncate(descriptor, 0)

    def read(self, stream: str, start: int) -> Iterator[bytes]:
        """Yield the local bytes from an offset on, without holes."""
        return (data for _, data in self.pieces(stream, start))

    def pieces(self, stream: str, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield the local bytes from an offset on, each with its offset; gaps are holes."""
        try:
            with self._opened(stream, os.O_RDONLY) as descriptor:
                while start < (size := os.fstat(descriptor).st_size):
                    begin, data = read_stored(descriptor, start, size, READ_SIZE)
                    start = begin + len(data)
                    yield begin, data
        except FileNotFoundError:
            return

    def start_of_last_lines(self, stream: str, lines: int) -> int:
        """Return the offset of the last lines; 0 for a missing stream."""
        try:
            with self._opened(stream, os.O_RDONLY) as descriptor, open(descriptor, "rb", closefd=False) as file:
                return _start_of_last_lines(file, lines)
        except FileNotFoundError:
            return 0

    @contextmanager
    def _written(self, stream: str) -> Iterator[int]:
        """Open a stream for writing; create it and its folders if missing."""
        path = self.path(stream)
        try:
            with self._opened(stream, os.O_WRONLY | os.O_CREAT) as descriptor:
                yield descriptor
        except OSError as error:
            raise JobError(f"Cannot write {path}: {error.strerror}", hint=f"df -h {self.folder}") from error

    @contextmanager
    def _opened(self, stream: str, flags: int) -> Iterator[int]:
        """Open a stream level by level, so that no link can redirect it."""
        path = self.path(stream)
        *folders, name = path.relative_to(self.folder).parts
        try:
            with opened_beneath(self.folder, folders, create=bool(flags & os.O_CREAT)) as parent:
                descriptor = os.open(name, flags | _FILE_FLAGS, 0o600, dir_fd=parent)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}:
                raise _not_plain(path) from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _not_plain(path)
            yield descriptor
        finally:
            os.close(descriptor)


def _not_plain(path: Path) -> JobError:
    return JobError(
        f"{path} is not a regular file in a regular folder; links are not followed", hint=f"ls -ld {path.parent} {path}"
    )


def _start_of_last_lines(file: BinaryIO, lines: int) -> int:
    """Read backwards until enough line breaks are found; one at the end of the file does not count."""
    position = end = file.seek(0, os.SEEK_END)
    missing = lines + 1
    while position > 0 and lines > 0:
        size = min(READ_SIZE, position)
        start = end_of_hole(file.fileno(), position - size, position)
        if start == position:
            # The part before this offset was dropped.
            return position
        size = position - start
        position = start
        file.seek(position)
        piece = file.read(size)
        if position + size == end and not piece.endswith(b"\n"):
            missing -= 1
        breaks = piece.count(b"\n")
        if breaks >= missing:
            return position + _after_break(piece, breaks - missing + 1)
        missing -= breaks
    return position


def _after_break(piece: bytes, count: int) -> int:
    """Return the index after the count-th line break."""
    index = 0
    for _ in range(count):
        index = piece.index(b"\n", index) + 1
    return index
