"""What the last sync left on a server, kept here: whether the server still has exactly that is one short answer.

The server looks at every file that we sent, as rsync would: its kind, size, time, permissions, and where a link leads.
Of what it sees it tells a hash only. When that is the one that we expect, rsync need not compare anything: it sends
what is not the same here any more. When the server tells anything else, or lacks a tool for it, rsync compares all.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from remote_tool.transport import begun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remote_tool.paths import RemotePaths
    from remote_tool.transport.snapshot import Snapshot

_SNAPSHOT = re.compile(rb"[0-9a-f]{32}")
# The first line has the sizes of all parts but the last.
_SIZES = 2
# Kind, permissions, size, time and name of what the list names; a folder's size and time are its own.
_LOOK = r"""
tell() {
  head -c "$1" sent | LC_ALL=C sed -z 's:^[^ ]* [^ ]* :./:; s:/$::' |
  (cd "$HOME"/PROJECT && LC_ALL=C QUOTING_STYLE=literal xargs -0 stat --printf '%f %s %Y %N\0' --) |
  LC_ALL=C sed -z 's/^\(4[0-9a-f]*\) [0-9]* -*[0-9]* /\1 /' | sha256sum
}
"""


@dataclass(frozen=True)
class KnownCopy:
    """What a server had.

    Attributes:
        snapshot_id: Of the project then.
        sent: The list of sent files, as the server keeps it.
        look: What the server tells of them, in the same order, as long as they are as they were sent.
        fractions: The nanoseconds of their times here, in the same order: two edits may fall into one second.
    """

    snapshot_id: str
    sent: bytes
    look: bytes
    fractions: bytes

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.look).hexdigest()

    def changes(self, snapshot: Snapshot) -> tuple[list[bytes], bytes]:
        """Return the names that are to be sent now, and the records of what is not in the snapshot as it was."""
        if snapshot.id == self.snapshot_id:
            return [], b""
        before = frozenset(zip(self.look.split(b"\0"), self.fractions.split(b"\0"), strict=False))
        now = frozenset(snapshot.look.split(b"\0"))
        wanted = [
            entry.name for entry in snapshot.entries if (entry.look[:-1], b"%d" % entry.nanoseconds) not in before
        ]
        pairs = zip(self.sent.split(b"\0"), self.look.split(b"\0"), strict=False)
        return wanted, b"".join(record + b"\0" for record, look in pairs if look not in now)


def recall(file: Path) -> KnownCopy | None:
    """Return what the last sync left, as far as we know."""
    head, _, rest = begun.recall(file).partition(b"\n")
    name, *sizes = head.split(b" ")
    if not _SNAPSHOT.fullmatch(name) or len(sizes) != _SIZES or not all(size.isdigit() for size in sizes):
        return None
    first, second = int(sizes[0]), int(sizes[0]) + int(sizes[1])
    return KnownCopy(name.decode(), rest[:first], rest[first:second], rest[second:])


def note(file: Path, known: KnownCopy) -> None:
    """Remember it."""
    head = b"%b %d %d\n" % (known.snapshot_id.encode(), len(known.sent), len(known.look))
    begun.note(file, head + known.sent + known.look + known.fractions)


def look_script(remote: RemotePaths, known: Sequence[KnownCopy]) -> list[str]:
    """Return the lines that set ``same`` to 1 when the server has what ``$state`` says, and ``size`` to its list's."""
    cases = [f"  'complete {each.snapshot_id}') size={len(each.sent)} hash={each.digest};;" for each in known]
    scripts = shlex.quote(remote.scripts)
    return [
        *_LOOK.replace("PROJECT", shlex.quote(remote.project)).strip().splitlines(),
        "same=0 size=0 hash=",
        'case "$state" in',
        *cases,
        "esac",
        f'[ -z "$hash" ] || [ "$(cd "$HOME"/{scripts} && tell "$size" 2>/dev/null)" != "$hash  -" ] || same=1',
    ]
