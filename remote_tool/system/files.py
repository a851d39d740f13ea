"""Write files atomically, under another name that is then renamed; read files with a limit."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from io import BufferedRandom, BufferedReader
    from pathlib import Path

_PIECE_BYTES = 1024 * 1024
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Some file systems cannot sync folders.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP}
# For fewer files, threads do not pay.
_MAX_WITHOUT_THREADS, _THREADS = 4, 16


def read_bounded(path: Path | str, limit: int) -> tuple[bytes, os.stat_result]:
    """Return the content and the status of a plain file; never follow a link or wait for a pipe.

    Raises:
        ValueError: It is not a plain file, or too large.
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise ValueError("not a plain file")
        pieces, remaining = [], limit + 1
        while remaining > 0 and (piece := os.read(descriptor, min(remaining, _PIECE_BYTES, state.st_size + 1))):
            pieces.append(piece)
            remaining -= len(piece)
    finally:
        os.close(descriptor)
    if remaining <= 0:
        raise ValueError(f"larger than {limit} bytes")
    return b"".join(pieces), state


@contextmanager
def opened_plain(path: Path) -> Iterator[BufferedReader]:
    """Open a plain file for reading, also through a link; never wait for a pipe.

    Raises:
        OSError: It cannot be opened, or is not a plain file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            is_folder = stat.S_ISDIR(mode)
            raise OSError(errno.EINVAL, os.strerror(errno.EISDIR) if is_folder else "Not a plain file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            yield stream
    finally:
        os.close(descriptor)


@contextmanager
def opened_beneath(top: Path, folders: Iterable[str], *, create: bool = False) -> Iterator[int]:
    """Open a subfolder level by level, so that no link leads elsewhere."""
    parent = os.open(top, _FOLDER_FLAGS)
    try:
        for name in folders:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=parent)
            child = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
            os.close(parent)
            parent = child
        yield parent
    finally:
        os.close(parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically, even if the power fails.

    Raises:
        OSError: It cannot be written.
    """
    write_all_atomically({path: data})
    sync_folder(path.parent)


def write_all_atomically(files: Mapping[Path, bytes], *, overwrite: bool = True) -> None:
    """Write each file atomically; the caller syncs their folders.

    All contents are synced before any rename, as a power cut could otherwise leave empty files. Without ``overwrite``,
    all files are created, or none.

    Raises:
        FileExistsError: One exists, and must not be overwritten.
        OSError: One cannot be written; temporary files have been removed.
    """
    temporaries = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in files}
    created: list[Path] = []
    try:
        _for_each(lambda path: _write_and_sync(temporaries[path], files[path]), files)
        for path, temporary in temporaries.items():
            _rename(temporary, path, overwrite=overwrite)
            if not overwrite:
                created.append(path)
    except OSError:
        for path in (*temporaries.values(), *created):
            with suppress(OSError):
                path.unlink()
        raise


@contextmanager
def replacing(path: Path, *, mode: int = 0o600, overwrite: bool = True, sync: bool = True) -> Iterator[BufferedRandom]:
    """Open a new file that gets its final name when the block ends, or is removed when the block raises.

    Args:
        path: The final path.
        mode: Its permissions.
        overwrite: Whether it may replace another file.
        sync: Whether to sync its contents before the rename.

    Raises:
        FileExistsError: The file exists, and must not be overwritten.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "w+b") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        _rename(temporary, path, overwrite=overwrite)
    finally:
        temporary.unlink(missing_ok=True)


def _rename(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Give a finished file its final name."""
    if not overwrite:
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:
            # Some file systems have no hard links.
            path.open("xb").close()
        else:
            temporary.unlink()
            return
    temporary.replace(path)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder, where the file system supports it.

    Raises:
        OSError: The disk is broken.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def sync_folders(folders: Collection[Path]) -> None:
    """Sync the names in several folders, in parallel; see :func:`sync_folder`."""
    _for_each(sync_folder, folders)


def _write_and_sync(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _for_each(function: Callable[[Path], None], paths: Collection[Path]) -> None:
    """Apply a function to every path in parallel, as a file system syncs once for all that wait together."""
    if len(paths) <= _MAX_WITHOUT_THREADS:
        for path in paths:
            function(path)
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few commands write that many

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(function, paths))
