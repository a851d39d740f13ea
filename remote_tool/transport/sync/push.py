"""Send a project with rsync over the open connection."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.errors import RemoteCommandError, SyncError
from remote_tool.transport.host import MEBIBYTE
from remote_tool.transport.ssh.endpoint import printable
from remote_tool.transport.sync import (
    interrupted_files,
    interrupted_sync,
    last_sync,
    server_script,
    server_state,
)
from remote_tool.transport.sync.bridge import Bridge
from remote_tool.transport.sync.failures import SOME_NOT_SENT, SOME_VANISHED, STREAM_BROKE, Ending
from remote_tool.transport.sync.local_rsync import find_local_rsync
from remote_tool.transport.sync.local_run import LocalRun
from remote_tool.transport.sync.project.workspace import own_name, renamed_notice
from remote_tool.transport.sync.relayed import Asking, Relayed
from remote_tool.transport.sync.server_changes import kept_warning
from remote_tool.transport.sync.server_state import Attempt, Leftovers
from remote_tool.transport.sync.transfer_plan import TransferPlan, comparable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from remote_tool.paths import RemotePaths
    from remote_tool.transport.host import Exit, Host
    from remote_tool.transport.sync.last_sync import KnownCopy
    from remote_tool.transport.sync.local_rsync import LocalRsync
    from remote_tool.transport.sync.local_run import Selection
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.push_options import PushOptions

STATE_LIMIT = 512 * MEBIBYTE
LONG_STEP_SECONDS = 600.0
LONGEST_NOTICE = 300
# If the listing takes longer, somebody may have changed the server's files since they were compared.
FRESH_SECONDS = 5.0
SHOWN_JOBS = 3


@dataclass(frozen=True)
class Progress:
    """The progress of a sync.

    Attributes:
        files: Files and links processed so far.
        files_total: Files and links of the project; those that the server has are skipped silently.
        bytes: Sent to the server over the network.
        name: The last sent file.
        done: Bytes of files that have arrived, or existed and only had to be compared.
        total: Bytes of all files to send; 0 if unknown.
    """

    files: int
    files_total: int
    bytes: int
    name: str
    done: int
    total: int


@dataclass(frozen=True)
class PushResult:
    """The result of a sync or a dry run.

    Attributes:
        server: Its name.
        snapshot: The snapshot that the server has now.
        sent: Names of files and links that were sent, or whose permissions were set.
        removed: Names of files that were sent earlier, are gone here, and were removed there.
        bytes: Sent from here to the server over the network.
        skipped: Names of files that were left out although no rule of the user says so, with reasons.
        warnings: Messages for the user.
        relayed: Bytes of the sent files that came from another server.
        relayed_by: That server; empty if none.
    """

    server: str
    snapshot: str
    sent: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    bytes: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    relayed: int = 0
    relayed_by: str = ""

    @property
    def changed(self) -> bool:
        return bool(self.sent or self.removed)


OnProgress = Callable[[Progress], None]
OnOutput = Callable[[bytes], None]
GetSnapshot = Callable[[], Awaitable["Snapshot"]]


async def push(
    host: Host,
    remote: RemotePaths,
    snapshot: Snapshot | GetSnapshot,
    options: PushOptions,
    on_progress: OnProgress = lambda _progress: None,
    on_output: OnOutput = lambda _data: None,
) -> PushResult:
    """Make the server's copy equal to a snapshot; remove there only files that were sent earlier and are gone here.

    Files that were changed on the server are kept; see :mod:`server_changes`. If the snapshot is still being taken,
    the server compares its copy with the last one meanwhile.

    Raises:
        SyncError: The copy is incomplete; the server's state of the sync says so.
        ConnectionLostError: The connection was lost.
    """
    return await _Push(host, remote, options, on_progress, on_output).run(snapshot)


class _Push:
    """One sync to one server."""

    def __init__(
        self,
        host: Host,
        remote: RemotePaths,
        options: PushOptions,
        on_progress: OnProgress,
        on_output: OnOutput,
    ) -> None:
        self._host = host
        self._remote = remote
        self._options = options
        self._on_progress = on_progress
        self._on_output = on_output
        self._attempt = Attempt(
            "", secrets.token_hex(16), own_name(), options.workspace.line if options.workspace else ""
        )
        self._sent: dict[str, None] = {}
        self._removed: list[str] = []
        self._bytes = 0
        # It reports its own progress, which omits the part of a file that the server already has.
        self._local_run: LocalRun | None = None
        self._total = 0
        self._relayed = Relayed()
        self._warnings: list[str] = []

    async def run(self, snapshot: Snapshot | GetSnapshot) -> PushResult:
        earlier = await asyncio.to_thread(last_sync.recall, self._options.known) if self._options.known else None
        if callable(snapshot):
            await self._transfer(comparable(earlier, self._options), partial(self._send_snapshot, snapshot, earlier))
        else:
            self._begin(snapshot, earlier)
            await self._transfer(self._plan.expected.values())
        if self._plan.changes.refused:
            raise self._plan.changes.refusal(self._host.name, self._options.only_adds)
        if self._options.dry_run:
            self._removed = [os.fsdecode(name) for name in self._plan.leftovers.stale_files]
        return PushResult(
            server=self._host.name,
            snapshot=self._snapshot.id,
            sent=tuple(self._sent),
            removed=tuple(self._removed),
            bytes=self._bytes,
            skipped=self._snapshot.skipped,
            warnings=tuple(self._warnings),
            relayed=self._relayed.size,
            relayed_by=self._relayed.source,
        )

    def _begin(self, snapshot: Snapshot, earlier: KnownCopy | None) -> None:
        self._snapshot = snapshot
        self._attempt = replace(self._attempt, snapshot_id=snapshot.id)
        self._plan = TransferPlan(self._host.name, self._remote, snapshot, self._options, earlier)

    async def _send_snapshot(self, get: GetSnapshot, earlier: KnownCopy | None, bridge: Bridge) -> None:
        began = time.monotonic()
        with bridge.unhurried():
            self._begin(await get(), earlier)
        again, compare = time.monotonic() - began > FRESH_SECONDS, not self._options.checksum
        await bridge.tell(server_script.snapshot_words(self._snapshot.copy, compare=compare, again=again))

    async def _transfer(
        self, known: Iterable[KnownCopy], prepare: Callable[[Bridge], Awaitable[None]] | None = None
    ) -> None:
        """Get the server's state, send missing files with rsync, and raise any error."""
        script = server_script.receive_script(self._remote, self._attempt, [*known], dry_run=self._options.dry_run)
        mark = server_state.end_of_state(self._attempt.mark)
        async with self._host.open(script, label="rsync") as channel:
            bridge = Bridge(self._host.name, channel, mark, self._count_bytes, self._read_notices)
            async with bridge.attended():
                if prepare is not None:
                    await prepare(bridge)
                answer = await bridge.read_answer()
                if answer is None:
                    self._raise_if_failed(bridge, STREAM_BROKE, await bridge.end(), b"")
                else:
                    await self._take_state(answer)
                    if kept := await self._plan.leave_out_changes(partial(self._ask, bridge)):
                        self._warnings.append(kept_warning(kept))
                    await self._relay_files(bridge)
                    await self._complete_partial_files(bridge)
                    await self._send(bridge)

    async def _take_state(self, answer: bytes) -> None:
        """Process the server's state; remove stale files that block others."""
        await asyncio.to_thread(self._plan.compare, answer)
        if (gone := self._plan.leftovers.stale_files) and not self._snapshot.file_count:
            raise SyncError(
                f"The project folder {self._snapshot.root} has no files, "
                f"so {len(gone)} would be removed from {self._host.name}",
                hint="Is this the right folder, and is its disk mounted?",
                server=self._host.name,
            )
        if self._plan.leftovers.blocking and not self._options.dry_run:
            records = server_state.stale_records(self._plan.state, self._plan.leftovers.stale)
            script = server_script.remove_script(self._remote)
            removed = server_script.parse_finish(await self._run(script, records, "remove stale files"))[0]
            stay = tuple(name for name in gone if os.fsdecode(name) not in removed)
            self._removed += removed
            self._plan.leftovers = Leftovers(kept=self._plan.leftovers.kept + stay)

    async def _ask(self, bridge: Bridge, words: bytes, on_data: Callable[[bytes], None] = lambda _data: None) -> bytes:
        answer = await bridge.ask(words, on_data)
        if answer is None:
            self._raise_if_failed(bridge, STREAM_BROKE, await bridge.end(), b"")
        return answer or b""

    async def _relay_files(self, bridge: Bridge) -> None:
        """Have another server send missing files, which rsync need not send then."""
        if self._options.relay is None or self._options.dry_run:
            return
        asking = Asking(partial(self._ask, bridge), bridge.unhurried)
        self._relayed = await self._options.relay(asking, self._snapshot, self._plan.lacking_bytes())
        self._sent |= dict.fromkeys(sorted(os.fsdecode(name) for name in self._relayed.names))
        self._plan.drop_relayed(self._relayed.names)

    async def _complete_partial_files(self, bridge: Bridge) -> None:
        """Send the rest of large files of which an interrupted sync left part on the server."""
        if not (places := self._plan.partial_files()):
            return
        records = b"".join(b"0 0 %b\0" % place for place in places)
        question = server_script.question(server_script.LOOK, records)
        found = server_script.parse_found(await self._ask(bridge, question)) or {}
        if not await bridge.send_all(interrupted_files.missing_parts(self._snapshot, places, found)):
            self._raise_if_failed(bridge, STREAM_BROKE, await bridge.end(), b"")

    async def _send(self, bridge: Bridge) -> None:
        """Send the wanted files, and have the server record them."""
        if self._plan.is_done:
            await bridge.end()
            return
        if self._plan.wanted == []:
            await bridge.skip_rsync(server_script.receive_words([]))
            self._raise_if_failed(bridge, 0, bridge.exit, b"")
        else:
            await self._run_rsync(bridge)
        if not self._options.dry_run:
            await self._finish(bridge)

    async def _run_rsync(self, bridge: Bridge) -> None:
        rsync, plan = await find_local_rsync(), self._plan
        if not rsync.is_original:
            plan.wanted = None
        self._total = plan.bytes_to_send(relayed=bool(self._relayed.names))
        ending = await self._run_once(bridge, rsync, plan.selection)
        if ending.status == SOME_NOT_SENT and bridge.stdin_shared and rsync.is_original:
            ending = await self._send_another_way(bridge, rsync, ending)
        self._raise_at(bridge, ending)

    async def _run_once(self, bridge: Bridge, rsync: LocalRsync, selection: Selection) -> Ending:
        self._local_run = LocalRun(rsync, selection, self._options, self._take_items, self._sent)
        status, errors = await self._local_run.run(bridge)
        self._on_output(errors + bridge.errors)
        return Ending(self._host.name, status, bridge.exit, errors, bridge.errors)

    async def _send_another_way(self, bridge: Bridge, rsync: LocalRsync, ending: Ending) -> Ending:
        """Run rsync again for what it can send; return how the last run ended."""
        selections = await self._plan.another_way(partial(self._ask_again, bridge))
        if selections is None:
            return ending
        for number, selection in enumerate(selections):
            if number:
                self._raise_at(bridge, ending)
                await bridge.tell(server_script.again_words(self._attempt))
            ending = await self._run_once(bridge, rsync, selection)
        return ending if selections else replace(ending, local=0, remote=None)

    async def _ask_again(self, bridge: Bridge, words: bytes) -> bytes:
        bridge.errors = b""
        return await self._ask(bridge, server_script.again_words(self._attempt) + words)

    def _take_items(self, lines: bytes) -> None:
        self._on_output(lines)
        self._report_progress()

    def _raise_if_failed(self, bridge: Bridge, local: int, remote: Exit | None, errors: bytes) -> None:
        """Raise an error if the sync failed."""
        self._raise_at(bridge, Ending(self._host.name, local, remote, errors, bridge.errors))

    def _raise_at(self, bridge: Bridge, ending: Ending) -> None:
        failure = bridge.error or ending.failure()
        if failure is not None:
            raise failure
        if ending.status == SOME_VANISHED:
            self._warnings.append("some local files disappeared before they were sent")

    async def _finish(self, bridge: Bridge) -> None:
        """Have the server remove stale files, record the sent files, and mark the copy as complete."""
        left = await asyncio.to_thread(self._plan.copy_left, self._sent)
        sent = left.sent_list + server_state.stale_records(self._plan.state, self._plan.leftovers.kept)
        stale = server_state.stale_records(self._plan.state, self._plan.leftovers.stale)
        all_sent = not self._plan.changes.refused
        words = server_script.commit_words(self._attempt, len(sent), len(stale), all_sent=all_sent)
        answer = await self._commit(bridge, words, sent, stale)
        if self._options.known is not None:
            last_sync.note(self._options.known, left)
        if self._options.begun is not None:
            interrupted_sync.forget(self._options.begun)
        if held := self._plan.newly_held_back():
            self._warnings.append(_held_back_warning(self._host.name, held))
        removed, running = server_script.parse_finish(answer)
        self._removed += removed
        if (room := server_script.parse_room(answer)) is not None:
            self._options.on_room(*room)
        if running and (self._sent or self._removed):
            self._warnings.append(_running_warning(running))

    async def _commit(self, bridge: Bridge, *words: bytes) -> bytes:
        if not bridge.stdin_shared:
            script = server_script.finish_script(self._remote, self._attempt)
            return await self._run(script, b"".join(words), "record the sent files")
        answer = await bridge.send_last(*words)
        if (await bridge.end()).status != 0:
            raise self._incomplete(bridge.errors.decode(errors="replace").strip().rpartition("\n")[2])
        return answer

    async def _run(self, script: str, stdin: bytes, label: str) -> bytes:
        try:
            answer = await self._host.run(
                script, stdin=stdin, timeout=LONG_STEP_SECONDS, limit=STATE_LIMIT, label=label
            )
        except RemoteCommandError as error:
            raise self._incomplete(str(error)) from error
        return answer.stdout

    def _incomplete(self, why: str) -> SyncError:
        server = self._host.name
        message = f"{server}: the files were sent, but the sync could not be completed: {why}"
        return SyncError(message, hint=self._options.only_adds or f"remote-tool rsync --server {server}", server=server)

    def _read_notices(self, data: bytes) -> None:
        # The server's shell writes the notice at once, before rsync starts.
        for line in data.decode(errors="replace").splitlines():
            if line.startswith(server_script.WAITING):
                self._options.on_waiting(printable(line)[:LONGEST_NOTICE])
            elif line.startswith(server_script.ELSEWHERE):
                old = printable(line.removeprefix(server_script.ELSEWHERE))
                self._options.on_waiting(renamed_notice(self._host.name, old, self._remote.project))

    def _count_bytes(self, count: int) -> None:
        self._bytes += count
        self._report_progress()

    def _report_progress(self) -> None:
        name = next(reversed(self._sent), "")
        done = (self._local_run.done if self._local_run else 0) or self._bytes
        self._on_progress(Progress(len(self._sent), self._snapshot.file_count, self._bytes, name, done, self._total))


def _running_warning(ids: Sequence[str]) -> str:
    listed = ", ".join(f"job {job_id}" for job_id in sorted(ids)[:SHOWN_JOBS]) + (
        ", …" if len(ids) > SHOWN_JOBS else ""
    )
    jobs = "a job is" if len(ids) == 1 else f"{len(ids)} jobs are"
    return f"{jobs} running in the folder that was updated and will load the new files from now on ({listed})"


def _held_back_warning(server: str, names: Sequence[bytes]) -> str:
    words = " ".join(shlex.quote(os.fsdecode(name)) for name in names)
    command = shlex.quote(f"rm -r -- {words}")
    return (
        f"sent by an earlier sync, but no longer sent: {', '.join(os.fsdecode(name) for name in names)}; "
        f"to remove it from the server: remote-tool run --server {server} --cmd {command}"
    )
