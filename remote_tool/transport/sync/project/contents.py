"""The state of a project at one time, and its differences from another state."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from remote_tool.transport.sync.entries import SECOND, entry_of
from remote_tool.transport.sync.last_sync import each_record, name_in
from remote_tool.transport.sync.project.filter_rules import joined, literal
from remote_tool.transport.sync.secrets import MAY_HOLD_SECRETS, PRIVATE_KEY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from remote_tool.transport.sync.entries import Entry
    from remote_tool.transport.sync.last_sync import KnownCopy


@dataclass(frozen=True)
class Difference:
    """Changes since an earlier snapshot.

    Attributes:
        earlier: The id of that snapshot.
        wanted: Files to send to a server that has it.
        gone: Its records of files that have changed or are gone.
    """

    earlier: str
    wanted: list[bytes]
    gone: bytes


@dataclass(frozen=True)
class Snapshot:
    """The files that a sync sends.

    Attributes:
        root: The project folder.
        rules: Filter rules, each ended by NUL, with which rsync selects the entries again.
        skipped: Names of files that are left out although no rule of the user says so, with reasons.
        copy: The server's files after a complete sync.
        difference: From the previous snapshot, if known.
    """

    root: Path
    rules: bytes = field(repr=False)
    skipped: tuple[tuple[str, str], ...]
    copy: KnownCopy = field(repr=False)
    difference: Difference | None = field(default=None, repr=False)
    _changes: dict[tuple[str, str], tuple[list[bytes], bytes]] = field(default_factory=dict, repr=False, compare=False)
    _comparing: Lock = field(default_factory=Lock, repr=False, compare=False)

    @property
    def id(self) -> str:
        """An id of all names, sizes, times and permissions."""
        return self.copy.snapshot_id

    @property
    def entries(self) -> Iterator[Entry]:
        """All entries, ordered by name, created as needed."""
        return map(entry_of, self.copy.columns.all_rows())

    def entries_named(self, names: Iterable[bytes]) -> Iterator[Entry]:
        """Return the entries with these names, created as needed."""
        wanted = frozenset(names)
        return map(entry_of, self.copy.columns.rows(wanted) if wanted else ())

    @property
    def sent_list(self) -> bytes:
        return self.copy.sent_list

    def changes_since(self, copy: KnownCopy) -> tuple[list[bytes], bytes]:
        """Return the names to send now, and the earlier records of files that have changed or are gone.

        The result is cached, because most servers have the same copy.
        """
        with self._comparing:
            key = copy.snapshot_id, copy.digest
            if key not in self._changes:
                self._changes[key] = self._compare(copy)
            return self._changes[key]

    def _compare(self, copy: KnownCopy) -> tuple[list[bytes], bytes]:
        if self.id == copy.snapshot_id:
            return [], b""
        if self.difference is not None and self.difference.earlier == copy.snapshot_id and not copy.others:
            return self.difference.wanted, self.difference.gone
        columns = copy.columns
        before = frozenset(zip(each_record(columns.look), each_record(columns.fractions), strict=False))
        now = frozenset(each_record(self.copy.columns.look))
        wanted = [name_in(row[0]) for row in self.copy.columns.all_rows() if row[1:] not in before]
        pairs = zip(each_record(columns.sent), each_record(columns.look), strict=False)
        return wanted, b"".join(record + b"\0" for record, look in pairs if look not in now)

    @cached_property
    def secrets(self) -> tuple[bytes, ...]:
        """Files and folders that are held back because of their names or contents."""
        return tuple(os.fsencode(name) for name, why in self.skipped if why in {PRIVATE_KEY, MAY_HOLD_SECRETS})

    @property
    def file_count(self) -> int:
        return self.copy.file_count

    def rules_without(self, names: Iterable[bytes]) -> bytes:
        """Return the rules that also exclude these names."""
        return joined([b"/" + literal(name) for name in sorted(names)]) + self.rules

    def changed_among(self, names: Collection[str]) -> frozenset[bytes]:
        """Return which of these files have changed since, or are gone."""
        if not names:
            return frozenset()
        base = os.path.join(os.fsencode(self.root), b"")
        columns = self.copy.columns
        # A first sync sends every file; a set of all names would need as much memory as the columns.
        wanted = frozenset(names) if len(names) < self.file_count else None
        rows = columns.all_rows() if columns.are_many(names) else columns.rows([*map(os.fsencode, names)])
        known = ((name_in(sent), b"%b %b" % (fraction, sent)) for sent, _, fraction in rows)
        return frozenset(
            name
            for name, version in known
            if (os.fsdecode(name) in wanted if wanted is not None else not name.endswith(b"/"))
            and _version_now(base, name) != version
        )

    def has_here(self, name: bytes) -> bool:
        """Return whether a file of this name exists now, even if it is not sent."""
        return os.path.lexists(os.path.join(os.fsencode(self.root), name.rstrip(b"/")))


def _version_now(base: bytes, name: bytes) -> bytes:
    """Return the nanoseconds of a file's time and its record in the list of sent files; empty if it is gone."""
    try:
        found = os.lstat(base + name)
    except OSError:
        return b""
    modified, nanoseconds = divmod(found.st_mtime_ns, SECOND)
    return b"%d %d %d %b" % (nanoseconds, found.st_size, modified, name)
