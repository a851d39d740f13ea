"""Connect the local rsync to a channel of the open connection, in place of ssh; see :mod:`shell`."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import socket
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from remote_tool.errors import RemoteToolError, SyncError
from remote_tool.transport.host import Exit, Stream
from remote_tool.transport.sync.shell import NO_ANSWER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from remote_tool.transport.host import Channel

CHUNK = 256 * 1024
PIPE_BYTES = 1024 * 1024
LONGEST_REQUEST = 256 * 1024
LONGEST_ANSWER = 512 * 1024 * 1024
LONGEST_ERRORS = 64 * 1024
# With --checksum, hundreds of gigabytes may be read before the first byte is sent.
LONGEST_SILENCE = 1800.0
_STATUS = re.compile(rb"[0-9]{1,3}")


class Bridge:
    """Serve the stand-in for ssh that the local rsync starts, and talk to the script that runs the remote one.

    Args:
        server: The server's name.
        channel: The running script.
        mark: Printed by the script, with the rest of a line, before the first byte of rsync and after the last.
        on_bytes: Called with the number of bytes sent to the server.
        on_errors: Called with data of stderr as it arrives.

    Attributes:
        exit: How the remote rsync or the script ended; None if it has not.
        error: Why the channel was lost.
        stdin_shared: Whether the script can read its stdin after rsync, and waits for the final message.
        errors: The last part of the script's and rsync's stderr.
    """

    def __init__(
        self,
        server: str,
        channel: Channel,
        mark: bytes,
        on_bytes: Callable[[int], None],
        on_errors: Callable[[bytes], None],
    ) -> None:
        self._server = server
        self._channel = channel
        self._mark = mark
        self._on_bytes = on_bytes
        self._on_errors = on_errors
        self.exit: Exit | None = None
        self.error: RemoteToolError | None = None
        self.errors = b""
        self.stdin_shared = False
        self._listening: asyncio.Task[None] | None = None
        self._silence: asyncio.Timeout | None = None
        self._rest = b""

    @asynccontextmanager
    async def attended(self) -> AsyncIterator[None]:
        """Read stderr in the background, and end the context if no data is transferred for too long.

        Raises:
            SyncError: No data was transferred for too long.
        """
        self._listening = asyncio.create_task(self._keep_errors())
        try:
            async with asyncio.timeout(LONGEST_SILENCE) as self._silence:
                yield
        except TimeoutError:
            raise SyncError(
                f"{self._server}: rsync made no progress for {LONGEST_SILENCE:.0f} s", server=self._server
            ) from None
        finally:
            self._silence = None
            await _end([self._listening])

    async def read_answer(self, on_data: Callable[[bytes], None] = lambda _data: None) -> bytes | None:
        """Return the output before rsync starts; None if the script ended. ``on_data`` gets data as it arrives."""
        answer, self._rest = bytearray(self._rest), b""
        start = 0
        while (found := answer.find(self._mark, start)) < 0 or (end := answer.find(b"\n", found)) < 0:
            start = found if found >= 0 else max(0, len(answer) - len(self._mark))
            data = await self._channel.read(size=CHUNK)
            if not data:
                return None
            self._restart_silence()
            on_data(data)
            answer += data
            if len(answer) > LONGEST_ANSWER:
                raise SyncError(
                    f"{self._server}: sent more than {LONGEST_ANSWER} bytes before rsync started", server=self._server
                )
        self._rest = bytes(answer[end + 1 :])
        return bytes(answer[:found])

    async def ask(self, words: bytes, on_data: Callable[[bytes], None]) -> bytes | None:
        """Send a request to the script before rsync starts, and return its answer; None if the script ended."""
        await self.tell(words)
        return await self.read_answer(on_data)

    async def tell(self, words: bytes) -> None:
        """Send words to the script that need no answer of their own."""
        await self._channel.write(words)

    async def send_all(self, pieces: AsyncIterator[bytes]) -> bool:
        """Send requests without waiting for each answer; return whether the script answered all."""
        unanswered = 0
        async for piece in pieces:
            for start in range(0, len(piece), CHUNK):
                await self._send(piece[start : start + CHUNK])
            if unanswered and await self.read_answer() is None:
                return False
            unanswered = 1
        return not unanswered or await self.read_answer() is not None

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Suspend the limit on silence while waiting for something other than this server."""
        if self._silence is not None:
            self._silence.reschedule(None)
        try:
            yield
        finally:
            self._restart_silence()

    async def serve(
        self,
        connection: socket.socket,
        words: Callable[[Sequence[str]], bytes],
        ended_well: Callable[[], Awaitable[bool]],
    ) -> None:
        """Wait for the stand-in and serve it; return early if rsync ended without starting it.

        Args:
            connection: To the stand-in.
            words: Returns the line for the script, given the arguments for the remote rsync.
            ended_well: Waits for the end of the local rsync; returns whether it took all of its steps.
        """
        connection.setblocking(False)
        arguments, descriptors = await _receive(connection)
        if len(descriptors) != len((0, 1)):
            return
        status = NO_ANSWER
        with _Descriptor.owned(descriptors[0]) as source, _Descriptor.owned(descriptors[1]) as sink:
            try:
                # The first argument is "rsync".
                await self._channel.write(words(arguments[1:]))
                self.exit = await self._run(source, sink, ended_well)
                status = NO_ANSWER if self.exit.status is None else self.exit.status
            except RemoteToolError as error:
                self.error = error
        with suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(connection, bytes([status]))

    async def skip_rsync(self, words: bytes) -> None:
        """Have the script continue without rsync."""
        await self._channel.write(words)
        self.exit = await self._ending(None)

    async def send_last(self, *pieces: bytes) -> bytes:
        """Send the final message to the script, and return the rest of its output."""
        for piece in pieces:
            # A part at a time, because the connection copies what it cannot send yet.
            for start in range(0, len(piece), CHUNK):
                await self._channel.write(piece[start : start + CHUNK])
        await self._channel.write_eof()
        rest = bytearray(self._rest)
        while data := await self._channel.read(size=CHUNK):
            self._restart_silence()
            rest += data
            if len(rest) > LONGEST_ANSWER:
                raise SyncError(f"{self._server}: sent more than {LONGEST_ANSWER} bytes", server=self._server)
        return bytes(rest)

    async def end(self) -> Exit:
        """Return how the script ended, once all of its stderr was read."""
        if self._listening is not None:
            await self._listening
        return await self._channel.wait()

    async def _run(self, source: _Descriptor, sink: _Descriptor, ended_well: Callable[[], Awaitable[bool]]) -> Exit:
        upward = asyncio.create_task(self._copy_up(source, ended_well))
        try:
            return await self._ending(sink)
        finally:
            # The local rsync may write more, but nobody reads it.
            await _end([upward])

    async def _ending(self, sink: _Descriptor | None) -> Exit:
        status = await self._copy_down(sink)
        return await self.end() if status is None else Exit(status)

    async def _copy_up(self, source: _Descriptor, ended_well: Callable[[], Awaitable[bool]]) -> None:
        await self._splice_up(source)
        while data := await source.read(CHUNK):
            await self._send(data)
        # rsync knows then that it is at the end, and the script still has to read the final message.
        if not await ended_well():
            await self._channel.write_eof()

    async def _splice_up(self, source: _Descriptor) -> None:
        """Have the kernel pass on rsync's data where stdin is a pipe, until it ends or the kernel refuses."""
        number = self._channel.stdin_pipe
        if number is None or not hasattr(os, "splice"):
            return
        # A number of our own: the channel may close its own at any time.
        with _Descriptor.owned(os.dup(number)) as pipe:
            pipe.enlarge(PIPE_BYTES)
            # Whatever the reason is, copying what is left shows it, or works.
            with suppress(OSError):
                while count := await source.splice(pipe, PIPE_BYTES):
                    await self._note_sent(count)

    async def _send(self, data: bytes) -> None:
        await self._channel.write(data)
        await self._note_sent(len(data))

    async def _note_sent(self, count: int) -> None:
        self._restart_silence()
        self._on_bytes(count)
        await asyncio.sleep(0)  # let other servers' tasks run

    async def _copy_down(self, sink: _Descriptor | None) -> int | None:
        """Pass on the remote rsync's output; return its exit status, None if it was not reported."""
        data, before = self._rest, b""
        while True:
            window = before + data
            found = window.find(self._mark)
            end = window.find(b"\n", found + len(self._mark)) if found >= 0 else -1
            if end >= 0:
                data = data[: max(0, found - len(before))]
            # A local rsync that ended reads no more; its exit status says why.
            if sink is not None and not await _handed_on(sink, data):
                sink = None
            if end >= 0:
                self._rest = window[end + 1 :]
                status, _, word = window[found + len(self._mark) : end].partition(b" ")
                self.stdin_shared = bool(word.strip())
                return int(status) if _STATUS.fullmatch(status) else NO_ANSWER
            # A possible beginning of the mark was passed on too: rsync reads nothing after its end.
            before = window[found:] if found >= 0 else window[-len(self._mark) :]
            data = await self._channel.read(size=CHUNK)
            if not data:
                return None
            self._restart_silence()

    def _restart_silence(self) -> None:
        """Restart the limit on silence after a transfer of data."""
        if self._silence is not None and not self._silence.expired():
            self._silence.reschedule(asyncio.get_running_loop().time() + LONGEST_SILENCE)

    async def _keep_errors(self) -> None:
        while data := await self._channel.read(Stream.ERR):
            self.errors = (self.errors + data)[-LONGEST_ERRORS:]
            self._on_errors(data)


async def _handed_on(sink: _Descriptor, data: bytes) -> bool:
    try:
        await sink.write(data)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, RemoteToolError | OSError):
            raise outcome


class _Descriptor:
    """A pipe or socket of rsync, read or written without blocking.

    asyncio's pipes do not support one socket for both directions, which openrsync uses.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        os.set_inheritable(number, False)
        os.set_blocking(number, False)

    @classmethod
    @contextmanager
    def owned(cls, number: int) -> Iterator[_Descriptor]:
        """Close the descriptor at the end."""
        descriptor = cls(number)
        try:
            yield descriptor
        finally:
            descriptor.close()

    def close(self) -> None:
        if self._number >= 0:
            os.close(self._number)
        self._number = -1

    async def read(self, size: int) -> bytes:
        """Return received bytes; empty at the end."""
        while True:
            try:
                data = os.read(self._number, size)
            except BlockingIOError:
                await self._readable()
            except ConnectionResetError:
                return b""
            else:
                # rsync has often written more by now, and a full packet costs no more than a small one.
                with suppress(BlockingIOError, ConnectionResetError):
                    data += os.read(self._number, size - len(data)) if 0 < len(data) < size else b""
                return data

    async def write(self, data: bytes) -> None:
        """Write all data."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._number, view) :]
            except BlockingIOError:
                await self._writable()

    async def splice(self, pipe: _Descriptor, size: int) -> int:
        """Move received bytes into a pipe without copying them; return their number, 0 at the end."""
        while True:
            try:
                return os.splice(self._number, pipe._number, size, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                # Either is the reason.
                await self._readable()
                await pipe._writable()
            except ConnectionResetError:
                return 0

    def enlarge(self, size: int) -> None:
        """Let a pipe hold more, if the system allows that: each side is woken less often."""
        with suppress(OSError):
            fcntl.fcntl(self._number, fcntl.F_SETPIPE_SZ, size)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        await _ready(lambda wake: loop.add_reader(self._number, wake), lambda: loop.remove_reader(self._number))

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        await _ready(lambda wake: loop.add_writer(self._number, wake), lambda: loop.remove_writer(self._number))


async def _ready(add: Callable[[Callable[[], None]], None], remove: Callable[[], object]) -> None:
    event = asyncio.Event()
    add(event.set)
    try:
        await event.wait()
    finally:
        remove()


async def _receive(connection: socket.socket) -> tuple[list[str], list[int]]:
    """Receive arguments and descriptors from the stand-in; nothing if rsync ended without starting it."""
    loop = asyncio.get_running_loop()
    await _ready(lambda wake: loop.add_reader(connection, wake), lambda: loop.remove_reader(connection))
    data, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 2)
    length, _, arguments = data.partition(b"\0")
    while length and len(arguments) < int(length):
        more = await loop.sock_recv(connection, LONGEST_REQUEST)
        if not more:
            break
        arguments += more
    return [os.fsdecode(each) for each in arguments.split(b"\0")], descriptors
