"""List the files of a project to send: those that rsync's rules select, without those that must never be sent."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.system.programs import run_program
from remote_tool.transport.sync.blocks import in_ranges
from remote_tool.transport.sync.entries import ColumnsMaker, change_columns
from remote_tool.transport.sync.last_sync import Columns, KnownCopy, order
from remote_tool.transport.sync.local_rsync import environment, find_local_rsync, scratch_file
from remote_tool.transport.sync.project import listing
from remote_tool.transport.sync.project.contents import Difference, Snapshot
from remote_tool.transport.sync.project.filter_rules import joined, literal, own_rules, users_rules
from remote_tool.transport.sync.project.found_files import (
    END,
    OddRecordError,
    find_files,
    key_of,
    name_of,
    parse_record,
)
from remote_tool.transport.sync.project.listing import Kept, Listing
from remote_tool.transport.sync.project.look import NOT_REGULAR, Look
from remote_tool.transport.sync.project.selection import LISTING_SECONDS, Selection, find_hidden, select
from remote_tool.transport.sync.secrets import PRIVATE_KEY, WORDS, Looked, identities, may_be_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote_tool.transport.sync.blocks import Blocks
    from remote_tool.transport.sync.local_rsync import LocalRsync
    from remote_tool.transport.sync.project.listing import Changes

# With up to this many new names, rsync is asked only about these.
MOST_ASKED = 200
# With at least this many files, grep searches them for keys.
WORTH_A_SEARCH = 500
# Also in UTF-16, which has a NUL between letters.
_WORDS = "|".join([word.decode() for word in WORDS] + [".".join(word.decode()) for word in WORDS])
_SEARCH = 'cd -- "$1" && exec xargs -0 grep -lZaE -e "$2" --'
_SEARCH_SECONDS = 600.0


@dataclass(frozen=True)
class SelectionRules:
    """Rules for the selection of files.

    Attributes:
        exclude_file: The user's rsync patterns; may be missing.
        own_folders: More folders of remote-tool, relative to the project.
        private_keys: Files that are never sent, wherever they are.
        ignored: Files and folders that are not sent, folders ended by a slash.
        send_anyway: Patterns of files to send although they may hold secrets or a private key.
        looked: File that records which files were searched for keys; None: none.
        listing: File that records the listing; None: none.
    """

    exclude_file: Path
    own_folders: tuple[str, ...] = ()
    private_keys: tuple[Path, ...] = ()
    ignored: tuple[bytes, ...] = ()
    send_anyway: tuple[str, ...] = ()
    looked: Path | None = None
    listing: Path | None = None

    @property
    def own(self) -> list[bytes]:
        """The rules that come first."""
        return own_rules(self.own_folders)

    @property
    def users(self) -> list[bytes]:
        """The user's rules, of which the first that matches decides.

        Raises:
            SyncError: The file of patterns cannot be read.
        """
        return [*users_rules(self.exclude_file), *(b"/" + literal(name) for name in self.ignored)]


async def take_snapshot(root: Path, rules: SelectionRules) -> Snapshot:
    """List the files to send; examine only files that have changed since the last listing.

    Raises:
        SyncError: rsync is missing here, or cannot list the folder.
    """
    if not await asyncio.to_thread(root.is_dir):
        raise SyncError(f"The project folder {root} does not exist")
    return await _Run(await find_local_rsync(), root, rules).take()


async def explain(root: Path, rules: SelectionRules) -> list[tuple[bytes, bytes]]:
    """Return the files and folders that a rule leaves out, and the rule; nothing of what is in such a folder.

    Raises:
        SyncError: The rsync here does not say this, is missing, or cannot list the folder.
    """
    return await find_hidden(await find_local_rsync(), root, [*rules.own, *rules.users])


class _Run:
    """One listing of a project."""

    def __init__(self, rsync: LocalRsync, root: Path, rules: SelectionRules) -> None:
        self._rsync = rsync
        self._root = root
        self._file = rules.listing
        self._own, self._users = rules.own, rules.users
        self._look = Look(root, identities(rules.private_keys), Looked(rules.looked), rules.send_anyway)
        self._key = self._look.key([*self._own, *self._users])
        # A newer file may have appeared after rsync listed its folder: not being selected proves nothing.
        self._began = listing.clock(rules.listing.parent) if rules.listing else -1

    async def take(self) -> Snapshot:
        earlier = await asyncio.to_thread(Listing.recall, self._file, self._key) if self._file else None
        found = await find_files(self._root, earlier.pruned, LISTING_SECONDS) if earlier else None
        if earlier is not None and found is not None:
            try:
                snapshot = await self._take_changes(earlier, found)
            except (OddRecordError, EOFError):
                snapshot = None
            if snapshot is not None:
                return snapshot
        return await self._take_all()

    def _snapshot(self, copy: KnownCopy, difference: Difference | None = None) -> Snapshot:
        rules = joined(self._look.rules(self._own, self._users))
        return Snapshot(self._root, rules, tuple(self._look.skipped.items()), copy, difference)

    def _keep(self, copy: KnownCopy, pruned: list[bytes], found: Blocks, newer: list[bytes]) -> None:
        """Record the listing, except for unselected files that may be newer than it; they count as new next time."""
        if self._file is not None and self._began >= 0:
            begins = tuple(name + end for name in newer for end in (b"\0", b"/"))
            skipped = self._look.skipped
            if begins:
                found = found.without(begins)
                names = ((shown, os.fsencode(shown) + b"\0") for shown in skipped)
                skipped = {shown: skipped[shown] for shown, name in names if not name.startswith(begins)}
            kept = Kept(copy, skipped, self._look.let_through, pruned, found)
            listing.keep(self._file, self._key, kept)

    # Update the last listing

    async def _take_changes(self, earlier: Listing, found: Blocks) -> Snapshot | None:
        changes = await asyncio.to_thread(earlier.compare, found)
        if changes is None or len(changes.new) > MOST_ASKED:
            return None
        if changes.is_none:
            self._look.recall(earlier.skipped, earlier.let_through, ())
            return self._snapshot(earlier.copy)
        selection = Selection()
        if changes.new:
            selection = await select(self._rsync, self._root, [*self._own, *self._users], changes.new)
        if selection.complaints:
            return None
        return await asyncio.to_thread(self._change, earlier, changes, selection, found)

    def _change(self, earlier: Listing, changes: Changes, selection: Selection, found: Blocks) -> Snapshot:
        before, look = earlier.copy, self._look
        # The file has been written to, so an earlier search at the same size and time proves nothing.
        look.looked = Looked(None)
        touched = frozenset(changes.names) | {name + b"/" for name in changes.names}
        chosen = {name.rstrip(b"/") for name in before.sent_among(touched)} | earlier.skipped_names
        new = {name: changes.come[name] for name in changes.new}
        selected = frozenset(selection.each_key)
        asked = {name for name, record in new.items() if key_of(record) in selected}
        newer = [name for name, record in new.items() if name not in asked and self._is_newer(record)]
        look.recall(earlier.skipped, earlier.let_through, touched)
        self._skip_special(selection)
        wanted_now = chosen - new.keys() | asked
        records = (record for name, record in changes.come.items() if name in wanted_now)
        entries = [entry for entry in map(look.judge, map(parse_record, records)) if entry is not None]
        columns, wanted, gone = change_columns(before.columns, touched, entries)
        copy = KnownCopy.of(columns)
        self._keep(copy, earlier.pruned, found, newer)
        return self._snapshot(copy, Difference(before.snapshot_id, wanted, gone))

    # List everything

    async def _take_all(self) -> Snapshot:
        selection = await select(self._rsync, self._root, [*self._own, *self._users])
        self._look.complain(selection.complaints)
        pruned = await asyncio.to_thread(listing.not_selected, self._root, selection, self._began)
        found = await find_files(self._root, pruned, LISTING_SECONDS)
        copy = None
        if found is not None:
            try:
                copy = await self._judge_all(selection, pruned, found)
            except OddRecordError:
                self._look.forget()
        if copy is None:
            copy = await asyncio.to_thread(self._examine_each, selection)
        await asyncio.to_thread(self._look.looked.note)
        return self._snapshot(copy)

    def _examine_each(self, selection: Selection) -> KnownCopy:
        """Examine each file with a stat of its own."""
        self._skip_special(selection)
        made, names = ColumnsMaker(), {name_of(key) for key in selection.each_key}
        for entry in sorted(filter(None, map(self._look.at, names)), key=lambda entry: order(entry.name)):
            made.add(entry)
        return KnownCopy.of(made.columns())

    def _skip_special(self, selection: Selection) -> None:
        for name in selection.not_regular:
            self._look.skip(name, NOT_REGULAR)

    async def _judge_all(self, selection: Selection, pruned: list[bytes], found: Blocks) -> KnownCopy:
        looked = self._look.looked
        looked.searched = selection.count >= WORTH_A_SEARCH and await asyncio.to_thread(lambda: looked.is_empty)
        judging = asyncio.create_task(asyncio.to_thread(self._judge_each, selection, found))
        suspects = await _find_suspects(self._root, found) if looked.searched else []
        columns, newer = await judging
        looked.searched = False
        keys = await asyncio.to_thread(self._find_keys, suspects)
        columns = change_columns(columns, keys, ())[0] if keys else columns
        copy = KnownCopy.of(columns)
        if not selection.complaints:
            await asyncio.to_thread(self._keep, copy, pruned, found, newer)
        return copy

    def _judge_each(self, selection: Selection, found: Blocks) -> tuple[Columns, list[bytes]]:
        """Judge the files that rsync has selected; also return the names of others that may be newer."""
        self._skip_special(selection)
        made, newer = ColumnsMaker(), []
        for records, selected in in_ranges(found, selection.keys):
            for record in records:
                if key_of(record) not in selected:
                    newer += [name_of(record)] if self._is_newer(record) else []
                elif (row := self._look.row_of(record)) is not None:
                    made.keep(row)
                elif (entry := self._look.judge(parse_record(record))) is not None:
                    made.add(entry)
        return made.columns(), newer

    def _find_keys(self, suspects: list[bytes]) -> list[bytes]:
        """Search files that may hold a key; return the names of the files that hold one."""
        keys = [found.name for found in map(parse_record, suspects) if self._look.holds_key(found)]
        for name in keys:
            self._look.skip(name, PRIVATE_KEY)
        return keys

    def _is_newer(self, record: bytes) -> bool:
        if key_of(record).endswith(b"\0d"):
            return self._look.changed_since(name_of(record), self._began)
        return parse_record(record).st_ctime_ns >= self._began


async def _find_suspects(root: Path, found: Blocks) -> list[bytes]:
    """Search files with grep for the words that every private key has; return the records of those that may hold one.

    If the search fails, they are all files of the size of a key.
    """
    with tempfile.NamedTemporaryFile() as proof, scratch_file() as names:
        # Proves that this grep finds the words in UTF-16, and so between NULs.
        proof.write("PRIVATE KEY".encode("utf-16"))
        proof.flush()
        await asyncio.to_thread(_write_names, names, found)
        names.write(os.fsencode(proof.name) + b"\0")
        names.seek(0)
        try:
            script = ("sh", "-c", _SEARCH, "sh", str(root), _WORDS)
            answer = await run_program(*script, seconds=_SEARCH_SECONDS, env=environment(), stdin=names)
        except (OSError, TimeoutError):
            return [*_candidates(found)]
        hits = set(answer.output.split(b"\0")) - {b""}
        if os.fsencode(proof.name) not in hits:
            return [*_candidates(found)]
    # Most projects have no other hit, and need not be searched for its record.
    return [record for record in _candidates(found) if name_of(record) in hits] if len(hits) > 1 else []


def _write_names(file: IO[bytes], found: Blocks) -> None:
    """Write the names of files that may hold a key, each ended by NUL."""
    file.writelines(name_of(record) + b"\0" for record in _candidates(found))


def _candidates(found: Blocks) -> Iterator[bytes]:
    """Yield the records of regular files that have the size of a key."""
    for block in found:
        for record in block.split(END)[:-1]:
            is_regular = record.partition(b"\0")[2].startswith(b"f")
            if is_regular and may_be_key(int(record.rpartition(b" ")[2])):
                yield record
