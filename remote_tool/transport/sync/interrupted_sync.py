"""Local records of syncs: written whole or not at all; a failure to write one is ignored.

A sync records which files it sends until the server has them in its own list, because it may be cut off.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from remote_tool.system.files import replacing
from remote_tool.transport.sync.blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LARGEST = 512 * 1024 * 1024
_LONGEST_HEAD = 1024
# The first record of the files of interrupted syncs. The clock of their file system may be a moment behind.
_TIME = re.compile(rb"began ([0-9]{1,20})\0")
_MOMENT = 1


def recall(file: Path) -> bytes:
    """Return the contents of a record; empty if there is none."""
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            return opened.read(LARGEST)
    return b""


def note(file: Path, *records: bytes | bytearray | Blocks) -> None:
    """Write the records, whole or not at all; ignore errors such as a full local disk."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, sync=False) as opened:
            for record in records:
                opened.writelines(record if isinstance(record, Blocks) else (record,))


def forget(file: Path) -> None:
    """Remove the records, which are in the server's own list now."""
    with suppress(OSError):
        file.unlink(missing_ok=True)


def time_record() -> bytes:
    """Return the record of the time at which a sync began; the records of its files follow."""
    return b"began %d\0" % (int(time.time()) - _MOMENT)


def time_of(records: bytes) -> int | None:
    """Return the second at which the first of the interrupted syncs began; None if there were none."""
    found = _TIME.match(records)
    return int(found[1]) if found else None


class KeptParts:
    """A file written by :func:`keep_parts`, held open so that replacing it has no effect.

    Attributes:
        words: The words of its first line.
    """

    def __init__(self, descriptor: int, words: tuple[str, ...], sizes: Sequence[int], start: int) -> None:
        self._descriptor = descriptor
        self.words = words
        self._sizes = sizes
        self._start = start

    def __del__(self) -> None:
        os.close(self._descriptor)

    def __getitem__(self, number: int) -> bytes:
        """Return a part.

        Raises:
            EOFError: The file was truncated.
        """
        size = self._sizes[number]
        data = os.pread(self._descriptor, size, self._place(number))
        if len(data) != size:
            raise EOFError(f"{len(data)} of {size} bytes")
        return data

    def blocks(self, number: int, end: bytes) -> Blocks:
        """Return a part whose records have this end, to be read some at a time."""
        return Blocks(self._descriptor, end, self._place(number), self._sizes[number])

    def size(self, number: int) -> int:
        """Return the size of a part in bytes."""
        return self._sizes[number]

    def _place(self, number: int) -> int:
        return self._start + sum(self._sizes[:number])

    @classmethod
    def recall(cls, file: Path, words: int, parts: int) -> Self | None:
        """Open a file with these numbers of words and parts; return None if it is missing or incomplete."""
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        found = cls(descriptor, (), (), 0)
        try:
            head, end, _ = os.pread(descriptor, _LONGEST_HEAD, 0).partition(b"\n")
            size = os.fstat(descriptor).st_size
        except OSError:
            return None
        fields = head.decode("ascii", errors="replace").split(" ")
        numbers = [int(field) for field in fields[words:] if field.isdecimal() and field.isascii()]
        start = len(head) + len(end)
        if len(fields) != words + parts or len(numbers) != parts or start + sum(numbers) != size:
            return None
        found.words, found._sizes, found._start = tuple(fields[:words]), numbers, start
        return found


def keep_parts(file: Path, words: Sequence[str], parts: Sequence[bytes | Blocks]) -> None:
    """Write words and parts to a file, whole or not at all."""
    sizes = (part.size if isinstance(part, Blocks) else len(part) for part in parts)
    head = " ".join([*words, *map(str, sizes)])
    note(file, head.encode() + b"\n", *parts)
