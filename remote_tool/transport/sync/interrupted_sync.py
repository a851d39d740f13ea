"""What a sync began to send, noted here until the server knows it: one that is cut off leaves files that it sent."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.system.files import replacing

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 512 * 1024 * 1024


def recall(file: Path) -> bytes:
    """Return the records of a sync from here that did not finish; empty when the last one did."""
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            return opened.read(LARGEST)
    return b""


def note(file: Path, records: bytes) -> None:
    """Write the records, whole or not at all; a disk that is full here does not stop a sync."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, sync=False) as opened:
            opened.write(records)


def forget(file: Path) -> None:
    """All of it is in the server's own list now."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
