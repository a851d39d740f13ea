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

from remote_tool.errors import ConnectError, RemoteCommandError, SyncError
from remote_tool.transport import begun, rsync_server, rsync_shell
from remote_tool.transport.endpoint import printable
from remote_tool.transport.local_rsync import environment, find_local_rsync
from remote_tool.transport.rsync_bridge import Bridge
from remote_tool.transport.rsync_failures import SOME_VANISHED, Ending
from remote_tool.transport.rsync_server import Attempt, Leftovers, SyncState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from remote_tool.paths import RemotePaths
    from remote_tool.transport.host import Host
    from remote_tool.transport.local_rsync import LocalRsync
    from remote_tool.transport.snapshot import Snapshot

MEBIBYTE = 1024 * 1024
STATE_LIMIT = 512 * MEBIBYTE
LONG_STEP_SECONDS = 600.0
LONGEST_NOTICE = 300
SHOWN_JOBS = 3


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
    """

    dry_run: bool = False
    checksum: bool = False
    on_waiting: Callable[[str], None] = lambda _text: None
    begun: Path | None = None


@dataclass(frozen=True)
class PushResult:
    """What a sync did, or would do.

    Attributes:
        server: Where.
        snapshot: Which state of the project the server has now.
        sent: Names of files and links that were sent, or whose permissions were set.
        removed: Names of files that were sent earlier, are gone here, and were removed there.
        bytes: On the wire, to the server.
        skipped: What was left out though no rule of the user says so: name and why.
        warnings: What is worth knowing.
    """

    server: str
    snapshot: str
    sent: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    bytes: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()

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
        self._sent: list[str] = []
        self._removed: list[str] = []
        self._bytes = 0
        self._warnings: list[str] = []

    async def run(self) -> PushResult:
        if not self._files_total:
            await self._refuse_to_remove_all()
        await self._transfer()
        if self._options.dry_run:
            self._removed = [os.fsdecode(name) for name in self._leftovers.stale_files]
        elif not self._was_whole:
            await self._finish()
        return PushResult(
            server=self._host.name,
            snapshot=self._snapshot.id,
            sent=tuple(self._sent),
            removed=tuple(self._removed),
            bytes=self._bytes,
            skipped=self._snapshot.skipped,
            warnings=tuple(self._warnings),
        )

    @property
    def _was_whole(self) -> bool:
        return self._state.complete == self._snapshot.id

    async def _refuse_to_remove_all(self) -> None:
        script = rsync_server.state_script(self._remote, "", self._attempt.mark)
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
        """Run both rsyncs to their ends and say what went wrong, if something did."""
        rsync = await find_local_rsync()
        bridge = Bridge(
            self._host,
            self._receive_script,
            rsync_server.end_of_state(self._attempt.mark),
            self._take_state,
            self._count_bytes,
            self._hear,
        )
        local, errors = await self._run_rsync(rsync, bridge)
        self._on_output(errors + bridge.errors)
        ending = Ending(self._host.name, local, bridge.exit, errors, bridge.errors)
        failure = bridge.error or ending.failure()
        if failure is not None:
            await self._note_unfinished(bridge)
            raise failure
        if ending.status == SOME_VANISHED:
            self._warnings.append("some files were gone here before they were sent")

    def _receive_script(self, arguments: Sequence[str]) -> str:
        # The first is the word "rsync".
        return rsync_server.receive_script(self._remote, self._attempt, arguments[1:], dry_run=self._options.dry_run)

    async def _take_state(self, answer: bytes) -> None:
        """Take what the server says was sent; make room where a file must go that was a folder."""
        self._state, self._leftovers = await asyncio.to_thread(self._compare, answer)
        if self._leftovers.blocking and not self._options.dry_run:
            records = rsync_server.stale_records(self._state, self._leftovers.stale)
            script = rsync_server.remove_script(self._remote)
            self._removed += rsync_server.parse_finish(await self._run(script, records, "remove stale files"))[0]
            self._leftovers = Leftovers(kept=self._leftovers.kept)

    def _compare(self, answer: bytes) -> tuple[SyncState, Leftovers]:
        state = rsync_server.parse_state(answer)
        file = self._options.begun
        if file is not None and not self._options.dry_run and state.complete != self._snapshot.id:
            earlier = begun.recall(file)
            state = replace(state, begun=rsync_server.parse_records(earlier))
            begun.note(file, earlier + self._snapshot.sent_list)
        return state, rsync_server.find_leftovers(state, self._snapshot)

    async def _finish(self) -> None:
        """Remove what is stale, remember what was sent, and say that the copy is whole."""
        kept = rsync_server.stale_records(self._state, self._leftovers.kept)
        sent = self._snapshot.sent_list + kept
        stale = rsync_server.stale_records(self._state, self._leftovers.stale)
        script = rsync_server.finish_script(self._remote, self._attempt, len(sent), len(stale))
        answer = await self._run(script, sent + stale, "remember what was sent")
        if self._options.begun is not None:
            begun.forget(self._options.begun)
        removed, running = rsync_server.parse_finish(answer)
        self._removed += removed
        if running and (self._sent or self._removed):
            self._warnings.append(_tell_running(running))

    async def _run(self, script: str, stdin: bytes, label: str) -> bytes:
        try:
            answer = await self._host.run(
                script, stdin=stdin, timeout=LONG_STEP_SECONDS, limit=STATE_LIMIT, label=label
            )
        except RemoteCommandError as error:
            raise SyncError(
                f"The project was sent, but not all that belongs to it: {error}",
                hint=f"remote-tool rsync --server {self._host.name}",
                server=self._host.name,
            ) from error
        return answer.stdout

    async def _note_unfinished(self, bridge: Bridge) -> None:
        """Tell the server that its copy is not whole, when it could not know: it was, and its rsync ended well."""
        if self._options.dry_run or not self._was_whole or bridge.exit is None or bridge.exit.status != 0:
            return
        with suppress(RemoteCommandError, ConnectError):
            script = rsync_server.unfinished_script(self._remote, self._attempt)
            await self._host.run(script, label="remember what was not sent")

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
        with ours:
            with theirs:
                # A session of its own: Ctrl-C reaches us, and we end it.
                process = await asyncio.create_subprocess_exec(
                    *self._command(rsync),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env={**environment(), rsync_shell.SOCKET_VARIABLE: str(theirs.fileno())},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(bridge.serve(ours))
                    errors = group.create_task(self._attend(rsync, process))
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
            *("-rlptO", "--safe-links", "-0", "--exclude-from=-", "-e", shell),
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

    async def _attend(self, rsync: LocalRsync, process: asyncio.subprocess.Process) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed(process.stdin))
            group.create_task(self._read_items(rsync, process.stdout))
            errors = group.create_task(process.stderr.read())
        await process.wait()
        return errors.result()

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        # rsync that ends early leaves the rest unread; its exit status says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(self._snapshot.rules)
            await stdin.drain()
        stdin.close()

    async def _read_items(self, rsync: LocalRsync, stdout: asyncio.StreamReader) -> None:
        async for line in _lines(stdout):
            self._on_output(line)
            item = rsync.parse_item(line)
            if item is not None and not item.is_folder:
                self._sent.append(os.fsdecode(item.name))
                self._tell_progress()


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


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Read lines; one that is too long for the buffer comes in pieces."""
    while True:
        try:
            yield await stream.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            yield await stream.readexactly(error.consumed)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                yield error.partial
            return
