"""The server's record of earlier syncs, and which files in it are not sent anymore."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from remote_tool.transport.sync.project.contents import Snapshot

COMPLETE = "complete"
SIZE = re.compile(rb"[0-9]{1,20}")
TIME = re.compile(rb"-?[0-9]{1,20}")


@dataclass(frozen=True)
class SyncState:
    """The server's record of the last sync.

    Attributes:
        complete: The snapshot that it has completely; empty if the last sync did not finish or there was none.
        same: Whether all files are as that sync left them; false if nothing was compared.
        bare: Whether the project folder holds no files that a sync could overwrite.
        workspaces: Lines of the server's record of workspaces; see :mod:`project.workspace`.
        sent: Size and time of sent files, by name, without those that are known here; empty for the wanted snapshot.
        begun: The same for an interrupted sync from here; which of these files arrived is unknown.
    """

    complete: str = ""
    same: bool = False
    bare: bool = False
    workspaces: tuple[str, ...] = ()
    sent: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    begun: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)

    @property
    def names(self) -> Collection[bytes]:
        """Names of all files that syncs may have sent."""
        return self.sent.keys() | self.begun.keys()

    def versions(self, name: bytes) -> set[tuple[int, int]]:
        """Return the sizes and times with which syncs may have sent a file."""
        return {known[name] for known in (self.sent, self.begun) if name in known}


@dataclass(frozen=True)
class Attempt:
    """One sync.

    Attributes:
        snapshot_id: The snapshot to send; empty while the project is being listed.
        mark: Random; ends the first answer, and distinguishes this sync from every other.
        owner: User and computer, shown to others who wait.
        workspace: The line that the server records for the workspace; empty: none.
    """

    snapshot_id: str
    mark: str
    owner: str = ""
    workspace: str = ""


@dataclass(frozen=True)
class Leftovers:
    """Files that were sent earlier and are not sent now.

    Attributes:
        stale: Gone here, so to be removed there: files first, then folders, deepest first.
        kept: Still here but not sent anymore: they stay on the server, and in its list.
        blocking: Whether a stale file or folder is in the place of one of another kind.
    """

    stale: tuple[bytes, ...] = ()
    kept: tuple[bytes, ...] = ()
    blocking: bool = False

    @property
    def stale_files(self) -> list[bytes]:
        return [name for name in self.stale if not name.endswith(b"/")]


def find_leftovers(state: SyncState, snapshot: Snapshot) -> Leftovers:
    """Compare the files sent earlier with those to send now and with those here."""
    names = state.names
    present = snapshot.copy.sent_among({*names, *(name + b"/" for name in names), *(name[:-1] for name in names)})
    stale, kept, blocking = [], [], False
    for name in names:
        if name in present:
            continue
        # A folder was replaced by a file or the reverse: rsync would follow a link in its place.
        replaced = name[:-1] in present if name.endswith(b"/") else name + b"/" in present
        blocking = blocking or replaced
        if replaced or not snapshot.has_here(name):
            stale.append(name)
        else:
            kept.append(name)
    stale.sort(key=lambda name: (name.endswith(b"/"), -name.count(b"/"), name))
    return Leftovers(tuple(stale), tuple(kept), blocking)


def end_of_state(mark: str) -> bytes:
    """Return the end of each answer and of rsync's output: no list of names has two NULs in a row."""
    return b"\0\0" + mark.encode() + b" "


def parse_state(answer: bytes) -> SyncState:
    """Parse the first answer of the script of a sync; malformed records are dropped."""
    first, _, rest = answer.partition(b"\n")
    same, _, rest = rest.partition(b"\n")
    workspaces = []
    # An empty line ends them.
    while (line := rest.partition(b"\n"))[0]:
        workspaces.append(line[0].decode(errors="replace"))
        rest = line[2]
    word, _, name = first.decode(errors="replace").partition(" ")
    complete = name if word == COMPLETE else ""
    return SyncState(complete, same == b"1", same == b"-", tuple(workspaces), parse_records(rest[1:]))


def parse_records(text: bytes) -> dict[bytes, tuple[int, int]]:
    """Parse a list of sent files, dropping records that are malformed, were never sent, or are outside the project."""
    sent = {}
    for record in text.split(b"\0"):
        size, _, others = record.partition(b" ")
        modified, _, path = others.partition(b" ")
        if SIZE.fullmatch(size) and TIME.fullmatch(modified) and _is_inside(path):
            sent[path] = (int(size), int(modified))
    return sent


def _is_inside(name: bytes) -> bool:
    return bool(name) and not name.startswith(b"/") and b".." not in name.split(b"/")


def stale_records(state: SyncState, stale: Iterable[bytes]) -> bytes:
    """Return the records of files to remove, for the server's script."""
    return b"".join(b"%d %d %b\0" % (*version, name) for name in stale for version in state.versions(name))
