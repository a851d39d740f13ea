"""Files that are read and written whole: beside, then renamed."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PIECE = 1024 * 1024


def read_whole(path: Path | str, largest: int) -> tuple[bytes, os.stat_result]:
    """Return what a plain file holds, and the state of just that file; no link is followed, no pipe holds us.

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


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in the place of another one, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
