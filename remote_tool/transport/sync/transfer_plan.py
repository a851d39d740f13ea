"""Decide which files a sync sends, keeps and removes, from the server's answers."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.transport.sync import interrupted_files, interrupted_sync, server_script, server_state
from remote_tool.transport.sync.local_run import Selection
from remote_tool.transport.sync.project import workspace
from remote_tool.transport.sync.relayed import hash_entries
from remote_tool.transport.sync.server_changes import ServerChanges, find_changes, find_lacking
from remote_tool.transport.sync.server_state import Leftovers, SyncState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from remote_tool.paths import RemotePaths
    from remote_tool.transport.sync.entries import Entry
    from remote_tool.transport.sync.last_sync import KnownCopy, Version
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.push_options import PushOptions
    from remote_tool.transport.sync.server_script import Found

Ask = Callable[[bytes], Awaitable[bytes]]


def comparable(earlier: KnownCopy | None, options: PushOptions) -> list[KnownCopy]:
    """Return the state after the last sync from here, if the server is to compare its copy with it."""
    # Files that keep the server's version are to be replaced now, so the recorded state is useless.
    useless = options.checksum or earlier is None or (earlier.others and options.overwrite)
    return [] if earlier is None or useless else [earlier]


class TransferPlan:
    """The files of a snapshot to send to one server.

    Attributes:
        state: The server's record of earlier syncs.
        leftovers: Files that were sent earlier and are not sent anymore.
        changes: Files that are not sent because of the server's version.
        wanted: The names for rsync to send; None: rsync selects.
        trusts_times: Whether rsync may compare these by size and time in seconds.
    """

    def __init__(
        self, server: str, remote: RemotePaths, snapshot: Snapshot, options: PushOptions, earlier: KnownCopy | None
    ) -> None:
        self._server = server
        self._remote = remote
        self._snapshot = snapshot
        self._options = options
        self.state = SyncState()
        self.leftovers = Leftovers()
        self.changes = ServerChanges()
        self.wanted: list[bytes] | None = None
        self.trusts_times = False
        # The state after the last sync from here, and the files of it that keep the server's version.
        self._earlier = earlier
        self._carried: frozenset[bytes] = frozenset()
        # Versions of files from this second on may look like others that an interrupted sync has sent.
        self._interrupted_at: int | None = None

    @property
    def is_done(self) -> bool:
        return self._says_all(self.state)

    def _says_all(self, state: SyncState) -> bool:
        own = self._options.workspace
        is_so = state.same and state.complete == self._snapshot.id
        return is_so and (own is None or own.line in state.workspaces)

    @property
    def expected(self) -> dict[str, KnownCopy]:
        """The states in which the server's copy may be, by snapshot."""
        known = comparable(self._earlier, self._options)
        return {} if self._options.checksum else {each.snapshot_id: each for each in (self._snapshot.copy, *known)}

    def compare(self, answer: bytes) -> None:
        """Take the server's state.

        Raises:
            AnotherWorkspaceError: Only others have sent there.
        """
        state, expected = server_state.parse_state(answer), self.expected
        adopts = self._is_of_others(state)
        if state.same and state.complete in expected:
            self.wanted, gone = self._snapshot.changes_since(expected[state.complete])
            sent = {} if self._says_all(state) else {**state.sent, **server_state.parse_records(gone)}
            state = replace(state, sent=sent)
        self.state, file = state, self._options.begun
        if file is not None and not self.is_done:
            earlier = interrupted_sync.recall(file)
            self.state = replace(state, begun=server_state.parse_records(earlier))
            self._interrupted_at = interrupted_sync.time_of(earlier)
            if not self._options.dry_run:
                interrupted_sync.note(file, earlier or interrupted_sync.time_record(), self._snapshot.sent_list)
        self.leftovers = server_state.find_leftovers(self.state, self._snapshot)
        if adopts:
            # What others have sent and is not here is theirs alone from now on.
            self.leftovers = Leftovers()
        elif self._options.only_adds:
            self.leftovers = Leftovers(kept=self.leftovers.stale + self.leftovers.kept)

    def _is_of_others(self, state: SyncState) -> bool:
        own, options = self._options.workspace, self._options
        has_sent = workspace.has_sent(options.known, options.begun, state.complete)
        if own is None or not workspace.are_others(own, state.workspaces, has_sent=has_sent):
            return False
        if not options.adopt:
            raise workspace.refusal(self._server, self._remote, own, state.workspaces)
        return True

    @property
    def left_out(self) -> frozenset[bytes]:
        """Files to exclude when rsync selects."""
        return self.changes.names | self._carried

    @property
    def selection(self) -> Selection:
        """The files for rsync to send."""
        return Selection(self._snapshot, self.wanted, self.left_out, self.trusts_times)

    async def another_way(self, ask: Ask) -> list[Selection] | None:
        """Find out why rsync has not sent all files, and leave out those in whose place the server has a folder.

        Returns:
            What rsync has to send now: the other files, if any, and those behind each link of the server in the place
            of a folder, which releases since 3.5 do not follow otherwise; None if neither is the cause. This includes
            what rsync has named as sent, as it names a file whether or not it arrives.
        """
        names = self._names_to_send()
        folders = sorted({name[: at.end()] for name in names for at in re.finditer(b"/", name)})
        files = [name for name in names if not name.endswith(b"/")]
        found = await self._look_there(ask, b"".join(b"0 0 %b\0" % name for name in [*folders, *files]))
        places = (folder for folder in folders if folder in found)
        linked = frozenset(folder for folder in places if stat.S_ISLNK(found[folder[:-1]].mode))
        blocked = frozenset(name for name in files if name in found and stat.S_ISDIR(found[name].mode))
        if not linked and not blocked:
            return None
        self.changes = replace(
            self.changes, refused=self.changes.refused | blocked, found={**self.changes.found, **found}
        )
        parts: dict[bytes, list[bytes]] = {}
        for name in names:
            if name not in blocked:
                parts.setdefault(name if name in linked else _innermost(linked, name), []).append(name)
        others = parts.pop(b"", [])
        rest = replace(
            self.selection, names=others if self.wanted is not None else None, left_out=self.left_out | linked
        )
        return ([rest] if others else []) + [self._behind(place, inside) for place, inside in parts.items()]

    def _behind(self, place: bytes, names: Sequence[bytes]) -> Selection:
        """Return what to send to where a link leads; with ``place`` itself, its permissions."""
        mode = next((entry.mode for entry in self._snapshot.entries_named([place] if place in names else [])), None)
        inside = [name[len(place) :] for name in names if name != place]
        trusts_times = self.trusts_times or self.wanted is None
        return Selection(self._snapshot, inside, trusts_times=trusts_times, inside=place, inside_mode=mode)

    def drop_relayed(self, names: Collection[bytes]) -> None:
        """Drop the files that another server has sent."""
        if self.wanted is not None:
            self.wanted = [name for name in self.wanted if name not in names]

    async def leave_out_changes(self, ask: Ask) -> frozenset[bytes]:
        """Find files that must not be overwritten; ask the server only about files whose state is unknown.

        Returns:
            The names that newly keep the server's version.
        """
        if self.is_done or self.state.bare:
            return frozenset()
        if self._options.overwrite:
            await self._select_after_interruption(ask)
            return frozenset()
        if self.wanted is not None and not self._options.only_adds:
            self._carried = self._kept_before
            self.wanted = [name for name in self.wanted if name not in self._carried]
        unsure = self._unsure()
        if self.wanted is None or unsure:
            found = await self._look_there(ask, _records(unsure))
            entries = tuple(self._snapshot.entries) if self.wanted is None else unsure
            self.changes = find_changes(entries, found, self.state, self._versions_here)
            await self._compare_contents(ask)
            if self._options.only_adds:
                self.changes = replace(self.changes, kept=frozenset(), refused=self.changes.names)
            if self.wanted is None:
                self._select_lacking(found)
        if self.wanted is not None:
            self.wanted = [name for name in self.wanted if name not in self.changes]
        return self.changes.kept - self._kept_before

    async def _select_after_interruption(self, ask: Ask) -> None:
        if self.wanted is None and self._interrupted_at is not None:
            self._select_lacking(await self._look_there(ask, _records(self._unsure())))

    def _select_lacking(self, found: Mapping[bytes, Found]) -> None:
        """Select the files that the server lacks, also those that only rsync --checksum would find to differ."""
        if not self._options.checksum:
            self.wanted, self.trusts_times = find_lacking(
                tuple(self._snapshot.entries), found, self._versions_here, self._interrupted_at
            )

    @property
    def _versions_here(self) -> Mapping[bytes, Version]:
        return self._earlier.versions if self._earlier else {}

    @cached_property
    def _kept_before(self) -> frozenset[bytes]:
        """Files unchanged here that have kept the server's version since the last sync from here."""
        others = self._earlier.other_versions if self._earlier else {}
        return frozenset(
            each.name for each in self._snapshot.entries_named(others) if others[each.name] == each.version
        )

    def _unsure(self) -> list[Entry]:
        """Return the wanted files whose current version on the server cannot be inferred from its list."""
        if self.wanted is None:
            return [each for each in self._snapshot.entries if each.name not in self.state.sent]
        if not self.wanted:
            return []
        assert self._earlier is not None, "what changed since then"
        known = self._earlier.sent_among(self.wanted) - self._earlier.other_versions.keys()
        return [*self._snapshot.entries_named(name for name in self.wanted if name not in known)]

    async def _look_there(self, ask: Ask, records: bytes) -> Mapping[bytes, Found]:
        for kind in (server_script.LOOK, server_script.LOOK_SLOWLY):
            words = server_script.question(kind, records, of_all=self.wanted is None)
            found = server_script.parse_found(await ask(words))
            if found is not None:
                return found
        raise SyncError(
            f"{self._server}: cannot list the files in the project's folder",
            hint=f"remote-tool run --server {self._server} --cmd 'ls -la'",
            server=self._server,
        )

    async def _compare_contents(self, ask: Ask) -> None:
        """Do not treat files as changed that differ only in time."""
        suspects = self.changes.perhaps_the_same(self._snapshot.entries)
        if suspects:
            names = b"".join(entry.name + b"\0" for entry in suspects)
            answer = await ask(server_script.question(server_script.HASH, names))
            ours = await asyncio.to_thread(hash_entries, self._snapshot, suspects)
            theirs = server_script.parse_hashes(answer)
            self.changes = self.changes.without({name for name, digest in ours.items() if theirs.get(name) == digest})

    def lacking_bytes(self) -> int:
        """Return how many bytes another server may send; all, if it is unknown what this server has."""
        # Another server would send everything, and so overwrite files that were changed on this one.
        if self.is_done or self.changes.names or self._carried:
            return 0
        return sum(entry.size for entry in self._wanted_entries())

    def _names_to_send(self) -> Sequence[bytes]:
        if self.wanted is not None:
            return self.wanted
        names = (entry.name for entry in self._snapshot.entries)
        return [name for name in names if name not in self.changes and name not in self._carried]

    def _wanted_entries(self) -> Iterable[Entry]:
        return self._snapshot.entries if self.wanted is None else self._snapshot.entries_named(self.wanted)

    def partial_files(self) -> dict[bytes, Entry]:
        """Return the paths where the server may have part of a large file; see :mod:`interrupted_files`."""
        if self.is_done or self._options.dry_run or not self.state.begun:
            return {}
        wanted = None if self.wanted is None else frozenset(self.wanted)
        entries = (entry for entry in self._snapshot.entries if not entry.target and entry.name not in self.left_out)
        return interrupted_files.places(
            (entry for entry in entries if wanted is None or entry.name in wanted), self.state.begun
        )

    def bytes_to_send(self, *, relayed: bool) -> int:
        """Return the total size of the files that rsync will send; 0 if only rsync can find out."""
        if self.wanted is None and (not self.state.bare or relayed):
            return 0
        return sum(entry.size for entry in self._wanted_entries() if not entry.target)

    def newly_held_back(self) -> list[bytes]:
        """Return secrets that an earlier sync sent to the server and that were not reported before."""
        there: Collection[bytes] = self.leftovers.kept
        if self._earlier is not None:
            there = self._earlier.sent_among(there) | (self._earlier.other_versions.keys() & frozenset(there))
        return [
            secret
            for secret in self._snapshot.secrets
            if any(name == secret or name.startswith(secret + b"/") for name in there)
        ]

    def copy_left(self, sent: Collection[str]) -> KnownCopy:
        """Return the state of the server's copy after this sync."""
        changing = self._snapshot.changed_among(sent)
        return self.changes.copy_left(self._snapshot, self.state, self._earlier, self._carried, changing)


def _records(entries: Iterable[Entry]) -> bytes:
    return b"".join(entry.record for entry in entries)


def _innermost(folders: Collection[bytes], name: bytes) -> bytes:
    """Return the innermost of these folders that contains a file; empty if none does."""
    end = len(name.rstrip(b"/"))
    while (end := name.rfind(b"/", 0, end)) >= 0:
        if name[: end + 1] in folders:
            return name[: end + 1]
    return b""
