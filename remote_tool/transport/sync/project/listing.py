"""The recorded result of the last listing of a project, so that only changed files are examined again."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Self

from remote_tool.transport.sync.entries import SECOND
from remote_tool.transport.sync.interrupted_sync import KeptParts, keep_parts
from remote_tool.transport.sync.last_sync import Columns, KnownCopy
from remote_tool.transport.sync.project.found_files import END, key_of, name_of
from remote_tool.transport.sync.secrets import OWN_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from remote_tool.transport.sync.blocks import Blocks
    from remote_tool.transport.sync.project.selection import Selection

# The most folders that are excluded from find because rsync does not select them.
MOST_PRUNED = 200
# With more changes than this, everything is listed again.
MOST_CHANGED = 1000
_SHARE_CHANGED = 8
_WORDS = ("key", "records", "id", "digest")
_PARTS = (*Columns._fields, "pruned", "skipped", "let_through", "records")


@dataclass(frozen=True)
class Changes:
    """Differences between two outputs of find: records by name.

    Attributes:
        gone: Earlier records of changed or removed files.
        come: Current records of changed or new files.
    """

    gone: dict[bytes, bytes]
    come: dict[bytes, bytes]

    @property
    def is_none(self) -> bool:
        return not self.gone and not self.come

    @property
    def names(self) -> set[bytes]:
        return {*self.gone, *self.come}

    @property
    def new(self) -> list[bytes]:
        """Names that are new or of another kind: whether rsync selects them is unknown."""
        return [name for name, record in self.come.items() if _kind(self.gone.get(name)) != _kind(record)]


@dataclass(frozen=True)
class Listing:
    """A recorded listing.

    Attributes:
        copy: The files to send.
        skipped: Names of files that are left out although no rule of the user says so, with reasons.
        let_through: Files that are sent only because the user asked for it.
        pruned: Folders that were not listed.
        digest: Of the records.
    """

    copy: KnownCopy
    skipped: dict[str, str]
    let_through: list[bytes]
    pruned: list[bytes]
    digest: str
    _kept: KeptParts = field(repr=False)

    @property
    def skipped_names(self) -> set[bytes]:
        return set(map(os.fsencode, self.skipped))

    @classmethod
    def recall(cls, file: Path, key: str) -> Self | None:
        """Read the listing that was recorded under this key, if there is one."""
        kept = KeptParts.recall(file, len(_WORDS), len(_PARTS))
        if kept is None or kept.words[0] != key:
            return None
        _, records, snapshot_id, digest = kept.words
        pruned, skipped, let_through = (_split(kept[_PARTS.index(part)]) for part in _PARTS[3:6])
        pairs = zip(map(os.fsdecode, skipped[::2]), map(os.fsdecode, skipped[1::2]), strict=True)
        copy = KnownCopy(snapshot_id, digest, b"", kept)
        return cls(copy, dict(pairs), let_through, pruned, records, kept)

    def compare(self, records: Blocks) -> Changes | None:
        """Return the changes since then; None if there are too many to process one by one."""
        if records.digest() == self.digest:
            return Changes({}, {})
        before = self._kept.blocks(_PARTS.index("records"), END)
        gone, come = _differences(before, records)
        if len(come) > MOST_CHANGED and len(come) > records.count() // _SHARE_CHANGED:
            return None
        return Changes(_by_name(gone), _by_name(come))


def keep(file: Path, key: str, listing: Kept) -> None:
    """Record a listing."""
    copy = listing.copy
    skipped = [os.fsencode(text) for pair in listing.skipped.items() for text in pair]
    lists = map(_join, (listing.pruned, skipped, listing.let_through))
    words = (key, listing.records.digest(), copy.snapshot_id, copy.digest)
    keep_parts(file, words, (*copy.columns, *lists, listing.records))


@dataclass(frozen=True)
class Kept:
    """A listing to record; see :class:`Listing`."""

    copy: KnownCopy
    skipped: dict[str, str]
    let_through: list[bytes]
    pruned: list[bytes]
    records: Blocks = field(repr=False)


def clock(folder: Path) -> int:
    """Return the current time of a folder's file system, less a second, in nanoseconds; -1 if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_ctime_ns - SECOND
    except OSError:
        return -1


def not_selected(root: Path, selection: Selection, before: int) -> list[bytes]:
    """Return unselected folders that need not be listed, outermost first, without those changed after ``before``."""
    return [*islice(_not_selected(root, selection, before), MOST_PRUNED)]


def _not_selected(root: Path, selection: Selection, before: int) -> Iterator[bytes]:
    base = os.path.join(os.fsencode(root), b"")
    folders = [b"", *(name + b"/" for name in selection.folders)]
    own = {name.encode() for name in OWN_FOLDERS}
    for folder in sorted(folders, key=lambda name: (name.count(b"/"), name)):
        try:
            found = [each for each in os.scandir(base + folder) if each.is_dir(follow_symlinks=False)]
            others = [each for each in found if folder + each.name not in selection.folders]
            yield from (
                folder + each.name
                for each in others
                if each.name not in own and each.stat(follow_symlinks=False).st_ctime_ns < before
            )
        except OSError:
            continue


def _differences(one: Iterable[bytes], other: Iterable[bytes]) -> tuple[set[bytes], set[bytes]]:
    """Return the records that only the one and only the other list has, block by block to save time and memory."""
    ours, theirs = set[bytes](), set[bytes]()
    for block, counterpart in zip_longest(one, other, fillvalue=b""):
        if block != counterpart:
            ours.update(block.split(END))
            theirs.update(counterpart.split(END))
            # A record may be in a later block of the other list.
            both = ours & theirs
            ours -= both
            theirs -= both
    return ours, theirs


def _by_name(records: Iterable[bytes]) -> dict[bytes, bytes]:
    return {name_of(record): record for record in records if record}


def _kind(record: bytes | None) -> bytes:
    return key_of(record)[-1:] if record else b""


def _split(text: bytes) -> list[bytes]:
    return text.split(b"\0")[:-1]


def _join(texts: Iterable[bytes]) -> bytes:
    return b"".join(text + b"\0" for text in texts)
