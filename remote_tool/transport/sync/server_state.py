"""What a server remembers of earlier syncs, and which of that is not sent any more."""

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
    """What the server remembers of the last sync.

    Attributes:
        complete: The snapshot that it has whole; empty when the last sync did not finish or there was none.
        same: Whether all of that is there as it was left; false when nobody looked.
        bare: Whether the project's folder has nothing that a sync could overwrite.
        sent: Size and time of what we sent, by name; less what we know, and nothing for the wanted snapshot.
        begun: The same of a sync from here that was cut off; what of it the server has, nobody knows.
    """

    complete: str = ""
    same: bool = False
    bare: bool = False
    sent: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    begun: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)

    @property
    def names(self) -> Collection[bytes]:
        """All that may be there because of us."""
        return self.sent.keys() | self.begun.keys()

    def versions(self, name: bytes) -> set[tuple[int, int]]:
        """Size and time that a file of ours may have."""
        return {known[name] for known in (self.sent, self.begun) if name in known}


@dataclass(frozen=True)
class Attempt:
    """One sync.

    Attributes:
        snapshot_id: What is sent.
        mark: Random; ends the answer to the first question, and tells this sync from every other.
        owner: Who sends, for others who wait.
    """

    snapshot_id: str
    mark: str
    owner: str = ""

    @property
    def incomplete(self) -> str:
        return f"incomplete {self.snapshot_id} {self.mark}"


@dataclass(frozen=True)
class Leftovers:
    """What was sent earlier and is not sent now.

    Attributes:
        stale: Gone here, so it may go there: files first, then folders from the deepest up.
        kept: Still here but not sent any more, so it stays there, and stays known as sent by us.
        blocking: Whether something stale is in the place of a file of another kind.
    """

    stale: tuple[bytes, ...] = ()
    kept: tuple[bytes, ...] = ()
    blocking: bool = False

    @property
    def stale_files(self) -> list[bytes]:
        return [name for name in self.stale if not name.endswith(b"/")]


def find_leftovers(state: SyncState, snapshot: Snapshot) -> Leftovers:
    """Compare what was sent with what is to be sent, and with what is here."""
    names = state.names
    present = snapshot.copy.sent_among({*names, *(name + b"/" for name in names), *(name[:-1] for name in names)})
    stale, kept, blocking = [], [], False
    for name in names:
        if name in present:
            continue
        # A folder that is a file now, or a link or file that is a folder: a link there would be followed.
        replaced = name[:-1] in present if name.endswith(b"/") else name + b"/" in present
        blocking = blocking or replaced
        if replaced or not snapshot.has_here(name):
            stale.append(name)
        else:
            kept.append(name)
    stale.sort(key=lambda name: (name.endswith(b"/"), -name.count(b"/"), name))
    return Leftovers(tuple(stale), tuple(kept), blocking)


def end_of_state(mark: str) -> bytes:
    """Return what ends the answer, and later what rsync says: no list of names has two NULs in a row."""
    return b"\0\0" + mark.encode() + b" "


def parse_state(answer: bytes) -> SyncState:
    """Read the answer of :func:`state_script`; what is malformed counts as never sent."""
    first, _, rest = answer.partition(b"\n")
    same, _, records = rest.partition(b"\n")
    word, _, name = first.decode(errors="replace").partition(" ")
    return SyncState(name if word == COMPLETE else "", same == b"1", same == b"-", parse_records(records))


def parse_records(text: bytes) -> dict[bytes, tuple[int, int]]:
    """Read a list of sent files, without entries that were never sent, are malformed, or are outside the project."""
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
    """Return the stdin of :func:`remove_script`."""
    return b"".join(b"%d %d %b\0" % (*version, name) for name in stale for version in state.versions(name))
