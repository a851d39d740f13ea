"""Sends a project with the real rsync, through the connection that is open already."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import ConnectError, RemoteToolError, SyncError
from remote_tool.transport import rsync_shell
from remote_tool.transport.host import Stream
from remote_tool.transport.snapshot import Entry, Snapshot, is_gnu_rsync, local_rsync, rsync_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from remote_tool.paths import RemotePaths
    from remote_tool.transport.host import Channel, Host

CHUNK = 256 * 1024
LONGEST_REQUEST = 64 * 1024
NO_RSYNC = 127
VANISHED = 24
# Where rsync may lie when the short PATH of a session without a terminal does not have it.
PLACES = ("/usr/local/bin", "/opt/homebrew/bin", "$HOME/.local/bin", "$HOME/miniconda3/bin", "$HOME/miniforge3/bin")
_ITEM = re.compile(rb"([<>ch.*][fdLDS]\S{9}) (.*)", re.DOTALL)

# One sentence per exit status of rsync(1), "EXIT VALUES".
CAUSES = {
    1: "rsync did not understand its options",
    2: "the protocols do not match: a shell start-up file of the server may print text",
    3: "the source or destination cannot be used",
    5: "the server's rsync could not begin",
    10: "the connection between the two rsyncs broke",
    11: "a file could not be written: the disk of the server may be full, or its file system read-only",
    12: "the server's rsync ended too early: it may be missing there, or was killed",
    13: "rsync reported an error",
    14: "the two rsyncs could not talk to each other",
    20: "it was interrupted",
    21: "a program of rsync ended strangely",
    22: "there is not enough memory",
    23: "some files could not be sent",
    25: "too many files would have been removed",
    30: "no bytes came for too long",
    35: "the other side did not answer in time",
    NO_RSYNC: "the server has no rsync",
}
HINTS = {
    11: "remote-tool run --cmd 'df -h .'",
    23: "Look at the lines above: permissions on the server or here",
    NO_RSYNC: "On the server: sudo apt-get install rsync, or conda install -c conda-forge rsync",
}


@dataclass(frozen=True)
class Progress:
    """How far a sync is: bytes on the wire, files begun, the one in hand."""

    files: int
    bytes: int
    name: str


@dataclass(frozen=True)
class PushOptions:
    """How to send.

    Attributes:
        dry_run: Change nothing on the server, only say what would change.
        checksum: Compare contents, not sizes and times.
    """

    dry_run: bool = False
    checksum: bool = False


@dataclass(frozen=True)
class PushResult:
    """What a sync did, or would do.

    Attributes:
        server: Where.
        snapshot: Which state of the project the server has now.
        sent: Names of files and links that were sent.
        removed: Names of files that were sent earlier, are gone here, and were removed there.
        bytes: On the wire, to the server.
        skipped: What was left out for safety: name and why.
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


@dataclass(frozen=True)
class SyncState:
    """What the server remembers of the last sync.

    Attributes:
        complete: The snapshot that it has whole; empty when the last sync did not finish or there was none.
        sent: The files that we sent, when they may differ from the present ones; by name.
    """

    complete: str
    sent: dict[bytes, tuple[int, int]]


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
        SyncError: It is not; the server then says so to every start of a job.
        ConnectionLostError: The link went.
    """
    state = await _ask_state(host, remote, snapshot)
    stale = _stale(state, snapshot)
    if stale and not snapshot.file_count:
        raise SyncError(
            f"The project folder {snapshot.root} has no files, so {len(stale)} would be removed from {host.name}",
            hint="Is this the right folder, and is its disk there?",
            server=host.name,
        )
    transfer = _Transfer(host, remote, snapshot, options, on_progress, on_output)
    await transfer.run()
    removed: Sequence[str] = [os.fsdecode(name) for name in stale if not name.endswith(b"/")]
    if not options.dry_run and state.complete != snapshot.id:
        removed = await _remove(host, remote, state, stale)
        await _mark_complete(host, remote, snapshot)
    return PushResult(
        server=host.name,
        snapshot=snapshot.id,
        sent=tuple(transfer.sent),
        removed=tuple(removed),
        bytes=transfer.bytes,
        skipped=snapshot.skipped,
        warnings=tuple(transfer.warnings),
    )


async def _ask_state(host: Host, remote: RemotePaths, snapshot: Snapshot) -> SyncState:
    script = (
        'cd "$HOME" || exit 1\n'
        f"state=$(cat {shlex.quote(remote.sync_state)} 2>/dev/null)\n"
        'printf "%s\\n" "$state"\n'
        f'[ "$state" = "complete {snapshot.id}" ] || cat {shlex.quote(remote.sent_files)} 2>/dev/null\n'
        "exit 0\n"
    )
    answer = await host.run(script, label="what was sent", limit=256 * 1024 * 1024)
    first, _, rest = answer.stdout.partition(b"\n")
    word, _, name = first.decode(errors="replace").partition(" ")
    return SyncState(name if word == "complete" else "", _parse_sent(rest))


def _parse_sent(text: bytes) -> dict[bytes, tuple[int, int]]:
    sent = {}
    for record in text.split(b"\0"):
        size, _, rest = record.partition(b" ")
        modified, _, name = rest.partition(b" ")
        if size.isdigit() and modified.lstrip(b"-").isdigit() and _is_safe(name):
            sent[name] = (int(size), int(modified))
    return sent


def _is_safe(name: bytes) -> bool:
    return bool(name) and not name.startswith(b"/") and b".." not in name.split(b"/")


def _stale(state: SyncState, snapshot: Snapshot) -> list[bytes]:
    """Return what was sent and is gone here: files first, then folders from the deepest up."""
    present = {entry.name for entry in snapshot.entries} | {name.encode() for name, _ in snapshot.skipped}
    gone = [name for name in state.sent if name not in present]
    return sorted(gone, key=lambda name: (name.endswith(b"/"), -name.count(b"/"), name))


# Each argument is "size time name" as sent. What is no longer as we sent it, or lies behind a link, stays.
_REMOVE = r"""
for record; do
  size=${record%% *}; rest=${record#* }; modified=${rest%% *}; name=${rest#* }
  parent=$name; linked=
  while case $parent in */?*) :;; *) false;; esac; do
    parent=${parent%/*}; [ -L "./$parent" ] && linked=1
  done
  [ -z "$linked" ] || continue
  case $name in */) rmdir "./${name%/}" 2>/dev/null; continue;; esac
  [ -f "./$name" ] || [ -L "./$name" ] || continue
  [ "$(stat -c "%s %Y" "./$name" 2>/dev/null)" = "$size $modified" ] || continue
  rm -f "./$name" && printf "%s\0" "$name"
done
"""


async def _remove(host: Host, remote: RemotePaths, state: SyncState, stale: Sequence[bytes]) -> list[str]:
    if not stale:
        return []
    records = b"".join(b"%d %d %b\0" % (*state.sent[name], name) for name in stale)
    script = f'cd "$HOME"/{shlex.quote(remote.project)} || exit 1\nxargs -0 -n 500 sh -c {shlex.quote(_REMOVE)} sh\n'
    answer = await host.run(script, stdin=records, timeout=600, label="remove stale files")
    return [os.fsdecode(name) for name in answer.stdout.split(b"\0") if name]


async def _mark_complete(host: Host, remote: RemotePaths, snapshot: Snapshot) -> None:
    sent, state = shlex.quote(remote.sent_files), shlex.quote(remote.sync_state)
    script = (
        'cd "$HOME" && umask 077 || exit 1\n'
        f"cat > {sent}.new && mv {sent}.new {sent} || exit 1\n"
        f"echo complete {snapshot.id} > {state}.new && mv {state}.new {state}\n"
    )
    await host.run(script, stdin=snapshot.sent_list, timeout=300, label="remember what was sent")


def server_script(remote: RemotePaths, snapshot: Snapshot, arguments: Sequence[str], *, dry_run: bool) -> str:
    """Return the script that runs the receiving rsync; before a change it notes that the copy is not whole."""
    scripts, state = shlex.quote(remote.scripts), shlex.quote(remote.sync_state)
    conda = f"$HOME/{remote.environment}/bin"
    places = " ".join(f'"{place}"' for place in (*PLACES, conda))
    lines = [
        'cd "$HOME" || exit 3',
        "rsync=$(command -v rsync)",
        f'for place in {places}; do [ -n "$rsync" ] || {{ [ -x "$place/rsync" ] && rsync=$place/rsync; }}; done',
        f'[ -n "$rsync" ] || exit {NO_RSYNC}',
    ]
    if not dry_run:
        lines += [
            f"mkdir -p {shlex.quote(remote.project)} || exit 11",
            f"(umask 077 && mkdir -p {scripts}) || exit 11",
            (
                f'[ "$(cat {state} 2>/dev/null)" = "complete {snapshot.id}" ] || '
                f"{{ echo incomplete {snapshot.id} > {state}.new && mv {state}.new {state}; }} || exit 11"
            ),
        ]
    return "\n".join([*lines, f'exec "$rsync" {shlex.join(arguments)}', ""])


class _Transfer:
    """One run of the local rsync, and the channel that its other half runs in."""

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
        self._channel_error: RemoteToolError | None = None
        self._remote_stderr = b""
        self._remote_status: int | None = None
        self._entries = {entry.name: entry for entry in snapshot.entries}
        self.sent: list[str] = []
        self.bytes = 0
        self.warnings: list[str] = []

    async def run(self) -> None:
        """Run rsync to its end and say what went wrong, if something did."""
        program = local_rsync()
        is_gnu = is_gnu_rsync(program, await rsync_version(program))
        async with self._listening() as path:
            process = await asyncio.create_subprocess_exec(
                *self._command(program, is_gnu=is_gnu),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C", rsync_shell.SOCKET_VARIABLE: path},
            )
            try:
                errors = await self._attend(process)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        self._raise_for_status(process.returncode or 0, errors)

    def _command(self, program: str, *, is_gnu: bool) -> list[str]:
        shell = f'"{sys.executable}" -I -S "{Path(rsync_shell.__file__)}"'
        options = ["-lptO", "--from0", "--files-from=-", "-e", shell]
        if is_gnu:
            # Interrupted files are taken up again; nothing setuid arrives; names come one per line, escaped.
            options += ["--out-format=%i %n", "-i", "--chmod=ug-s,o-t", "--partial-dir=.remote-scripts/partial"]
        else:
            options += ["-v"]
        options += ["-n"] if self._options.dry_run else []
        options += ["-c"] if self._options.checksum else []
        return [program, *options, f"{self._snapshot.root}/", f"server:{self._remote.project}/"]

    async def _attend(self, process: asyncio.subprocess.Process) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed(process.stdin))
            group.create_task(self._read_items(process.stdout))
            errors = group.create_task(process.stderr.read())
        await process.wait()
        return errors.result()

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        # rsync that ends early leaves the rest unread; its exit status says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(b"".join(entry.name + b"\0" for entry in self._snapshot.entries))
            await stdin.drain()
        stdin.close()

    async def _read_items(self, stdout: asyncio.StreamReader) -> None:
        while data := await _read_line(stdout):
            self._on_output(data)
            found = _ITEM.fullmatch(data.rstrip(b"\n"))
            if found is None or found[1][1:2] == b"d" or found[1][:1] not in b"<c":
                continue
            name = _shown_name(found[2])
            self.sent.append(name)
            self._on_progress(Progress(len(self.sent), self.bytes, name))

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[str]:
        """Wait for the stand-in of ssh at a socket of our own."""
        with tempfile.TemporaryDirectory(prefix="rt-") as folder:
            path = f"{folder}/s"
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(path)
                listener.listen(1)
                listener.setblocking(False)
                task = asyncio.create_task(self._serve(listener))
                try:
                    yield path
                finally:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task

    async def _serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(listener)
        with connection:
            arguments, descriptors = await _receive(connection)
            try:
                status = await self._connect(arguments, descriptors)
            except RemoteToolError as error:
                self._channel_error = error
                status = rsync_shell.NO_ANSWER
            with suppress(OSError):
                await loop.sock_sendall(connection, bytes([status]))

    async def _connect(self, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        """Run the other rsync in a channel, its streams tied to those of the local one."""
        script = server_script(self._remote, self._snapshot, arguments[1:], dry_run=self._options.dry_run)
        async with (
            _reader(descriptors[0]) as from_rsync,
            _writer(descriptors[1]) as to_rsync,
            self._host.open(script, label="rsync") as channel,
        ):
            up = asyncio.create_task(self._copy_up(from_rsync, channel))
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy_down(channel, to_rsync))
                    group.create_task(self._copy_errors(channel))
                ended = await channel.wait()
            except BaseExceptionGroup as problems:
                raise problems.exceptions[0] from None
            finally:
                up.cancel()
                with suppress(asyncio.CancelledError, ConnectError):
                    await up
        self._remote_status = ended.status
        return rsync_shell.NO_ANSWER if ended.status is None else ended.status

    async def _copy_up(self, source: asyncio.StreamReader, channel: Channel) -> None:
        while data := await source.read(CHUNK):
            await channel.write(data)
            self.bytes += len(data)
        await channel.write_eof()

    async def _copy_errors(self, channel: Channel) -> None:
        while data := await channel.read(Stream.ERR):
            self._remote_stderr = (self._remote_stderr + data)[-CHUNK:]

    def _raise_for_status(self, status: int, errors: bytes) -> None:
        self._on_output(errors + self._remote_stderr)
        if self._channel_error is not None:
            raise self._channel_error
        if self._remote_status in {NO_RSYNC, 3, 11}:
            status = self._remote_status or status
        if status == VANISHED:
            self.warnings.append("some files vanished here while they were sent")
        elif status:
            text = (errors + self._remote_stderr).decode(errors="replace").strip()
            cause = CAUSES.get(status, f"rsync ended with status {status}")
            tail = "\n".join(text.splitlines()[-8:])
            raise SyncError(
                f"{self._host.name}: the project was not sent: {cause}" + (f"\n{tail}" if tail else ""),
                hint=HINTS.get(status, f"remote-tool rsync --show-output --server {self._host.name}"),
                server=self._host.name,
            )


def _shown_name(escaped: bytes) -> str:
    return os.fsdecode(escaped)


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """Read a line; one that is too long for the buffer comes in pieces."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)


async def _receive(connection: socket.socket) -> tuple[list[str], list[int]]:
    """Take the descriptors and arguments that the stand-in passes on."""
    connection.setblocking(False)
    await _readable(connection)
    data, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 2)
    length, _, arguments = data.partition(b"\0")
    loop = asyncio.get_running_loop()
    while len(arguments) < int(length):
        arguments += await loop.sock_recv(connection, LONGEST_REQUEST)
    return [os.fsdecode(each) for each in arguments.split(b"\0")], descriptors


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


@asynccontextmanager
async def _reader(descriptor: int) -> AsyncIterator[asyncio.StreamReader]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=4 * CHUNK)
    file = os.fdopen(descriptor, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield reader
    finally:
        transport.close()


@asynccontextmanager
async def _writer(descriptor: int) -> AsyncIterator[asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    file = os.fdopen(descriptor, "wb", buffering=0)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), file
    )
    try:
        yield asyncio.StreamWriter(transport, protocol, None, loop)
    finally:
        transport.close()


async def _copy_down(channel: Channel, writer: asyncio.StreamWriter) -> None:
    while data := await channel.read(size=CHUNK):
        writer.write(data)
        await writer.drain()
    writer.close()


def describe(entry: Entry) -> str:
    """For messages: a name and its size."""
    return f"{os.fsdecode(entry.name)} ({entry.size} bytes)"
