"""What the last sync left on a server, kept here: whether the server still has exactly that is one short answer.

The server looks at every file that we sent, as rsync would: its kind, size, time, permissions, and where a link leads.
Of what it sees it tells a hash only. When that is the one that we expect, rsync need not compare anything: it sends
what is not the same here any more. When the server tells anything else, or lacks a tool for it, rsync compares all.

It also says which version of each file was here then: what has changed since, here or on the server, is known by that.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from remote_tool.transport.sync import interrupted_sync

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from remote_tool.paths import RemotePaths

_SNAPSHOT = re.compile(rb"[0-9a-f]{32}")
_NUMBER = re.compile(rb"-?[0-9]{1,20}")
# Of what was sent: the size of what never was is negative.
_RECORD = re.compile(rb"([0-9]{1,20}) (-?[0-9]{1,20}) (.+)", re.DOTALL)
# The first line has the sizes of all parts but the last; older versions knew no fourth part.
_SIZES = (2, 3)
# Kind, permissions, size, time and name of what the list names; a folder's size and time are its own.
_LOOK = r"""
tell() {
  head -c "$1" sent | LC_ALL=C sed -z 's:^[^ ]* [^ ]* :./:' |
  (cd "$HOME"/PROJECT && LC_ALL=C QUOTING_STYLE=literal xargs -0 stat --printf '%f %s %Y %N\0' --) |
  LC_ALL=C sed -z 's/^\(4[0-9a-f]*\) [0-9]* -*[0-9]* /\1 /' | sha256sum
}
"""


class Version(NamedTuple):
    """Of a file here; the time in seconds, and the rest of it in nanoseconds."""

    size: int
    modified: int
    nanoseconds: int

    def record(self, name: bytes) -> bytes:
        return b"%d %d %d %b\0" % (*self, name)


# Of a file that changed here while it was sent: nobody knows which version the server got.
SENT_WHILE_CHANGING = Version(-1, -1, -1)


@dataclass(frozen=True)
class KnownCopy:
    """What a server had.

    Attributes:
        snapshot_id: Of the project then.
        sent: The list of sent files, as the server keeps it.
        look: What the server tells of them, in the same order, as long as they are as the sync left them.
        fractions: The nanoseconds of their times here, in the same order: two edits may fall into one second.
        others: The versions here of files that the server has otherwise: records of four words.
    """

    snapshot_id: str
    sent: bytes
    look: bytes
    fractions: bytes
    others: bytes = b""

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.look).hexdigest()

    @cached_property
    def other_versions(self) -> Mapping[bytes, Version]:
        """The version here of each file that the server has otherwise."""
        split = (record.split(b" ", 3) for record in self.others.split(b"\0"))
        whole = (words for words in split if len(words) == len((*Version._fields, "name")))
        return {words[3]: Version(*map(int, words[:3])) for words in whole if all(map(_NUMBER.fullmatch, words[:3]))}

    @cached_property
    def versions(self) -> Mapping[bytes, Version]:
        """The version that was here of each file, then."""
        rests = self.fractions.split(b"\0")
        pairs = zip(map(_RECORD.fullmatch, self.sent.split(b"\0")), rests, strict=False)
        same = {
            found[3]: Version(int(found[1]), int(found[2]), int(rest))
            for found, rest in pairs
            if found and _NUMBER.fullmatch(rest)
        }
        return {**same, **self.other_versions}

    def lines_of(self, names: Collection[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        """Return the record and the look of some files, each ended by NUL, by name."""
        pairs = zip(self.sent.split(b"\0"), self.look.split(b"\0"), strict=False)
        split = ((record.split(b" ", 2)[-1], record, look) for record, look in pairs if names)
        return {name: (record + b"\0", look + b"\0") for name, record, look in split if name in names}


def recall(file: Path) -> KnownCopy | None:
    """Return what the last sync left, as far as we know."""
    head, _, rest = interrupted_sync.recall(file).partition(b"\n")
    name, *sizes = head.split(b" ")
    if not _SNAPSHOT.fullmatch(name) or len(sizes) not in _SIZES or not all(size.isdigit() for size in sizes):
        return None
    parts = []
    for size in map(int, sizes):
        parts.append(rest[:size])
        rest = rest[size:]
    sent, look, fractions, others, *_ = *parts, rest, b""
    return KnownCopy(name.decode(), sent, look, fractions, others)


def note(file: Path, known: KnownCopy) -> None:
    """Remember it."""
    sizes = (len(known.sent), len(known.look), len(known.fractions))
    head = b"%b %d %d %d\n" % (known.snapshot_id.encode(), *sizes)
    interrupted_sync.note(file, head + known.sent + known.look + known.fractions + known.others)


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
