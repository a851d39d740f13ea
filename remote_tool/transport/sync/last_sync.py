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
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

from remote_tool.transport.sync.interrupted_sync import KeptParts, keep_parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from remote_tool.paths import RemotePaths

_SNAPSHOT = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(rb"-?[0-9]{1,20}")
# Of what was sent: the size of what never was is negative.
_RECORD = re.compile(rb"([0-9]{1,20}) (-?[0-9]{1,20}) (.+)", re.DOTALL)
_SENT_NAME = re.compile(rb"(?<![^\0])[0-9]+ -?[0-9]+ ([^\0]+)\0")
_BLOCK = 64 * 1024
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


class Columns(NamedTuple):
    """What is known of many files, a record of each ended by NUL, in the same order.

    Attributes:
        sent: The list of sent files, as the server keeps it.
        look: What the server tells of them as long as they are as the sync left them.
        fractions: The nanoseconds of their times here: two edits may fall into one second.
    """

    sent: bytes = b""
    look: bytes = b""
    fractions: bytes = b""


class KnownCopy:
    """What a server had.

    Args:
        snapshot_id: Of the project then.
        digest: Of the column of looks.
        others: The versions here of files that the server has otherwise: records of four words.
        columns: Of all files; read from a note when they are needed.

    Attributes:
        sent_size: Bytes of the list of sent files.
    """

    def __init__(self, snapshot_id: str, digest: str, others: bytes, columns: Columns | KeptParts) -> None:
        self.snapshot_id = snapshot_id
        self.digest = digest
        self.others = others
        self._columns = columns
        self.sent_size = columns.size(0) if isinstance(columns, KeptParts) else len(columns.sent)

    @classmethod
    def of(cls, columns: Columns, snapshot_id: str = "", others: bytes = b"") -> Self:
        """Return a copy with these columns; without an id, that of a snapshot that has just these."""
        digest = hashlib.sha256(columns.look).hexdigest()
        own_id = hashlib.sha256(digest.encode() + columns.fractions).hexdigest()[:32]
        return cls(snapshot_id or own_id, digest, others, columns)

    @property
    def columns(self) -> Columns:
        if isinstance(self._columns, KeptParts):
            self._columns = Columns(*(self._columns[number] for number in range(len(Columns._fields))))
        return self._columns

    @property
    def file_count(self) -> int:
        return self.columns.sent.count(b"\0") - self.columns.sent.count(b"/\0")

    @cached_property
    def other_versions(self) -> Mapping[bytes, Version]:
        """The version here of each file that the server has otherwise."""
        split = (record.split(b" ", 3) for record in self.others.split(b"\0"))
        whole = (words for words in split if len(words) == len((*Version._fields, "name")))
        return {words[3]: Version(*map(int, words[:3])) for words in whole if all(map(_NUMBER.fullmatch, words[:3]))}

    @cached_property
    def versions(self) -> Mapping[bytes, Version]:
        """The version that was here of each file, then."""
        rests = each_record(self.columns.fractions)
        pairs = zip(map(_RECORD.fullmatch, each_record(self.columns.sent)), rests, strict=False)
        same = {
            found[3]: Version(int(found[1]), int(found[2]), int(rest))
            for found, rest in pairs
            if found and _NUMBER.fullmatch(rest)
        }
        return {**same, **self.other_versions}

    def sent_among(self, names: Collection[bytes]) -> set[bytes]:
        """Return which of these names were sent."""
        wanted = set(names)
        return wanted.intersection(_SENT_NAME.findall(self.columns.sent)) if wanted else set()

    def lines_of(self, names: Collection[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        """Return the record and the look of some files, each ended by NUL, by name."""
        pairs = zip(each_record(self.columns.sent), each_record(self.columns.look), strict=False)
        split = ((record.split(b" ", 2)[-1], record, look) for record, look in pairs if names)
        return {name: (record + b"\0", look + b"\0") for name, record, look in split if name in names}


def each_record(column: bytes) -> Iterator[bytes]:
    """Yield the records of a column, without their NULs, and few of them at a time in memory."""
    start = 0
    while end := column.rfind(b"\0", start, start + _BLOCK) + 1 or column.find(b"\0", start) + 1:
        yield from column[start : end - 1].split(b"\0")
        start = end


def recall(file: Path) -> KnownCopy | None:
    """Return what the last sync left, as far as we know."""
    found = KeptParts.recall(file, len(("id", "digest")), len((*Columns._fields, "others")))
    if found is None or not _SNAPSHOT.fullmatch(found.words[0]) or not _DIGEST.fullmatch(found.words[1]):
        return None
    return KnownCopy(found.words[0], found.words[1], found[len(Columns._fields)], found)


def note(file: Path, known: KnownCopy) -> None:
    """Remember it."""
    keep_parts(file, (known.snapshot_id, known.digest), (*known.columns, known.others))


def look_script(remote: RemotePaths, known: Sequence[KnownCopy]) -> list[str]:
    """Return the lines that set ``same`` to 1 when the server has what ``$state`` says, and ``size`` to its list's."""
    cases = [f"  'complete {each.snapshot_id}') size={each.sent_size} hash={each.digest};;" for each in known]
    scripts = shlex.quote(remote.scripts)
    return [
        *_LOOK.replace("PROJECT", shlex.quote(remote.project)).strip().splitlines(),
        "same=0 size=0 hash=",
        'case "$state" in',
        *cases,
        "esac",
        f'[ -z "$hash" ] || [ "$(cd "$HOME"/{scripts} && tell "$size" 2>/dev/null)" != "$hash  -" ] || same=1',
    ]
