"""The files, links and folders of a project, one by one and as columns."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple, Self

from remote_tool.transport.sync.last_sync import Columns, Version, each_record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


SECOND = 1_000_000_000
# setuid, setgid and sticky are not transferred.
_ARRIVING = 0o777
_LINK = stat.S_IFLNK | 0o777


class Seen(NamedTuple):
    """Attributes of a file; named as in :class:`os.stat_result`."""

    name: bytes
    st_mode: int
    st_size: int
    st_mtime_ns: int
    st_ino: int
    st_dev: int
    st_uid: int
    target: bytes = b""
    changed: int = 0


def see(base: bytes, name: bytes) -> Seen:
    """Read the attributes of a file.

    Raises:
        OSError: The file is gone.
    """
    path = base + name
    found = os.lstat(path)
    target = os.readlink(path) if stat.S_ISLNK(found.st_mode) else b""
    identity = (found.st_ino, found.st_dev, found.st_uid)
    return Seen(name, found.st_mode, found.st_size, found.st_mtime_ns, *identity, target)


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
            return b"%x ./%b\0" % (stat.S_IFDIR | stat.S_IRWXU | self.mode & _ARRIVING, self.name)
        if self.target:
            return b"%x %d %d ./%b -> %b\0" % (_LINK, self.size, self.modified, self.name, self.target)
        return b"%x %d %d ./%b\0" % (stat.S_IFREG | self.mode & _ARRIVING, self.size, self.modified, self.name)

    @classmethod
    def seen(cls, found: Seen) -> Self:
        """Create an entry from the attributes of a file, link or folder."""
        if stat.S_ISDIR(found.st_mode):
            return cls(found.name + b"/", 0, 0, stat.S_IMODE(found.st_mode))
        seconds, rest = divmod(found.st_mtime_ns, SECOND)
        return cls(found.name, found.st_size, seconds, stat.S_IMODE(found.st_mode), found.target, rest)


def rows_of(columns: Columns) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the row of each entry."""
    sent, look, fractions = columns
    return zip(each_record(sent), each_record(look), each_record(fractions), strict=True)


def name_in(record: bytes) -> bytes:
    """Return the name in a record of the list of sent files."""
    return record.split(b" ", 2)[2]


def entry_of(row: tuple[bytes, bytes, bytes]) -> Entry:
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
        sent, look, fractions = self._columns
        sent += entry.record
        look += entry.look
        fractions += b"%d\0" % entry.nanoseconds

    def keep(self, row: tuple[bytes, bytes, bytes]) -> None:
        for column, record in zip(self._columns, row, strict=True):
            column.extend(record + b"\0")

    def columns(self) -> Columns:
        return Columns(*map(bytes, self._columns))


def change_columns(
    before: Columns, touched: Collection[bytes], entries: Iterable[Entry]
) -> tuple[Columns, list[bytes], bytes]:
    """Replace entries in columns.

    Args:
        before: The columns, ordered by name.
        touched: Names of the entries to remove.
        entries: The entries to insert.

    Returns:
        The new columns, the names of new or changed entries, and the old records of changed or removed ones.
    """
    made, wanted, gone = ColumnsMaker(), [], bytearray()
    coming = sorted(entries, reverse=True)
    for row in rows_of(before):
        name = name_in(row[0])
        while coming and coming[-1].name < name:
            wanted.append(coming[-1].name)
            made.add(coming.pop())
        if name not in touched:
            made.keep(row)
            continue
        new = coming.pop() if coming and coming[-1].name == name else None
        if new is None or new.look[:-1] != row[1]:
            gone += row[0] + b"\0"
        if new is not None:
            made.add(new)
            wanted += [] if (new.look[:-1], b"%d" % new.nanoseconds) == row[1:] else [name]
    for entry in reversed(coming):
        wanted.append(entry.name)
        made.add(entry)
    return made.columns(), wanted, bytes(gone)
