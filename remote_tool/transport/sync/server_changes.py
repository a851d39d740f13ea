"""What a sync may not overwrite: what somebody else than a sync has written on the server.

A sync has the last word on what syncs have sent: a file that is there as one of them sent it is replaced, whoever sent
it. A file that was changed there since is kept while it is unchanged here, and so is one that no sync sent and that is
newer or larger than ours. Where both sides have changed, nobody but the user can decide.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.transport.ssh.endpoint import printable
from remote_tool.transport.sync.last_sync import SENT_WHILE_CHANGING, Columns, KnownCopy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from remote_tool.transport.sync.entries import Entry
    from remote_tool.transport.sync.last_sync import Version
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.server_questions import Found
    from remote_tool.transport.sync.server_state import SyncState

# A file of the same size may be the same file with another time; larger ones are not read for that.
LARGEST_COMPARED = 256 * 1024 * 1024
# Size and time in the server's list of what is there though no sync has sent it: those of no file.
NEVER_SENT = (-1, -1)
SHOWN = 10
_REFUSED = (
    "changed both here and on the server since the last sync",
    "the server has its own version, which is newer, larger or changed there",
)


@dataclass(frozen=True)
class ServerChanges:
    """What of a snapshot is not sent, because of what the server has in its place.

    Attributes:
        kept: Unchanged here, or never sent: the server's stays.
        refused: Changed here as well: the server's stays, and the sync has not done all.
        found: The files in these places, by name.
    """

    kept: frozenset[bytes] = frozenset()
    refused: frozenset[bytes] = frozenset()
    found: Mapping[bytes, Found] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> frozenset[bytes]:
        return self.kept | self.refused

    def __contains__(self, name: bytes) -> bool:
        """Tell whether something is not sent: it, or a folder that it is in."""
        return name in self.names or any(name.startswith(each) for each in self.refused if each.endswith(b"/"))

    def perhaps_the_same(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the files that only their time tells from ours."""
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
        """Return what is left when some have turned out to be the same as ours."""
        return ServerChanges(self.kept.difference(same), self.refused.difference(same), self.found)

    def copy_left(
        self,
        snapshot: Snapshot,
        state: SyncState,
        earlier: KnownCopy | None,
        carried: Collection[bytes] = (),
        changing: Collection[bytes] = (),
    ) -> KnownCopy:
        """Return what a server has after a sync that left these out.

        Args:
            snapshot: What was to be sent.
            state: What the server remembered before.
            earlier: What the last sync from here left.
            carried: What that one has kept, and was not asked about again.
            changing: What has changed here while it was sent.
        """
        if not self.names and not carried and not changing:
            return snapshot.copy
        here = earlier.versions if earlier else {}
        before = earlier.lines_of(carried) if earlier else {}
        records, looks, others = bytearray(), bytearray(), bytearray()
        for entry in snapshot.entries:
            name, version = entry.name, None
            record, look = before.get(name, (entry.record, entry.look))
            if name in self:
                record = b"%d %d %b\0" % (*state.sent.get(name, NEVER_SENT), name)
                look = self.found[name].line(name) if name in self.kept else look
                version = entry.version if name in self.kept else here.get(name)
            elif name in carried or name in changing:
                version = entry.version if name in carried else SENT_WHILE_CHANGING
            records += record
            looks += look
            others += version.record(name) if version else b""
        columns = Columns(bytes(records), bytes(looks), snapshot.copy.columns.fractions)
        return KnownCopy.of(columns, snapshot.id, bytes(others))

    def refusal(self, server: str, only_adds: str = "") -> SyncError:
        """Return the error of a sync that could not send all; see :class:`PushOptions`."""
        folders = {name for name in self.refused if name.endswith(b"/")}
        reasons = {
            _REFUSED[bool(only_adds)]: self.refused - folders,
            "not a folder on the server": folders,
        }
        reported = "; ".join(f"{why}: {_listed(names)}" for why, names in reasons.items() if names)
        hint = "Pull the results of jobs first (remote-tool job-pull), then overwrite: "
        hint += f"{only_adds} --overwrite" if only_adds else f"remote-tool rsync --overwrite --server {server}"
        return SyncError(f"{server}: some files were not sent: {reported}", hint=hint, server=server)


def tell_kept(names: Collection[bytes]) -> str:
    """Say what stays as the server has it."""
    return f"kept the server's version, changed there or newer: {_listed(names)} (rsync --overwrite replaces it)"


def _listed(names: Collection[bytes]) -> str:
    shown = [printable(os.fsdecode(name)) for name in sorted(names)[:SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def find_changes(
    entries: Iterable[Entry], found: Mapping[bytes, Found], state: SyncState, here: Mapping[bytes, Version]
) -> ServerChanges:
    """Decide what is not sent.

    Args:
        entries: What is to be sent.
        found: What the server has in these places.
        state: What it remembers of earlier syncs.
        here: The versions that were here at the last sync from here.
    """
    verdicts = {entry.name: _judge(entry, found, state, here) for entry in entries}
    return ServerChanges(
        frozenset(name for name, verdict in verdicts.items() if verdict is _Verdict.KEEP),
        frozenset(name for name, verdict in verdicts.items() if verdict is _Verdict.REFUSE),
        found,
    )


def find_lacking(
    entries: Iterable[Entry], found: Mapping[bytes, Found], here: Mapping[bytes, Version]
) -> tuple[list[bytes], bool]:
    """Return what the server lacks or has otherwise, and whether rsync sees that by size, second and permissions.

    An edit in the second of the last one, of the same size, is only seen here.
    """
    visible = [entry.name for entry in entries if entry.target or not _looks_the_same(entry, found)]
    known = frozenset(visible)
    hidden = [
        entry.name
        for entry in entries
        if entry.name not in known and not entry.is_folder and here.get(entry.name, entry.version) != entry.version
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
    if entry.is_folder:
        return _Verdict.REFUSE
    if before is not None:
        return _Verdict.KEEP if before == entry.version else _Verdict.REFUSE
    if name in state.sent:
        return _Verdict.KEEP if state.sent[name] == (entry.size, entry.modified) else _Verdict.REFUSE
    return _Verdict.KEEP if _is_newer_or_larger(there, entry) else _Verdict.SEND


def _is_ours(entry: Entry, there: Found, found: Mapping[bytes, Found], state: SyncState) -> bool:
    """Tell whether the server's file is one that a sync put there, or the same as ours."""
    name, version = entry.name.rstrip(b"/"), (there.size, there.modified)
    if stat.S_ISDIR(there.mode) or version in state.versions(name):
        return True  # only an empty folder is replaced by a file: rsync names the others
    if entry.is_folder:
        return entry.name in found  # a link to a folder, which is followed
    return version == (entry.size, entry.modified) and stat.S_ISLNK(there.mode) == bool(entry.target)


def _is_newer_or_larger(there: Found, entry: Entry) -> bool:
    if stat.S_ISLNK(there.mode) or entry.target:
        return there.modified > entry.modified or stat.S_ISLNK(there.mode) != bool(entry.target)
    return there.modified > entry.modified or there.size > entry.size
