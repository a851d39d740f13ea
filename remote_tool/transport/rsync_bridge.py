"""Ties the local rsync to a channel of the open connection: what ssh would be to rsync, see :mod:`rsync_shell`."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from remote_tool.errors import RemoteToolError, SyncError
from remote_tool.transport.host import Stream
from remote_tool.transport.rsync_shell import NO_ANSWER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from remote_tool.transport.host import Channel, Exit, Host

CHUNK = 256 * 1024
LONGEST_REQUEST = 256 * 1024
LONGEST_ANSWER = 512 * 1024 * 1024
LONGEST_ERRORS = 64 * 1024
# With --checksum a project of hundreds of gigabytes is read before the first byte goes.
LONGEST_SILENCE = 1800.0


class Bridge:
    """Serves the stand-in of ssh that one local rsync starts.

    Args:
        host: Where the other rsync runs.
        make_script: Returns the script that runs it with these arguments.
        end_of_answer: What the script prints before the first byte of rsync.
        on_answer: Given what came before that; may take its time, rsync waits.
        on_bytes: Told how many bytes went to the server.
        on_errors: Told what came on stderr, as it comes.

    Attributes:
        exit: How the script ended; None when it did not.
        error: Why there is no channel any more.
        errors: The end of what the script and rsync said on stderr.
    """

    def __init__(
        self,
        host: Host,
        make_script: Callable[[Sequence[str]], str],
        end_of_answer: bytes,
        on_answer: Callable[[bytes], Awaitable[None]],
        on_bytes: Callable[[int], None],
        on_errors: Callable[[bytes], None],
    ) -> None:
        self._host = host
        self._make_script = make_script
        self._end_of_answer = end_of_answer
        self._on_answer = on_answer
        self._on_bytes = on_bytes
        self._on_errors = on_errors
        self.exit: Exit | None = None
        self.error: RemoteToolError | None = None
        self.errors = b""
        self._silence: asyncio.Timeout | None = None

    async def serve(self, connection: socket.socket) -> None:
        """Wait for the stand-in and do its work; ends when rsync has ended without one."""
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        arguments, descriptors = await _receive(connection)
        if len(descriptors) != len((0, 1)):
            return
        status = NO_ANSWER
        with _Descriptor.owned(descriptors[0]) as source, _Descriptor.owned(descriptors[1]) as sink:
            try:
                self.exit = await self._run(self._make_script(arguments), source, sink)
                status = NO_ANSWER if self.exit.status is None else self.exit.status
            except RemoteToolError as error:
                self.error = error
        with suppress(OSError):
            await loop.sock_sendall(connection, bytes([status]))

    async def _run(self, script: str, source: _Descriptor, sink: _Descriptor) -> Exit:
        async with self._host.open(script, label="rsync") as channel:
            tasks = [asyncio.create_task(self._keep_errors(channel))]
            try:
                async with asyncio.timeout(LONGEST_SILENCE) as self._silence:
                    rest = await self._read_answer(channel)
                    tasks.append(asyncio.create_task(self._copy_up(source, channel)))
                    await self._copy_down(channel, sink, rest)
                    await tasks[0]
                    return await channel.wait()
            except TimeoutError:
                raise SyncError(
                    f"{self._host.name}: rsync said nothing for {LONGEST_SILENCE:.0f} s", server=self._host.name
                ) from None
            finally:
                self._silence = None
                # The local rsync may have more to say, but nobody is there to hear it.
                await _end(tasks)

    async def _read_answer(self, channel: Channel) -> bytes:
        """Take what the script tells before rsync begins; return the bytes of rsync that came with it."""
        answer = bytearray()
        start = 0
        while (found := answer.find(self._end_of_answer, start)) < 0:
            start = max(0, len(answer) - len(self._end_of_answer))
            data = await channel.read(size=CHUNK)
            if not data:
                return b""
            self._go_on()
            answer += data
            if len(answer) > LONGEST_ANSWER:
                raise SyncError(
                    f"{self._host.name}: told more than {LONGEST_ANSWER} bytes before rsync began",
                    server=self._host.name,
                )
        await self._on_answer(bytes(answer[:found]))
        return bytes(answer[found + len(self._end_of_answer) :])

    async def _copy_up(self, source: _Descriptor, channel: Channel) -> None:
        while data := await source.read(CHUNK):
            await channel.write(data)
            self._go_on()
            self._on_bytes(len(data))
            await asyncio.sleep(0)  # the other servers' turn
        await channel.write_eof()

    async def _copy_down(self, channel: Channel, sink: _Descriptor, first: bytes) -> None:
        # A local rsync that ended reads no more; its exit status says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            await sink.write(first)
            while data := await channel.read(size=CHUNK):
                self._go_on()
                await sink.write(data)
        sink.close()

    def _go_on(self) -> None:
        """Something has come or gone, so the time of silence begins anew."""
        if self._silence is not None and not self._silence.expired():
            self._silence.reschedule(asyncio.get_running_loop().time() + LONGEST_SILENCE)

    async def _keep_errors(self, channel: Channel) -> None:
        while data := await channel.read(Stream.ERR):
            self.errors = (self.errors + data)[-LONGEST_ERRORS:]
            self._on_errors(data)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, RemoteToolError | OSError):
            raise outcome


class _Descriptor:
    """A pipe or socket that rsync made, read or written without blocking.

    It may be one socket for both directions (openrsync), for which the pipes of asyncio are not made.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        os.set_inheritable(number, False)
        os.set_blocking(number, False)

    @classmethod
    @contextmanager
    def owned(cls, number: int) -> Iterator[_Descriptor]:
        """Close it at the end."""
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
        """Return what has come; empty at the end."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return os.read(self._number, size)
            except BlockingIOError:
                await _ready(lambda wake: loop.add_reader(self._number, wake), lambda: loop.remove_reader(self._number))
            except ConnectionResetError:
                return b""

    async def write(self, data: bytes) -> None:
        """Write all of it."""
        loop = asyncio.get_running_loop()
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._number, view) :]
            except BlockingIOError:
                await _ready(lambda wake: loop.add_writer(self._number, wake), lambda: loop.remove_writer(self._number))


async def _ready(add: Callable[[Callable[[], None]], None], remove: Callable[[], object]) -> None:
    event = asyncio.Event()
    add(event.set)
    try:
        await event.wait()
    finally:
        remove()


async def _receive(connection: socket.socket) -> tuple[list[str], list[int]]:
    """Take the arguments and descriptors that the stand-in passes on; nothing when rsync ended without one."""
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
