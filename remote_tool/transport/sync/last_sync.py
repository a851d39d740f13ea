"""The state in which the last sync left a server, recorded here so that the server can confirm it with a short answer.

The server lists the attributes that rsync compares for every sent file: kind, size, time, permissions, link target.
It sends only a hash of the list. If the hash is the expected one, rsync need not compare: it sends only files that have
changed here. If it differs, or the server lacks a tool for it, rsync compares all files.

The record also holds the local version of each file at that time, to detect changes here and on the server.
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
# A record of a sent file: one that was never sent has a negative size.
_RECORD = re.compile(rb"([0-9]{1,20}) (-?[0-9]{1,20}) (.+)", re.DOTALL)
_SENT_NAME = re.compile(rb"(?<![^\0])[0-9]+ -?[0-9]+ ([^\0]+)\0")
_BLOCK = 64 * 1024
# Prints kind, permissions, size, time and name of each listed file; folders without size and time, which vary.
_LOOK = r"""
tell() {
  head -c "$1" sent | LC_ALL=C sed -z 's:^[^ ]* [^ ]* :./:' |
  (cd "$HOME"/PROJECT && LC_ALL=C QUOTING_STYLE=literal xargs -0 stat --printf '%f %s %Y %N\0' --) |
  LC_ALL=C sed -z 's/^\(4[0-9a-f]*\) [0-9]* -*[0-9]* /\1 /' | sha256sum
}
"""


class Version(NamedTuple):
    """A version of a local file: its time in seconds, and the remaining nanoseconds."""

    size: int
    modified: int
    nanoseconds: int

    def record(self, name: bytes) -> bytes:
        return b"%d %d %d %b\0" % (*self, name)


# For a file that changed here while it was sent: which version arrived is unknown.
SENT_WHILE_CHANGING = Version(-1, -1, -1)


class Columns(NamedTuple):
    """Attributes of many files: each column has one record per file, ended by NUL, in the same order.

    Attributes:
        sent: The list of sent files, as the server keeps it.
        look: The lines that the server prints for unchanged files.
        fractions: The nanoseconds of their local times: two edits may fall into one second.
    """

    sent: bytes = b""
    look: bytes = b""
    fractions: bytes = b""


class KnownCopy:
    """The files that a server had after a sync.

    Args:
        snapshot_id: Id of the project's snapshot.
        digest: Of the column ``look``.
        others: The local versions of files of which the server has another version: records of four words.
        columns: Attributes of all files; read from the record when needed.

    Attributes:
        sent_size: Size of the list of sent files in bytes.
    """

    def __init__(self, snapshot_id: str, digest: str, others: bytes, columns: Columns | KeptParts) -> None:
        self.snapshot_id = snapshot_id
        self.digest = digest
        self.others = others
        self._columns = columns
        self.sent_size = columns.size(0) if isinstance(columns, KeptParts) else len(columns.sent)

    @classmethod
    def of(cls, columns: Columns, snapshot_id: str = "", others: bytes = b"") -> Self:
        """Return a copy with these columns; without an id, it gets the id of a snapshot with exactly these files."""
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
        """The local version of each file of which the server has another version."""
        split = (record.split(b" ", 3) for record in self.others.split(b"\0"))
        whole = (words for words in split if len(words) == len((*Version._fields, "name")))
        return {words[3]: Version(*map(int, words[:3])) for words in whole if all(map(_NUMBER.fullmatch, words[:3]))}

    @cached_property
    def versions(self) -> Mapping[bytes, Version]:
        """The local version of each file at that time."""
        rests = each_record(self.columns.fractions)
        pairs = zip(map(_RECORD.fullmatch, each_record(self.columns.sent)), rests, strict=False)
        same = {
            found[3]: Version(int(found[1]), int(found[2]), int(rest))
            for found, rest in pairs
            if found and _NUMBER.fullmatch(rest)
        }
        return {**same, **self.other_versions}

    def sent_among(self, names: Collection[bytes]) -> set[bytes]:
        """Return the names that were sent."""
        wanted = set(names)
        return wanted.intersection(_SENT_NAME.findall(self.columns.sent)) if wanted else set()

    def lines_of(self, names: Collection[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        """Return the record and the ``look`` line of files by name, each ended by NUL."""
        pairs = zip(each_record(self.columns.sent), each_record(self.columns.look), strict=False)
        split = ((record.split(b" ", 2)[-1], record, look) for record, look in pairs if names)
        return {name: (record + b"\0", look + b"\0") for name, record, look in split if name in names}


def each_record(column: bytes) -> Iterator[bytes]:
    """Yield the records of a column without their NULs, a block at a time to save memory."""
    start = 0
    while end := column.rfind(b"\0", start, start + _BLOCK) + 1 or column.find(b"\0", start) + 1:
        yield from column[start : end - 1].split(b"\0")
        start = end


def recall(file: Path) -> KnownCopy | None:
    """Return the recorded state after the last sync, if there is one."""
    found = KeptParts.recall(file, len(("id", "digest")), len((*Columns._fields, "others")))
    if found is None or not _SNAPSHOT.fullmatch(found.words[0]) or not _DIGEST.fullmatch(found.words[1]):
        return None
    return KnownCopy(found.words[0], found.words[1], found[len(Columns._fields)], found)


def note(file: Path, known: KnownCopy) -> None:
    """Record the state after a sync."""
    keep_parts(file, (known.snapshot_id, known.digest), (*known.columns, known.others))


def look_script(remote: RemotePaths, known: Sequence[KnownCopy]) -> list[str]:
    """Return lines that set ``same`` to 1 if the server's files match ``$state``, and ``size`` to its list's size."""
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
