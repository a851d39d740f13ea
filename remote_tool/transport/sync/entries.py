"""The files, links and folders of a project, one by one and as columns."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple, Self

from remote_tool.transport.sync.last_sync import Columns, ColumnsReader, Version, joined, name_in, order

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from remote_tool.transport.sync.last_sync import Part, Row


SECOND = 1_000_000_000
# setuid, setgid and sticky are not transferred.
ARRIVING = 0o777
_LINK = stat.S_IFLNK | 0o777


class Seen(NamedTuple):
    """Attributes of a file; named as in :class:`os.stat_result`."""

    name: bytes
    st_mode: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_ino: int
    st_dev: int
    st_uid: int
    target: bytes = b""


def see(base: bytes, name: bytes) -> Seen:
    """Read the attributes of a file.

    Raises:
        OSError: The file is gone.
    """
    path = base + name
    found = os.lstat(path)
    target = os.readlink(path) if stat.S_ISLNK(found.st_mode) else b""
    identity = (found.st_ino, found.st_dev, found.st_uid)
    return Seen(name, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, *identity, target)


class Entry(NamedTuple):
    """A file, link or folder.

    Attributes:
        name: Relative to the project, bytes as in the file system; a folder's ends with a slash.
        size: Bytes; for a link, the length of its target; for a folder, 0.
        modified: Seconds since the epoch; for a folder, 0.
        mode: Permission bits.
        target: Target of a link; otherwise empty.
        nanoseconds: The part of its time below a second, which neither rsync nor servers compare.
    """

    name: bytes
    size: int
    modified: int
    mode: int
    target: bytes = b""
    nanoseconds: int = 0

    @property
    def is_folder(self) -> bool:
        return self.name.endswith(b"/")

    @property
    def record(self) -> bytes:
        """Its record in the server's list of sent files, ended by NUL."""
        return b"%d %d %b\0" % (self.size, self.modified, self.name)

    @property
    def version(self) -> Version:
        return Version(self.size, self.modified, self.nanoseconds)

    @property
    def look(self) -> bytes:
        """The line that the server prints for an unchanged copy, ended by NUL; see :mod:`last_sync`."""
        if self.is_folder:
            return b"%x ./%b\0" % (stat.S_IFDIR | stat.S_IRWXU | self.mode & ARRIVING, self.name)
        if self.target:
            return b"%x %d %d ./%b -> %b\0" % (_LINK, self.size, self.modified, self.name, self.target)
        return b"%x %d %d ./%b\0" % (stat.S_IFREG | self.mode & ARRIVING, self.size, self.modified, self.name)

    @property
    def columns(self) -> Columns:
        """Its records, each ended by NUL."""
        return Columns(self.record, self.look, b"%d\0" % self.nanoseconds)

    @classmethod
    def seen(cls, found: Seen) -> Self:
        """Create an entry from the attributes of a file, link or folder."""
        if stat.S_ISDIR(found.st_mode):
            return cls(found.name + b"/", 0, 0, stat.S_IMODE(found.st_mode))
        seconds, rest = divmod(found.st_mtime_ns, SECOND)
        return cls(found.name, found.st_size, seconds, stat.S_IMODE(found.st_mode), found.target, rest)


def entry_of(row: Row) -> Entry:
    """Create an entry from a row of columns."""
    record, look, fraction = row
    size, modified, name = record.split(b" ", 2)
    mode, _, rest = look.partition(b" ")
    kind = int(mode, 16)
    # The target follows the size, time and name.
    target = rest[len(record) + len(b"./ -> ") :] if stat.S_ISLNK(kind) else b""
    return Entry(name, int(size), int(modified), stat.S_IMODE(kind), target, int(fraction))


class ColumnsMaker:
    """Build columns from entries and rows."""

    def __init__(self) -> None:
        self._columns = bytearray(), bytearray(), bytearray()

    def add(self, entry: Entry) -> None:
        for column, record in zip(self._columns, entry.columns, strict=True):
            column.extend(record)

    def keep(self, row: Row) -> None:
        for column, record in zip(self._columns, row, strict=True):
            column.extend(record + b"\0")

    def columns(self) -> Columns:
        """Return what was added; the maker is empty then, to save memory."""
        return Columns(*map(_taken, self._columns))


def _taken(column: bytearray) -> bytes:
    records = bytes(column)
    column.clear()
    return records


def change_columns(
    before: Columns, touched: Collection[bytes], entries: Iterable[Entry]
) -> tuple[Columns, list[bytes], bytes]:
    """Replace entries in columns.

    Args:
        before: The columns.
        touched: Names of the entries to remove.
        entries: The entries to insert.

    Returns:
        The new columns, the names of new or changed entries, and the old records of changed or removed ones.
    """
    parts: list[Part] = []
    reader, wanted, gone = ColumnsReader(before), list[bytes](), bytearray()
    known = before.positions(touched)
    leaving = frozenset(known.values())
    positions = ((known[each.name] if each.name in known else before.position(each.name), each) for each in entries)
    coming = sorted(((at, order(each.name), each) for at, each in positions), reverse=True)
    for at in sorted(leaving.union(at for at, _, _ in coming)):
        parts.append(reader.read_until(at))
        row = reader.read_row() if at in leaving else (b"", b"", b"")
        look = b""
        while coming and coming[-1][0] == at:
            new = coming.pop()[2]
            parts.append(new.columns)
            is_same = row[0] and new.name == name_in(row[0])
            look = new.look[:-1] if is_same else look
            wanted += [] if is_same and (look, b"%d" % new.nanoseconds) == row[1:] else [new.name]
        gone += row[0] + b"\0" if row[1] != look else b""
    parts.append(reader.read_until(len(before.sent)))
    return joined(parts), wanted, bytes(gone)
