"""What a sync sends, keeps and removes, worked out from what the server says it has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.transport.sync import interrupted_files, interrupted_sync, last_sync, server_questions, server_state
from remote_tool.transport.sync.relayed import hash_entries
from remote_tool.transport.sync.server_changes import ServerChanges, find_changes, find_lacking
from remote_tool.transport.sync.server_state import Leftovers, SyncState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from remote_tool.transport.sync.last_sync import KnownCopy
    from remote_tool.transport.sync.push_options import PushOptions
    from remote_tool.transport.sync.server_questions import Found
    from remote_tool.transport.sync.snapshot import Entry, Snapshot

Ask = Callable[[bytes], Awaitable[bytes]]


class TransferPlan:
    """What one server is sent of a snapshot.

    Attributes:
        state: What the server remembers of earlier syncs.
        leftovers: What was sent earlier and is not sent now.
        changes: What is not sent for the sake of what the server has.
        wanted: The names that rsync is to send; None: whatever it finds.
        trusts_times: Whether rsync may compare these by size and second.
    """

    def __init__(self, server: str, snapshot: Snapshot, options: PushOptions) -> None:
        self._server = server
        self._snapshot = snapshot
        self._options = options
        self.state = SyncState()
        self.leftovers = Leftovers()
        self.changes = ServerChanges()
        self.wanted: list[bytes] | None = None
        self.trusts_times = False
        # What the last sync from here left, and what of that stays as the server has it.
        self._earlier: KnownCopy | None = None
        self._carried: frozenset[bytes] = frozenset()

    @property
    def is_done(self) -> bool:
        return self.state.same and self.state.complete == self._snapshot.id

    def expect(self) -> dict[str, KnownCopy]:
        """Return how the copy may look, by snapshot."""
        earlier = self._earlier = last_sync.recall(self._options.known) if self._options.known else None
        if self._options.checksum:
            return {}
        # What was kept then is to be replaced now, so nothing is as it should be.
        known = [earlier] if earlier and not (earlier.others and self._options.overwrite) else []
        return {each.snapshot_id: each for each in (self._snapshot.copy, *known)}

    def compare(self, answer: bytes, expected: Mapping[str, KnownCopy]) -> None:
        state = server_state.parse_state(answer)
        if state.same and state.complete in expected:
            self.wanted, gone = self._snapshot.changes_since(expected[state.complete])
            is_so = state.complete == self._snapshot.id
            state = replace(state, sent={} if is_so else {**state.sent, **server_state.parse_records(gone)})
        self.state, file = state, self._options.begun
        if file is not None and not self._options.dry_run and not self.is_done:
            earlier = interrupted_sync.recall(file)
            self.state = replace(state, begun=server_state.parse_records(earlier))
            interrupted_sync.note(file, earlier + self._snapshot.sent_list)
        self.leftovers = server_state.find_leftovers(self.state, self._snapshot)
        if self._options.only_adds:
            self.leftovers = Leftovers(kept=self.leftovers.stale + self.leftovers.kept)

    @property
    def left_out(self) -> frozenset[bytes]:
        """What rsync must not send when it chooses by itself."""
        return self.changes.names | self._carried

    def leave_to_others(self, names: Collection[bytes]) -> None:
        """Take out what another server has brought."""
        if self.wanted is not None:
            self.wanted = [name for name in self.wanted if name not in names]

    async def leave_out_changes(self, ask: Ask) -> frozenset[bytes]:
        """Find what the server has in the places of what is to be sent, unless that is known, and what must stay.

        Returns:
            What is kept there from now on.
        """
        if self.is_done or self.state.bare or self._options.overwrite:
            return frozenset()
        if self.wanted is not None and not self._options.only_adds:
            self._carried = self._kept_before
            self.wanted = [name for name in self.wanted if name not in self._carried]
        unsure = self._unsure()
        if self.wanted is None or unsure:
            here = self._earlier.versions if self._earlier else {}
            found = await self._look_there(ask, unsure)
            entries = self._snapshot.entries if self.wanted is None else unsure
            self.changes = find_changes(entries, found, self.state, here)
            await self._compare_contents(ask)
            if self._options.only_adds:
                self.changes = replace(self.changes, kept=frozenset(), refused=self.changes.names)
            if self.wanted is None and not self._options.checksum:
                self.wanted, self.trusts_times = find_lacking(entries, found, here)
        if self.wanted is not None:
            self.wanted = [name for name in self.wanted if name not in self.changes]
        return self.changes.kept - self._kept_before

    @cached_property
    def _kept_before(self) -> frozenset[bytes]:
        """What the server has otherwise since the last sync from here, and is still the same here."""
        others = self._earlier.other_versions if self._earlier else {}
        return frozenset(each.name for each in self._snapshot.entries if others.get(each.name) == each.version)

    def _unsure(self) -> list[Entry]:
        """Return what is to be sent of which the server's own list does not say what should be there now."""
        if self.wanted is None:
            return [each for each in self._snapshot.entries if each.name not in self.state.sent]
        assert self._earlier is not None, "what changed since then"
        others, wanted = self._earlier.other_versions, frozenset(self.wanted)
        known = self._earlier.versions.keys() - others.keys()
        return [each for each in self._snapshot.entries if each.name in wanted and each.name not in known]

    async def _look_there(self, ask: Ask, entries: Sequence[Entry]) -> Mapping[bytes, Found]:
        records = b"".join(entry.record for entry in entries)
        for kind in (server_questions.LOOK, server_questions.LOOK_SLOWLY):
            words = server_questions.question(kind, records, of_all=self.wanted is None)
            found = server_questions.parse_found(await ask(words))
            if found is not None:
                return found
        raise SyncError(
            f"{self._server}: cannot list the files in the project's folder",
            hint=f"remote-tool run --server {self._server} --cmd 'ls -la'",
            server=self._server,
        )

    async def _compare_contents(self, ask: Ask) -> None:
        """Take for ours what differs in its time only."""
        suspects = self.changes.perhaps_the_same(self._snapshot.entries)
        if suspects:
            names = b"".join(entry.name + b"\0" for entry in suspects)
            answer = await ask(server_questions.question(server_questions.HASH, names))
            ours = await asyncio.to_thread(hash_entries, self._snapshot, suspects)
            theirs = server_questions.parse_hashes(answer)
            self.changes = self.changes.without({name for name, digest in ours.items() if theirs.get(name) == digest})

    def lacking_bytes(self) -> int:
        """Return how much the server lacks and another one may bring; all, when nobody knows what it has."""
        # Another one would bring everything, also in the place of what the server has changed.
        if self.is_done or self.changes.names or self._carried:
            return 0
        wanted = None if self.wanted is None else frozenset(self.wanted)
        return sum(entry.size for entry in self._snapshot.entries if wanted is None or entry.name in wanted)

    def halves(self) -> dict[bytes, Entry]:
        """Return where the server may have a part of each large file that is sent, see :mod:`interrupted_files`."""
        if self.is_done or self._options.dry_run or not self.state.begun:
            return {}
        wanted = None if self.wanted is None else frozenset(self.wanted)
        entries = (entry for entry in self._snapshot.entries if not entry.target and entry.name not in self.left_out)
        return interrupted_files.places(
            (entry for entry in entries if wanted is None or entry.name in wanted), self.state.begun
        )

    def bytes_to_send(self, *, relayed: bool) -> int:
        """Return the size of all files that rsync will send; 0 when only rsync itself finds out."""
        if self.wanted is None and (not self.state.bare or relayed):
            return 0
        wanted = None if self.wanted is None else frozenset(self.wanted)
        files = (entry for entry in self._snapshot.entries if not entry.target)
        return sum(entry.size for entry in files if wanted is None or entry.name in wanted)

    def newly_held_back(self) -> list[bytes]:
        """Return secrets that the server has of an earlier sync, and that were not reported before."""
        before = self._earlier.versions if self._earlier else None
        there = [name for name in self.leftovers.kept if before is None or name in before]
        return [
            secret
            for secret in self._snapshot.secrets
            if any(name == secret or name.startswith(secret + b"/") for name in there)
        ]

    def copy_left(self, sent: Collection[str]) -> KnownCopy:
        """Return what the server has now."""
        changing = self._changed_meanwhile(sent)
        return self.changes.copy_left(self._snapshot, self.state, self._earlier, self._carried, changing)

    def _changed_meanwhile(self, sent: Collection[str]) -> frozenset[bytes]:
        """Return what was sent and is not now as it was when the project was listed."""
        names = {os.fsencode(name) for name in sent}
        return frozenset(
            each.name for each in self._snapshot.entries if each.name in names and self._snapshot.differs(each)
        )
