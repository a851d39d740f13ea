"""The local copy of what a job wrote: exact bytes, at the offsets that the server gives."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from remote_tool.errors import JobError
from remote_tool.jobs.records import STREAM
from remote_tool.supervisor.log_limit import end_of_hole, give_back

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ_SIZE = 256 * 1024
_FOLLOWED_LINKS = "is a link; refusing to write through it"


@dataclass(frozen=True)
class LogFolder:
    """The logs in ``.remote/jobs/<id>/``.

    A stream has the supervisor's name: ``out``, ``err``, and for launches ``ranks/<attempt>/<local rank>/out``.
    Bytes are written where they belong, so two programs that follow one job write the same file.
    """

    folder: Path

    def path(self, stream: str) -> Path:
        """Return the file of a stream.

        Raises:
            JobError: The name is not that of a stream.
        """
        if not STREAM.fullmatch(stream):
            raise JobError(f"{stream!r} is not the name of a log")
        return self.folder / (f"job.{stream}" if "/" not in stream else stream)

    def sizes(self) -> dict[str, int]:
        """Return the bytes that each stream has here."""
        found = {stream: self.path(stream) for stream in ("out", "err")}
        for path in self.folder.glob("ranks/*/*/*"):
            stream = path.relative_to(self.folder).as_posix()
            if STREAM.fullmatch(stream):
                found[stream] = path
        return {stream: path.lstat().st_size for stream, path in found.items() if path.is_file()}

    def write(self, stream: str, offset: int, data: bytes) -> None:
        """Put bytes at their place.

        Raises:
            JobError: The file cannot be written; the message names it and says why.
        """
        path = self.path(stream)
        try:
            descriptor = self._open(path)
            try:
                while data:
                    written = os.pwrite(descriptor, data, offset)
                    data, offset = data[written:], offset + written
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unwritable(path, error) from error

    def skip(self, stream: str, offset: int) -> None:
        """Leave a hole up to an offset, where the server has one.

        Raises:
            JobError: The file cannot be written; the message names it and says why.
        """
        path = self.path(stream)
        try:
            descriptor = self._open(path)
            try:
                os.ftruncate(descriptor, max(offset, os.fstat(descriptor).st_size))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise JobError(f"Cannot write {path}: {error.strerror}", hint=f"df -h {self.folder}") from error

    def keep_within(self, stream: str, limit: int) -> None:
        """Give the oldest part of a stream back to the disk when it has more than a limit, where the disk can."""
        path = self.path(stream)
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                give_back(descriptor, limit)
            finally:
                os.close(descriptor)

    def reset(self, stream: str) -> None:
        """Forget a stream that the server has begun anew.

        Raises:
            JobError: The file cannot be written; the message names it and says why.
        """
        path = self.path(stream)
        if path.is_file() and not path.is_symlink():
            try:
                os.truncate(path, 0)
            except OSError as error:
                raise self._unwritable(path, error) from error

    def _unwritable(self, path: Path, error: OSError) -> JobError:
        return JobError(f"Cannot write {path}: {error.strerror}", hint=f"df -h {self.folder}")

    def read(self, stream: str, start: int) -> Iterator[bytes]:
        """Yield what is here from an offset on, in pieces, without its holes."""
        try:
            with self.path(stream).open("rb", buffering=0) as file:
                descriptor = file.fileno()
                while data := os.pread(descriptor, READ_SIZE, _start_of_data(descriptor, start)):
                    start = _start_of_data(descriptor, start) + len(data)
                    yield data
        except FileNotFoundError:
            return

    def start_of_last_lines(self, stream: str, lines: int) -> int:
        """Return the offset at which the last lines begin; 0 for a stream that is not here."""
        try:
            with self.path(stream).open("rb") as file:
                return _start_of_last_lines(file, lines)
        except FileNotFoundError:
            return 0

    def _open(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        if self.folder.is_symlink():
            raise JobError(f"{self.folder} {_FOLLOWED_LINKS}")
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            folder = self.folder
            for name in path.relative_to(self.folder).parts[:-1]:
                folder = folder / name
                if folder.is_symlink():
                    raise JobError(f"{folder} {_FOLLOWED_LINKS}") from None
                folder.mkdir(mode=0o700, exist_ok=True)
            return os.open(path, flags, 0o600)


def _start_of_data(descriptor: int, offset: int) -> int:
    size = os.fstat(descriptor).st_size
    return end_of_hole(descriptor, offset, size) if offset < size else offset


def _start_of_last_lines(file: BinaryIO, lines: int) -> int:
    """Read backwards in pieces until enough line breaks were seen; the one that ends the file does not count."""
    position = end = file.seek(0, os.SEEK_END)
    wanted = lines + 1
    while position > 0 and lines > 0:
        size = min(READ_SIZE, position)
        data = end_of_hole(file.fileno(), position - size, position)
        if data == position:
            # What was dropped before has no lines.
            return position
        size = position - data
        position = data
        file.seek(position)
        piece = file.read(size)
        if position + size == end and not piece.endswith(b"\n"):
            wanted -= 1
        breaks = piece.count(b"\n")
        if breaks >= wanted:
            return position + _after_break(piece, breaks - wanted + 1)
        wanted -= breaks
    return position


def _after_break(piece: bytes, count: int) -> int:
    """Return the index after the count-th line break."""
    index = 0
    for _ in range(count):
        index = piece.index(b"\n", index) + 1
    return index
