"""One session of a kept login: three pipes that the master reads and writes, and its exit status."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.transport.host import Stream
from remote_tool.transport.kept.master import Conversation, NoAnswerError, pid_of_master
from remote_tool.transport.kept.mux import Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.ssh.channel import SshChannel

STDERR_TYPE = 1
LONGEST_ANSWER = 10.0  # the end of a master is known immediately


class KeptSession:
    """Takes the place of the SSH library's channel.

    Args:
        path: The master's socket.
        channel: The channel that uses the session.
        on_data: Called whenever data arrives.
        on_end: Called once when the session is over, with whether the master has ended.
        signal_process: Sends a signal to a process on the server: process id, name of the signal.
    """

    def __init__(
        self,
        path: Path,
        channel: SshChannel,
        *,
        on_data: Callable[[], None],
        on_end: Callable[[bool], None],
        signal_process: Callable[[int, str], None],
    ) -> None:
        self._path = path
        self._channel = channel
        self._on_data = on_data
        self._on_end = on_end
        self._signal_process = signal_process
        self._conversation = Conversation(path)
        self._is_over = False
        self._ours: list[int] = []
        self._stdin: asyncio.WriteTransport | None = None
        self._outputs: dict[Stream, asyncio.ReadTransport] = {}
        self._ended_outputs: set[Stream] = set()
        self._outputs_ended = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the session; nothing is sent to it before :meth:`attach`.

        Raises:
            NoAnswerError: It was not opened, and nothing was run.
        """
        theirs: list[int] = []
        try:
            for writes in (True, False, False):
                reading, writing = os.pipe()
                theirs.append(reading if writes else writing)
                self._ours.append(writing if writes else reading)
            await self._conversation.begin()
            await self._conversation.ask_for_session(self._channel.command, (theirs[0], theirs[1], theirs[2]))
        except BaseException:
            self._conversation.close()
            _close_all(self._ours)
            raise
        finally:
            _close_all(theirs)

    async def attach(self) -> None:
        """Connect the open session to the channel, which sends its script."""
        loop = asyncio.get_running_loop()
        stdin, *outputs = [os.fdopen(each, mode, 0) for each, mode in zip(self._ours, ("wb", "rb", "rb"), strict=True)]
        try:
            self._stdin, _ = await loop.connect_write_pipe(lambda: _Stdin(self._channel), stdin)
            # A write returns once all of it is in the pipe, which others may fill then.
            self._stdin.set_write_buffer_limits(0)
            for stream, file in zip(Stream, outputs, strict=True):
                self._outputs[stream], _ = await loop.connect_read_pipe(partial(_Output, self, stream), file)
        except BaseException:
            self.abort()
            raise
        self._ending = asyncio.create_task(self._end())
        self._channel.connection_made(self)

    def write(self, data: bytes) -> None:
        """Write to stdin; drop data after the command has closed it."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    def write_eof(self) -> None:
        """Close stdin once everything is sent."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.close()

    @property
    def stdin_pipe(self) -> int | None:
        """The pipe to the master, unless data waits to be written to it."""
        if self._stdin is None or self._stdin.is_closing() or self._stdin.get_write_buffer_size():
            return None
        return int(self._stdin.get_extra_info("pipe").fileno())

    def pause_reading(self) -> None:
        """Stop reading: the pipes fill, and then the server's window."""
        for output in self._outputs.values():
            output.pause_reading()

    def resume_reading(self) -> None:
        """Continue to read."""
        for output in self._outputs.values():
            output.resume_reading()

    def send_signal(self, signal: str) -> None:
        """Send a signal to the command's processes, in another session: a master does not forward signals."""
        if self._channel.remote_pid:
            self._signal_process(self._channel.remote_pid, signal)

    def abort(self, *, is_gone: bool = False) -> None:
        """End the session and its stdin without waiting for the master, which may be gone."""
        if self._ending is not None:
            self._ending.cancel()
        asyncio.get_running_loop().call_soon(self._finish, is_gone)

    def take(self, stream: Stream, data: bytes) -> None:
        """Pass output to the channel."""
        self._on_data()
        self._channel.data_received(data, STDERR_TYPE if stream is Stream.ERR else None)

    def end_of(self, stream: Stream) -> None:
        """Record the end of an output."""
        self._ended_outputs.add(stream)
        if len(self._ended_outputs) == len(Stream):
            self._outputs_ended.set()
            self._telling = asyncio.create_task(self._tell_the_end_of_output())

    async def _tell_the_end_of_output(self) -> None:
        """Report the end of the output, unless the master has ended: then the connection was lost."""
        if await pid_of_master(self._path, LONGEST_ANSWER) is not None and not self._is_over:
            self._channel.eof_received()

    async def _end(self) -> None:
        """Wait for the end, and report the exit status.

        A master does not tell a command that a signal ended from a session that the server closed: both are lost.
        """
        with suppress(NoAnswerError):
            while True:
                self._note(*await self._conversation.answer())
        await self._outputs_ended.wait()
        # The status overtakes output; a master that still answers has passed on all of it.
        self._finish(await pid_of_master(self._path, LONGEST_ANSWER) is None)

    def _note(self, kind: int, numbers: tuple[int, ...]) -> None:
        if kind == Message.EXIT and len(numbers) > 1:
            self._channel.exit_status_received(numbers[1])

    def _finish(self, is_gone: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._telling is not None:
            self._telling.cancel()
        self._conversation.close()
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.abort()
        for output in self._outputs.values():
            output.close()
        self._channel.connection_lost(ConnectionError("the kept login has ended") if is_gone else None)
        self._on_end(is_gone)


class _Stdin(asyncio.BaseProtocol):
    """Flow control of stdin."""

    def __init__(self, channel: SshChannel) -> None:
        self._channel = channel

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    def connection_lost(self, _error: Exception | None) -> None:
        """Let writers continue; their data is dropped."""
        self._channel.resume_writing()


class _Output(asyncio.Protocol):
    """Stdout or stderr."""

    def __init__(self, session: KeptSession, stream: Stream) -> None:
        self._session = session
        self._stream = stream

    def data_received(self, data: bytes) -> None:
        self._session.take(self._stream, data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._session.end_of(self._stream)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
