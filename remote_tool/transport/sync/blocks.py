"""Long lists of records, read from a file some at a time: in memory, as objects, they need several times its size."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from remote_tool.transport.sync.local_rsync import scratch_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BLOCK = 64 * 1024
# Bytes of records that are objects at the same time.
_RANGE = 1024 * 1024


class Blocks:
    """A part of a file; iterating yields some whole records at a time.

    Args:
        descriptor: The file, which the caller may close.
        end: The end of each record.
        start: Where the part begins.
        size: Its size in bytes; None: up to the end of the file.
    """

    # Until there is one: with too many open files, there will be none to close.
    _descriptor = -1

    def __init__(self, descriptor: int, end: bytes, start: int = 0, size: int | None = None) -> None:
        self._descriptor = os.dup(descriptor)
        self._start = start
        self.end = end
        self.size = os.fstat(descriptor).st_size - start if size is None else size

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks.

        Raises:
            EOFError: The file was truncated.
        """
        at, rest = 0, b""
        while at < self.size:
            data = os.pread(self._descriptor, min(_BLOCK, self.size - at), self._start + at)
            if not data:
                raise EOFError(f"{at} of {self.size} bytes")
            at += len(data)
            whole, end, rest = (rest + data).rpartition(self.end)
            if end:
                yield whole + end
        if rest:
            yield rest

    def digest(self) -> str:
        """Return the SHA-256 of all records."""
        digest = hashlib.sha256()
        for block in self:
            digest.update(block)
        return digest.hexdigest()

    def count(self) -> int:
        """Return the number of records."""
        return sum(block.count(self.end) for block in self)

    def without(self, beginnings: tuple[bytes, ...]) -> Blocks:
        """Return the records that begin with none of these."""
        with scratch_file() as file:
            for block in self:
                records = block.split(self.end)[:-1]
                file.writelines(each + self.end for each in records if not each.startswith(beginnings))
            file.flush()
            return Blocks(file.fileno(), self.end)


def in_ranges(records: Blocks, keys: Iterable[bytes]) -> Iterator[tuple[list[bytes], set[bytes]]]:
    """Yield all records in the order of their names, a range of names at a time, each with the keys of this range.

    Args:
        records: Their names end with NUL.
        keys: Blocks of keys with the same end, which begin with a name and NUL.
    """
    bounds = _bounds(records)
    parts = [_divide(blocks, records.end, bounds) for blocks in (records, keys)]
    for some, their_keys in zip(*parts, strict=True):
        yield sorted(bytes(some).split(records.end)[:-1]), set(bytes(their_keys).split(records.end)[:-1])
        some.clear()
        their_keys.clear()


def _bounds(records: Blocks) -> list[bytes]:
    """Return names between ranges that have about the same number of records, judging by a name of each block."""
    names = sorted(block.partition(b"\0")[0] for block in records)
    step = max(1, len(names) * _RANGE // max(1, records.size))
    return names[step::step]


def _divide(blocks: Iterable[bytes], end: bytes, bounds: list[bytes]) -> list[bytearray]:
    parts = [bytearray() for _ in range(len(bounds) + 1)]
    for block in blocks:
        # Most records of a block are in one folder, and so in one range.
        for number, some in groupby(block.split(end)[:-1], partial(bisect, bounds)):
            parts[number] += end.join(some) + end
    return parts
