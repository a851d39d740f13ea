"""Files that appear whole or not at all: written under another name, then renamed. And reads with a bound."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from io import BufferedRandom
    from pathlib import Path

_PIECE = 1024 * 1024
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Some file systems sync no folders.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP}
# So few are not worth threads.
_FEW, _AT_ONCE = 4, 16


def read_bounded(path: Path | str, largest: int) -> tuple[bytes, os.stat_result]:
    """Return the content of a plain file and the state of just that file; no link is followed, no pipe is waited for.

    Raises:
        ValueError: It is not a plain file, or larger.
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise ValueError("not a plain file")
        pieces, left = [], largest + 1
        while left > 0 and (piece := os.read(descriptor, min(left, _PIECE, state.st_size + 1))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(descriptor)
    if left <= 0:
        raise ValueError(f"larger than {largest} bytes")
    return b"".join(pieces), state


@contextmanager
def opened_beneath(top: Path, folders: Iterable[str], *, create: bool = False) -> Iterator[int]:
    """Open a folder below another one, folder by folder, so that no link can lead elsewhere."""
    parent = os.open(top, _FOLDER_FLAGS)
    try:
        for name in folders:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=parent)
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
            os.close(parent)
            parent = inner
        yield parent
    finally:
        os.close(parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Put a file in the place of another one, whole or not at all, even if the power fails.

    Raises:
        OSError: It cannot be written.
    """
    write_all_atomically({path: data})
    sync_folder(path.parent)


def write_all_atomically(files: Mapping[Path, bytes], *, overwrite: bool = True) -> None:
    """Put files in place, each whole or not at all; their folders are still to be synced.

    All are on the disk before any gets its name: after a power cut a name without its bytes would be an empty file.
    Without ``overwrite`` either all files are new, or none is left.

    Raises:
        FileExistsError: One is there already, and must not be overwritten.
        OSError: One cannot be written; none of those that are left has its name.
    """
    temporaries = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in files}
    new: list[Path] = []
    try:
        _do_all(lambda path: _write_and_sync(temporaries[path], files[path]), files)
        for path, temporary in temporaries.items():
            _place(temporary, path, overwrite=overwrite)
            if not overwrite:
                new.append(path)
    except OSError:
        for each in (*temporaries.values(), *new):
            with suppress(OSError):
                each.unlink()
        raise


@contextmanager
def replacing(path: Path, *, mode: int = 0o600, overwrite: bool = True, sync: bool = True) -> Iterator[BufferedRandom]:
    """Open a new file that gets its name when the block ends, or is removed when the block raises.

    Args:
        path: The name that it gets.
        mode: Its permissions.
        overwrite: Whether it may take the place of another file.
        sync: Whether its bytes are on the disk before it has its name.

    Raises:
        FileExistsError: Another file has the name, and must not be overwritten.
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
        _place(temporary, path, overwrite=overwrite)
    finally:
        temporary.unlink(missing_ok=True)


def _place(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Give a finished file its name."""
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
    """See the names in a folder on the disk, where the file system can do that.

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
    """As :func:`sync_folder`, all at once."""
    _do_all(sync_folder, folders)


def _write_and_sync(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _do_all(act: Callable[[Path], None], paths: Collection[Path]) -> None:
    """Do something with every path; many wait for the disk together, which a journal writes for all of them at once."""
    if len(paths) <= _FEW:
        for path in paths:
            act(path)
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few commands write so many

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(act, paths))
