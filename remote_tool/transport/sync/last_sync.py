"""The state in which the last sync left a server, recorded here so that the server can confirm it with a short answer.

The server lists the attributes that rsync compares for every sent file: kind, size, time, permissions, link target.
It sends only a hash of the list. If the hash is the expected one, rsync need not compare: it sends only files that have
changed here. If it differs, or the server lacks a tool for it, rsync compares all files.

The record also holds the local version of each file at that time, to detect changes here and on the server.
"""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

from remote_tool.transport.sync.interrupted_sync import KeptParts, keep_parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path


_SNAPSHOT = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(rb"-?[0-9]{1,20}")
# A record of a sent file: one that was never sent has a negative size.
_RECORD = re.compile(rb"([0-9]{1,20}) (-?[0-9]{1,20}) (.+)", re.DOTALL)
_NAME = re.compile(rb"(?<![^\0])-?[0-9]+ -?[0-9]+ ([^\0]+)\0")
_BLOCK = 64 * 1024
# The sizes of the blocks in which records are counted: the large ones first.
_COUNTED = (4096, 256)
# To look up a name takes as long as to read this many records.
_LOOKUP = 32


class Version(NamedTuple):
    """A version of a local file: its time in seconds, and the remaining nanoseconds."""

    size: int
    modified: int
    nanoseconds: int

    def record(self, name: bytes) -> bytes:
        return b"%d %d %d %b\0" % (*self, name)


# For a file that changed here while it was sent: which version arrived is unknown.
SENT_WHILE_CHANGING = Version(-1, -1, -1)


# A record of each column, without NULs.
Row = tuple[bytes, bytes, bytes]
# Some records of each column.
Part = tuple[bytes | memoryview, bytes | memoryview, bytes | memoryview]


class Columns(NamedTuple):
    """Attributes of many files: each column has one record per file, ended by NUL, ordered by :func:`order`.

    Attributes:
        sent: The list of sent files, as the server keeps it.
        look: The lines that the server prints for unchanged files.
        fractions: The nanoseconds of their local times: two edits may fall into one second.
    """

    sent: bytes = b""
    look: bytes = b""
    fractions: bytes = b""

    def position(self, name: bytes) -> int:
        """Return where in ``sent`` the record of a name, or of a folder of this name, is or belongs."""
        low, high, place = 0, len(self.sent), order(name)
        while low < high:
            start = self.sent.rfind(b"\0", low, (low + high) // 2) + 1 or low
            end = self.sent.find(b"\0", start) + 1 or high
            if order(name_in(self.sent[start : end - 1])) < place:
                low = end
            else:
                high = start
        return low

    def positions(self, names: Collection[bytes]) -> dict[bytes, int]:
        """Return where in ``sent`` the records of these names are, in this order."""
        wanted = frozenset(names)
        if self.are_many(wanted):
            return {found[1]: found.start() for found in _NAME.finditer(self.sent) if found[1] in wanted}
        places = sorted({self.position(name) for name in {*map(order, wanted)}})
        found = ((name_in(self.sent[at : self.sent.find(b"\0", at)]), at) for at in places)
        return {name: at for name, at in found if name in wanted}

    def rows(self, names: Collection[bytes]) -> Iterator[Row]:
        """Yield the rows of the files with these names."""
        wanted = frozenset(names)
        if self.are_many(wanted):
            yield from (row for row in self.all_rows() if name_in(row[0]) in wanted)
            return
        reader = ColumnsReader(self)
        for at in self.positions(wanted).values():
            reader.read_until(at)
            yield reader.read_row()

    def all_rows(self) -> Iterator[Row]:
        """Yield the row of each file."""
        return zip(*map(each_record, self), strict=True)

    def are_many(self, names: Collection[object]) -> bool:
        """Return whether to go through all files is faster than to look up each of these."""
        return len(names) * _LOOKUP > self.sent.count(b"\0")


class ColumnsReader:
    """Read columns from their beginning, many rows at once."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        # A slice of these copies nothing.
        self._views = [memoryview(column) for column in columns]
        self._at: tuple[int, ...] = (0, 0, 0)

    def read_until(self, position: int) -> Part:
        """Return the next rows, up to the one at a position of ``sent``.

        Raises:
            EOFError: A column has fewer records than ``sent``.
        """
        sent, *others = self._columns
        count = sent.count(b"\0", self._at[0], position)
        return self._take(position, *map(_after, others, self._at[1:], (count, count)))

    def read_row(self) -> Row:
        """Return the next row."""
        sent, look, fraction = self._take(*map(_after, self._columns, self._at, (1, 1, 1)))
        return bytes(sent[:-1]), bytes(look[:-1]), bytes(fraction[:-1])

    def _take(self, *ends: int) -> Part:
        sent, look, fractions = (view[at:end] for view, at, end in zip(self._views, self._at, ends, strict=True))
        self._at = ends
        return sent, look, fractions


def _after(column: bytes, start: int, count: int) -> int:
    """Return where a number of records ends."""
    for size in _COUNTED:
        while (found := column.count(b"\0", start, start + size)) < count:
            start, count = start + size, count - found
            if start >= len(column):
                raise EOFError(f"{count} records are missing")
    for _ in range(count):
        start = column.find(b"\0", start) + 1
    return start


def joined(parts: Iterable[Part]) -> Columns:
    """Join columns of some files each."""
    return Columns(*map(b"".join, zip(*parts, strict=True)))


def name_in(record: bytes) -> bytes:
    """Return the name in a record of the list of sent files."""
    return record.split(b" ", 2)[-1]


def order(name: bytes) -> bytes:
    """Return the key by which files are ordered: a folder's name with or without a slash is in the same place."""
    return name.removesuffix(b"/")


class KnownCopy:
    """The files that a server had after a sync.

    Args:
        snapshot_id: Id of the project's snapshot.
        digest: Of the column ``look``.
        others: The local versions of files of which the server has another version: records of four words.
        columns: Attributes of all files; read from the record when needed.

    Attributes:
        sent_size: Size of the list of sent files in bytes.
    """

    def __init__(self, snapshot_id: str, digest: str, others: bytes, columns: Columns | KeptParts) -> None:
        self.snapshot_id = snapshot_id
        self.digest = digest
        self.others = others
        self._columns = columns
        self.sent_size = columns.size(0) if isinstance(columns, KeptParts) else len(columns.sent)

    @classmethod
    def of(cls, columns: Columns, snapshot_id: str = "", others: bytes = b"") -> Self:
        """Return a copy with these columns; without an id, it gets the id of a snapshot with exactly these files."""
        digest = hashlib.sha256(columns.look).hexdigest()
        own_id = hashlib.sha256(digest.encode() + columns.fractions).hexdigest()[:32]
        return cls(snapshot_id or own_id, digest, others, columns)

    @property
    def columns(self) -> Columns:
        if isinstance(self._columns, KeptParts):
            self._columns = Columns(*map(self._columns.__getitem__, range(len(Columns._fields))))
        return self._columns

    @property
    def sent_list(self) -> bytes:
        """The column ``sent``, without reading the others."""
        return self._columns[0]

    @cached_property
    def file_count(self) -> int:
        sent = self.sent_list
        return sent.count(b"\0") - sent.count(b"/\0")

    @cached_property
    def other_versions(self) -> Mapping[bytes, Version]:
        """The local version of each file of which the server has another version."""
        split = (record.split(b" ", 3) for record in self.others.split(b"\0"))
        whole = (words for words in split if len(words) == len((*Version._fields, "name")))
        return {words[3]: Version(*map(int, words[:3])) for words in whole if all(map(_NUMBER.fullmatch, words[:3]))}

    @cached_property
    def versions(self) -> Mapping[bytes, Version]:
        """The local version of each file at that time."""
        columns = self.columns
        return self._versions(zip(each_record(columns.sent), each_record(columns.fractions), strict=False))

    def versions_of(self, names: Collection[bytes]) -> Mapping[bytes, Version]:
        """Return the local versions of these files at that time, and perhaps of others."""
        rows = self.columns.rows(names) if names else ()
        try:
            return self._versions((record, rest) for record, _, rest in rows)
        except (EOFError, ValueError):
            return {}  # a damaged record, as below

    def _versions(self, pairs: Iterable[tuple[bytes, bytes]]) -> Mapping[bytes, Version]:
        found = ((_RECORD.fullmatch(record), rest) for record, rest in pairs)
        same = {
            record[3]: Version(int(record[1]), int(record[2]), int(rest))
            for record, rest in found
            if record and _NUMBER.fullmatch(rest)
        }
        return {**same, **self.other_versions}

    def sent_among(self, names: Collection[bytes]) -> set[bytes]:
        """Return the names that were sent."""
        columns = Columns(self.sent_list) if names else Columns()
        return {name for name, at in columns.positions(names).items() if not columns.sent.startswith(b"-", at)}

    def lines_of(self, names: Collection[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        """Return the record and the ``look`` line of files by name, each ended by NUL."""
        rows = self.columns.rows(names) if names else ()
        try:
            return {name_in(record): (record + b"\0", look + b"\0") for record, look, _ in rows}
        except (EOFError, ValueError):
            return {}  # a damaged record: the next sync compares all files


def each_record(column: bytes) -> Iterator[bytes]:
    """Yield the records of a column without their NULs, a block at a time to save memory."""
    start = 0
    while end := column.rfind(b"\0", start, start + _BLOCK) + 1 or column.find(b"\0", start) + 1:
        yield from column[start : end - 1].split(b"\0")
        start = end


def recall(file: Path) -> KnownCopy | None:
    """Return the recorded state after the last sync, if there is one."""
    found = KeptParts.recall(file, len(("id", "digest")), len((*Columns._fields, "others")))
    if found is None or not _SNAPSHOT.fullmatch(found.words[0]) or not _DIGEST.fullmatch(found.words[1]):
        return None
    return KnownCopy(found.words[0], found.words[1], found[len(Columns._fields)], found)


def note(file: Path, known: KnownCopy) -> None:
    """Record the state after a sync."""
    keep_parts(file, (known.snapshot_id, known.digest), (*known.columns, known.others))
