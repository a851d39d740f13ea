"""Files on the server that a sync must not overwrite, because something other than a sync has written them.

A file that is still as any sync sent it is replaced. A file that was changed on the server since is kept while it is
unchanged here, and so is a file that no sync sent and that differs: its time comes from another clock, so nobody knows
which of the two is newer. If both sides have changed, only the user can decide.
"""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.transport.ssh.endpoint import printable
from remote_tool.transport.sync.entries import entry_of
from remote_tool.transport.sync.last_sync import (
    SENT_WHILE_CHANGING,
    Columns,
    ColumnsReader,
    KnownCopy,
    each_record,
    joined,
    name_in,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from remote_tool.transport.sync.entries import Entry
    from remote_tool.transport.sync.last_sync import Part, Version
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.server_script import Found
    from remote_tool.transport.sync.server_state import SyncState

# A file of the same size may have the same content and another time; larger files are not read to find out.
LARGEST_COMPARED = 256 * 1024 * 1024
# Size and time, in the server's list, of a file that exists there but was never sent; no real file has these.
NEVER_SENT = (-1, -1)
SHOWN = 10
_REFUSED = (
    "changed both here and on the server since the last sync",
    "the server has its own version",
)


@dataclass(frozen=True)
class ServerChanges:
    """Files of a snapshot that are not sent because of the server's version.

    Attributes:
        kept: Unchanged here or never sent: the server keeps its version.
        refused: Changed here too, or a folder with other files is there: the server keeps its version, and the sync is
            incomplete.
        found: The server's files under these names.
    """

    kept: frozenset[bytes] = frozenset()
    refused: frozenset[bytes] = frozenset()
    found: Mapping[bytes, Found] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> frozenset[bytes]:
        return self.kept | self.refused

    def __contains__(self, name: bytes) -> bool:
        """Return whether an entry, or a folder that contains it, is not sent."""
        folders = (each for each in self.refused if each.endswith(b"/"))
        return name in self.kept or name in self.refused or any(map(name.startswith, folders))

    def perhaps_the_same(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the files that differ from the local ones only in time, as far as known."""
        return [
            each
            for each in entries
            if each.name in self.names
            and not each.is_folder
            and not each.target
            and each.size == self.found[each.name].size <= LARGEST_COMPARED
            and stat.S_ISREG(self.found[each.name].mode)
        ]

    def without(self, same: Collection[bytes]) -> ServerChanges:
        """Return the changes without files that proved to have the local content."""
        return ServerChanges(self.kept.difference(same), self.refused.difference(same), self.found)

    def copy_left(
        self,
        snapshot: Snapshot,
        state: SyncState,
        earlier: KnownCopy | None,
        carried: Collection[bytes] = (),
        changing: Collection[bytes] = (),
    ) -> KnownCopy:
        """Return the state of the server's copy after a sync without these files.

        Args:
            snapshot: The files to send.
            state: The server's record before the sync.
            earlier: The state after the last sync from here.
            carried: Files that kept the server's version at the last sync and were not compared again.
            changing: Files that changed here while they were sent.
        """
        if not self.names and not carried and not changing:
            return snapshot.copy
        columns = snapshot.copy.columns
        names = frozenset([*self._not_sent(columns), *carried, *changing])
        here = earlier.versions_of(names) if earlier else {}
        before = earlier.lines_of(carried) if earlier else {}
        reader, others = ColumnsReader(columns), bytearray()
        parts: list[Part] = []
        for at in columns.positions(names).values():
            parts.append(reader.read_until(at))
            entry = entry_of(reader.read_row())
            name, version = entry.name, None
            record, look = before.get(name, entry.columns[:2])
            if name in self:
                record = b"%d %d %b\0" % (*state.sent.get(name, NEVER_SENT), name)
                look = self.found[name].line(name) if name in self.kept else look
                version = entry.version if name in self.kept else here.get(name)
            else:
                version = entry.version if name in carried else SENT_WHILE_CHANGING
            parts.append(Columns(record, look, entry.columns.fractions))
            others += version.record(name) if version else b""
        parts.append(reader.read_until(len(columns.sent)))
        return KnownCopy.of(joined(parts), snapshot.id, bytes(others))

    def _not_sent(self, columns: Columns) -> Iterable[bytes]:
        if not any(name.endswith(b"/") for name in self.refused):
            return self.names
        return filter(self.__contains__, map(name_in, each_record(columns.sent)))

    def refusal(self, server: str, only_adds: str = "") -> SyncError:
        """Return the error of a sync that could not send all files; see :class:`PushOptions`."""
        folders = {name for name in self.refused if name.endswith(b"/")}
        taken = {name for name in self.refused - folders if name in self.found and stat.S_ISDIR(self.found[name].mode)}
        reasons = {
            _REFUSED[bool(only_adds)]: self.refused - folders - taken,
            "not a folder on the server": folders,
            "a folder on the server, with files of its own": taken,
        }
        reported = "; ".join(f"{why}: {_listed(names)}" for why, names in reasons.items() if names)
        if taken == self.refused:
            name = os.fsdecode(min(taken))
            command = printable(shlex.quote(shlex.join(["mv", name, f"{name}.old"])))
            hint = f"Rename it here, or move it away there: remote-tool run --server {server} --cmd {command}"
            return SyncError(f"{server}: some files were not sent: {reported}", hint=hint, server=server)
        hint = "Pull the results of jobs first (remote-tool job-pull), then overwrite: "
        hint += f"{only_adds} --overwrite" if only_adds else f"remote-tool rsync --overwrite --server {server}"
        return SyncError(f"{server}: some files were not sent: {reported}", hint=hint, server=server)


def kept_warning(names: Collection[bytes]) -> str:
    """Return the message about files that keep the server's version."""
    return f"kept the server's version, changed or made there: {_listed(names)} (rsync --overwrite replaces it)"


def _listed(names: Collection[bytes]) -> str:
    shown = [printable(os.fsdecode(name)) for name in sorted(names)[:SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def find_changes(
    entries: Iterable[Entry], found: Mapping[bytes, Found], state: SyncState, here: Mapping[bytes, Version]
) -> ServerChanges:
    """Decide which files are not sent.

    Args:
        entries: The files to send.
        found: The server's files under these names.
        state: The server's record of earlier syncs.
        here: The local versions at the last sync from here.
    """
    verdicts = {entry.name: _judge(entry, found, state, here) for entry in entries}
    return ServerChanges(
        frozenset(name for name, verdict in verdicts.items() if verdict is _Verdict.KEEP),
        frozenset(name for name, verdict in verdicts.items() if verdict is _Verdict.REFUSE),
        found,
    )


def find_lacking(
    entries: Sequence[Entry],
    found: Mapping[bytes, Found],
    here: Mapping[bytes, Version],
    interrupted_at: int | None = None,
) -> tuple[list[bytes], bool]:
    """Return missing and different files, and whether rsync detects all of them by size, second and permissions.

    rsync does not see an edit that keeps the size and falls into the second of the previous edit. The version that an
    interrupted sync sent is not known here, so a file that may have changed since counts as different.
    """
    visible = [entry.name for entry in entries if entry.target or not _looks_the_same(entry, found)]
    known = frozenset(visible)
    hidden = [
        entry.name
        for entry in entries
        if entry.name not in known
        and not entry.is_folder
        and (
            here.get(entry.name, entry.version) != entry.version
            or (interrupted_at is not None and entry.modified >= interrupted_at)
        )
    ]
    return visible + hidden, not hidden


def _looks_the_same(entry: Entry, found: Mapping[bytes, Found]) -> bool:
    there = found.get(entry.name)
    return there is not None and there.line(entry.name) == entry.look


class _Verdict(Enum):
    SEND = "ours replaces the server's"
    KEEP = "the server's stays"
    REFUSE = "the server's stays, and ours should be there"


def _judge(entry: Entry, found: Mapping[bytes, Found], state: SyncState, here: Mapping[bytes, Version]) -> _Verdict:
    name = entry.name.rstrip(b"/")
    there, before = found.get(name), here.get(name)
    if there is None or _is_ours(entry, there, found, state) or before == SENT_WHILE_CHANGING:
        return _Verdict.SEND
    if (
        before is not None
        and stat.S_ISREG(there.mode)
        and (there.size, there.modified) == (before.size, before.modified)
    ):
        return _Verdict.SEND  # as it was here at the last sync, though the list of sent files does not say so
    if entry.is_folder:
        return _Verdict.REFUSE
    if before is not None:
        return _Verdict.KEEP if before == entry.version else _Verdict.REFUSE
    if name in state.sent:
        return _Verdict.KEEP if state.sent[name] == (entry.size, entry.modified) else _Verdict.REFUSE
    return _Verdict.KEEP


def _is_ours(entry: Entry, there: Found, found: Mapping[bytes, Found], state: SyncState) -> bool:
    """Return whether a sync wrote the server's file, or it is the same as the local one."""
    name, version = entry.name.rstrip(b"/"), (there.size, there.modified)
    if stat.S_ISDIR(there.mode) or version in state.versions(name):
        return True  # rsync replaces only empty folders by files, and names the others
    if entry.is_folder:
        return entry.name in found  # a link to a folder, which rsync follows
    return version == (entry.size, entry.modified) and stat.S_ISLNK(there.mode) == bool(entry.target)
