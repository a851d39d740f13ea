"""Sends a project with the real rsync, through the connection that is open already."""

from __future__ import annotations

import asyncio
import getpass
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import RemoteCommandError, SyncError
from remote_tool.transport import begun, known_copy, rsync_server, rsync_shell
from remote_tool.transport.endpoint import printable
from remote_tool.transport.local_rsync import environment, find_local_rsync, scratch_file
from remote_tool.transport.relayed import Asking, Relayed
from remote_tool.transport.rsync_bridge import Bridge
from remote_tool.transport.rsync_failures import SOME_VANISHED, STREAM_BROKE, Ending
from remote_tool.transport.rsync_server import Attempt, Leftovers, SyncState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.paths import RemotePaths
    from remote_tool.transport.host import Exit, Host
    from remote_tool.transport.known_copy import KnownCopy
    from remote_tool.transport.local_rsync import LocalRsync
    from remote_tool.transport.relayed import Relay
    from remote_tool.transport.snapshot import Snapshot

MEBIBYTE = 1024 * 1024
STATE_LIMIT = 512 * MEBIBYTE
LONG_STEP_SECONDS = 600.0
LONGEST_NOTICE = 300
SHOWN_JOBS = 3
MOMENT = 0.01


@dataclass(frozen=True)
class Progress:
    """How far a sync is.

    Attributes:
        files: Files and links that have been dealt with.
        files_total: Files and links of the project; those that the server has are passed over without a word.
        bytes: On the wire, to the server.
        name: The one that was sent last.
    """

    files: int
    files_total: int
    bytes: int
    name: str


@dataclass(frozen=True)
class PushOptions:
    """How to send.

    Attributes:
        dry_run: Change nothing on the server, only say what would change.
        checksum: Compare contents, not sizes and times.
        on_waiting: Told for whom, when somebody else sends to the same place.
        begun: Where it is noted what is being sent, until the server has noted it.
        known: Where it is noted what the server has.
        relay: Brings from another server what this one lacks, before rsync compares.
    """

    dry_run: bool = False
    checksum: bool = False
    on_waiting: Callable[[str], None] = lambda _text: None
    begun: Path | None = None
    known: Path | None = None
    relay: Relay | None = None


@dataclass(frozen=True)
class PushResult:
    """What a sync did, or would do.

    Attributes:
        server: Where.
        snapshot: Which state of the project the server has now.
        sent: Names of files and links that were sent, or whose permissions were set.
        removed: Names of files that were sent earlier, are gone here, and were removed there.
        bytes: On the wire, from here to the server.
        skipped: What was left out though no rule of the user says so: name and why.
        warnings: What is worth knowing.
        relayed: Bytes of the sent files that came from another server.
        relayed_by: That server; empty for none.
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


async def push(
    host: Host,
    remote: RemotePaths,
    snapshot: Snapshot,
    options: PushOptions,
    on_progress: OnProgress = lambda _progress: None,
    on_output: OnOutput = lambda _data: None,
) -> PushResult:
    """Make the server's copy equal to a snapshot; remove there only what was sent earlier and is gone here.

    Raises:
        SyncError: It is not; the server then says so in its state of the sync.
        ConnectionLostError: The link went.
    """
    return await _Push(host, remote, snapshot, options, on_progress, on_output).run()


class _Push:
    """One sync of one server."""

    def __init__(
        self,
        host: Host,
        remote: RemotePaths,
        snapshot: Snapshot,
        options: PushOptions,
        on_progress: OnProgress,
        on_output: OnOutput,
    ) -> None:
        self._host = host
        self._remote = remote
        self._snapshot = snapshot
        self._options = options
        self._on_progress = on_progress
        self._on_output = on_output
        self._attempt = Attempt(snapshot.id, secrets.token_hex(16), _own_name())
        self._state = SyncState()
        self._leftovers = Leftovers()
        self._files_total = snapshot.file_count
        # What rsync is to send; None: whatever it finds.
        self._wanted: list[bytes] | None = None
        self._sent: list[str] = []
        self._removed: list[str] = []
        self._bytes = 0
        self._relayed = Relayed()
        self._warnings: list[str] = []

    async def run(self) -> PushResult:
        if not self._files_total:
            await self._refuse_to_remove_all()
        await self._transfer()
        if self._options.dry_run:
            self._removed = [os.fsdecode(name) for name in self._leftovers.stale_files]
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

    @property
    def _was_whole(self) -> bool:
        return self._state.complete == self._snapshot.id

    @property
    def _is_so(self) -> bool:
        return self._was_whole and self._state.same

    async def _refuse_to_remove_all(self) -> None:
        script = rsync_server.state_script(self._remote, self._attempt.mark)
        answer = await self._host.run(script, label="what was sent", limit=STATE_LIMIT)
        state = rsync_server.parse_state(answer.stdout.partition(rsync_server.end_of_state(self._attempt.mark))[0])
        gone = rsync_server.find_leftovers(state, self._snapshot).stale_files
        if gone:
            raise SyncError(
                f"The project folder {self._snapshot.root} has no files, "
                f"so {len(gone)} would be removed from {self._host.name}",
                hint="Is this the right folder, and is its disk there?",
                server=self._host.name,
            )

    async def _transfer(self) -> None:
        """Learn what the server has, have rsync send what it lacks, and say what went wrong, if something did."""
        expected = await asyncio.to_thread(self._expect)
        dry_run, relayed = self._options.dry_run, self._options.relay is not None
        script = rsync_server.receive_script(
            self._remote, self._attempt, [*expected.values()], dry_run=dry_run, relayed=relayed
        )
        mark = rsync_server.end_of_state(self._attempt.mark)
        async with self._host.open(script, label="rsync") as channel:
            bridge = Bridge(self._host.name, channel, mark, self._count_bytes, self._hear)
            async with bridge.attended():
                answer = await bridge.read_answer()
                if answer is None:
                    self._fail_of(bridge, STREAM_BROKE, await bridge.end(), b"")
                else:
                    await self._take_state(answer, expected)
                    await self._have_relayed(bridge)
                    await self._make_so(bridge)

    def _expect(self) -> dict[str, KnownCopy]:
        """Return how the copy may look, by snapshot."""
        if self._options.checksum:
            return {}
        wanted = self._snapshot.copy
        earlier = known_copy.recall(self._options.known) if self._options.known else None
        return {wanted.snapshot_id: wanted} | ({earlier.snapshot_id: earlier} if earlier else {})

    async def _take_state(self, answer: bytes, expected: Mapping[str, KnownCopy]) -> None:
        """Take what the server says it has; make room where a file must go that was a folder."""
        await asyncio.to_thread(self._compare, answer, expected)
        if self._leftovers.blocking and not self._options.dry_run:
            records = rsync_server.stale_records(self._state, self._leftovers.stale)
            script = rsync_server.remove_script(self._remote)
            self._removed += rsync_server.parse_finish(await self._run(script, records, "remove stale files"))[0]
            self._leftovers = Leftovers(kept=self._leftovers.kept)

    def _compare(self, answer: bytes, expected: Mapping[str, KnownCopy]) -> None:
        state = rsync_server.parse_state(answer)
        if state.same and state.complete in expected:
            self._wanted, gone = self._snapshot.changes_since(expected[state.complete])
            state = replace(state, sent={**state.sent, **rsync_server.parse_records(gone)})
        file = self._options.begun
        if state.complete == self._snapshot.id:
            state = replace(state, sent={})
        elif file is not None and not self._options.dry_run:
            earlier = begun.recall(file)
            state = replace(state, begun=rsync_server.parse_records(earlier))
            begun.note(file, earlier + self._snapshot.sent_list)
        self._state, self._leftovers = state, rsync_server.find_leftovers(state, self._snapshot)

    async def _have_relayed(self, bridge: Bridge) -> None:
        """Have another server bring what this one lacks: what is in its place then, rsync need not send."""

        async def ask(words: bytes, heard: Callable[[bytes], None]) -> bytes:
            answer = await bridge.ask(words, heard)
            if answer is None:
                self._fail_of(bridge, STREAM_BROKE, await bridge.end(), b"")
            return answer or b""

        if self._options.relay is None or self._options.dry_run:
            return
        self._relayed = await self._options.relay(Asking(ask, bridge.unhurried), self._snapshot, self._lacking_bytes())
        self._sent += sorted(os.fsdecode(name) for name in self._relayed.names)
        if self._wanted is not None:
            self._wanted = [name for name in self._wanted if name not in self._relayed.names]

    def _lacking_bytes(self) -> int:
        """Return how much the server lacks; all, when nobody knows what it has."""
        if self._is_so:
            return 0
        wanted = None if self._wanted is None else frozenset(self._wanted)
        return sum(entry.size for entry in self._snapshot.entries if wanted is None or entry.name in wanted)

    async def _make_so(self, bridge: Bridge) -> None:
        """Send what is wanted, and have the server remember it."""
        if self._is_so:
            await bridge.end()
            return
        errors = b""
        if self._wanted == []:
            await bridge.have_nothing_sent(rsync_server.receive_words([]))
            self._fail_of(bridge, 0, bridge.exit, b"")
        else:
            rsync = await find_local_rsync()
            if not rsync.is_original:
                self._wanted = None
            local, errors = await self._run_rsync(rsync, bridge)
            self._on_output(errors + bridge.errors)
            self._fail_of(bridge, local, bridge.exit, errors)
        if not self._options.dry_run:
            await self._finish(bridge)

    def _fail_of(self, bridge: Bridge, local: int, remote: Exit | None, errors: bytes) -> None:
        """Raise what went wrong, if something did."""
        ending = Ending(self._host.name, local, remote, errors, bridge.errors)
        failure = bridge.error or ending.failure()
        if failure is not None:
            raise failure
        if ending.status == SOME_VANISHED:
            self._warnings.append("some files were gone here before they were sent")

    async def _finish(self, bridge: Bridge) -> None:
        """Have the server remove what is stale, remember what was sent, and know that the copy is whole."""
        sent, stale = b"", b""
        if not self._was_whole:
            sent = self._snapshot.sent_list + rsync_server.stale_records(self._state, self._leftovers.kept)
            stale = rsync_server.stale_records(self._state, self._leftovers.stale)
        words = rsync_server.whole_words(self._attempt, None if self._was_whole else len(sent), len(stale))
        answer = await self._say_last(bridge, words + sent + stale)
        if self._options.known is not None:
            known_copy.note(self._options.known, self._snapshot.copy)
        if self._options.begun is not None:
            begun.forget(self._options.begun)
        removed, running = rsync_server.parse_finish(answer)
        self._removed += removed
        if running and (self._sent or self._removed):
            self._warnings.append(_tell_running(running))

    async def _say_last(self, bridge: Bridge, words: bytes) -> bytes:
        if not bridge.script_stays:
            script = rsync_server.finish_script(self._remote, self._attempt)
            return await self._run(script, words, "remember what was sent")
        answer = await bridge.say_last(words)
        if (await bridge.end()).status != 0:
            raise self._not_all(bridge.errors.decode(errors="replace").strip().rpartition("\n")[2])
        return answer

    async def _run(self, script: str, stdin: bytes, label: str) -> bytes:
        try:
            answer = await self._host.run(
                script, stdin=stdin, timeout=LONG_STEP_SECONDS, limit=STATE_LIMIT, label=label
            )
        except RemoteCommandError as error:
            raise self._not_all(str(error)) from error
        return answer.stdout

    def _not_all(self, why: str) -> SyncError:
        server = self._host.name
        message = f"{server}: the project was sent, but not all that belongs to it: {why}"
        return SyncError(message, hint=f"remote-tool rsync --server {server}", server=server)

    def _hear(self, data: bytes) -> None:
        # It is one short write of the server's shell, before rsync begins.
        for line in data.decode(errors="replace").splitlines():
            if line.startswith(rsync_server.WAITING):
                self._options.on_waiting(printable(line)[:LONGEST_NOTICE])

    def _count_bytes(self, count: int) -> None:
        self._bytes += count
        self._tell_progress()

    def _tell_progress(self) -> None:
        name = self._sent[-1] if self._sent else ""
        self._on_progress(Progress(len(self._sent), self._files_total, self._bytes, name))

    # The local rsync

    async def _run_rsync(self, rsync: LocalRsync, bridge: Bridge) -> tuple[int, bytes]:
        """Run the local rsync; return its status and what it said on stderr."""
        ours, theirs = socket.socketpair()
        with ours, scratch_file() as items:
            with theirs:
                # A session of its own: Ctrl-C reaches us, and we end it.
                process = await asyncio.create_subprocess_exec(
                    *self._command(rsync),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=items,
                    stderr=asyncio.subprocess.PIPE,
                    env={**environment(), rsync_shell.SOCKET_VARIABLE: str(theirs.fileno())},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )

            async def ended_well() -> bool:
                # The stand-in still has its streams, for which the process's own wait would wait.
                while process.returncode is None:  # noqa: ASYNC110 - another program's doing
                    await asyncio.sleep(MOMENT)
                return process.returncode in {0, SOME_VANISHED}

            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(bridge.serve(ours, rsync_server.receive_words, ended_well))
                    errors = group.create_task(self._attend(rsync, process, items.fileno()))
            except BaseExceptionGroup as problems:
                raise problems.exceptions[0] from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0, errors.result()

    def _command(self, rsync: LocalRsync) -> list[str]:
        shell = " ".join(_quoted(word) for word in (sys.executable, "-I", "-S", str(Path(rsync_shell.__file__))))
        return [
            rsync.program,
            *self._selection(shell),
            # Interrupted files are taken up again.
            f"--partial-dir={rsync_server.PARTIAL_FOLDER}",
            *rsync.item_options,
            *rsync.mode_options,
            *rsync.plain_arguments,
            *(["-n"] if self._options.dry_run else []),
            *(["-c"] if self._options.checksum else []),
            f"{self._snapshot.root}/",
            "server:.",
        ]

    def _selection(self, shell: str) -> Sequence[str]:
        if self._wanted is not None:
            # What is named is not as it was: rsync's own look, by size and second, may miss that.
            return ("-lptO", "-I", "--safe-links", "-0", "--files-from=-", "-e", shell)
        return (*("-rlptO", "--safe-links", "-0", "--exclude-from=-", "-e", shell),)

    async def _attend(self, rsync: LocalRsync, process: asyncio.subprocess.Process, items: int) -> bytes:
        assert process.stdin is not None
        assert process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed(process.stdin))
            group.create_task(self._read_items(rsync, process, items))
            errors = group.create_task(process.stderr.read())
        await process.wait()
        return errors.result()

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        # rsync that ends early leaves the rest unread; its exit status says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            chosen = None if self._wanted is None else b"".join(name.rstrip(b"/") + b"\0" for name in self._wanted)
            stdin.write(self._snapshot.rules if chosen is None else chosen)
            await stdin.drain()
        stdin.close()

    async def _read_items(self, rsync: LocalRsync, process: asyncio.subprocess.Process, items: int) -> None:
        """Look now and then at what rsync has said of files: of a first sync as many lines as there are files."""
        rest, position, has_ended = b"", 0, False
        while not has_ended:
            # Not by waiting for it, as above.
            has_ended = process.returncode is not None
            while data := os.pread(items, MEBIBYTE, position):
                position += len(data)
                self._on_output(data)
                *lines, rest = (rest + data).split(b"\n")
                found = filter(None, map(rsync.parse_item, lines))
                self._sent += [os.fsdecode(item.name) for item in found if not item.is_folder]
                self._tell_progress()
            await asyncio.sleep(MOMENT)


def _own_name() -> str:
    """Who we are, for others who have to wait."""
    return printable(f"{getpass.getuser()}@{socket.gethostname()}")


def _tell_running(ids: Sequence[str]) -> str:
    listed = ", ".join(sorted(ids)[:SHOWN_JOBS]) + (", …" if len(ids) > SHOWN_JOBS else "")
    what = "a job runs" if len(ids) == 1 else f"{len(ids)} jobs run"
    return f"{what} in the folder whose files were changed: what is loaded there from now on is new ({listed})"


def _quoted(word: str) -> str:
    """Quote a word for ``rsync -e``, which doubles a quote inside of quotes."""
    return '"' + word.replace('"', '""') + '"'
