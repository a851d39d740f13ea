"""One session of a kept login: the three pipes between this program and the master, and the exit status."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.transport.host import Stream
from remote_tool.transport.kept.master import MasterClient, MasterError, pid_of_master
from remote_tool.transport.kept.mux import Message
from remote_tool.transport.ssh.channel import STDERR_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.ssh.channel import SshChannel

LONGEST_ANSWER = 10.0  # for a slow master; one that has ended is noticed at once


class KeptSession:
    """A session in the place of the SSH library's channel; see :class:`remote_tool.transport.ssh.channel.RawChannel`.

    Args:
        path: The master's socket.
        channel: The channel of the session's command.
        on_data: Called whenever data arrives.
        on_end: Called once when the session is over, with whether the master has ended.
        signal_process: Sends a signal to a process on the server: its id, and the name of the signal.
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
        self._master = MasterClient(path)
        self._is_over = False
        self._own_ends: list[int] = []
        self._stdin: asyncio.WriteTransport | None = None
        self._outputs: dict[Stream, asyncio.ReadTransport] = {}
        self._ended_outputs: set[Stream] = set()
        self._outputs_ended = asyncio.Event()
        self._end_task: asyncio.Task[None] | None = None
        self._eof_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the session, but send nothing before :meth:`attach`.

        Raises:
            MasterError: It was not opened, and nothing was run.
        """
        master_ends: list[int] = []
        try:
            for is_input in (True, False, False):
                reading, writing = os.pipe()
                master_ends.append(reading if is_input else writing)
                self._own_ends.append(writing if is_input else reading)
            await self._master.connect()
            await self._master.open_session(self._channel.command, (master_ends[0], master_ends[1], master_ends[2]))
        except BaseException:
            self._master.close()
            _close_all(self._own_ends)
            raise
        finally:
            _close_all(master_ends)

    async def attach(self) -> None:
        """Connect the open session to the channel, which sends its script."""
        loop = asyncio.get_running_loop()
        stdin, *outputs = [
            os.fdopen(end, mode, 0) for end, mode in zip(self._own_ends, ("wb", "rb", "rb"), strict=True)
        ]
        try:
            self._stdin, _ = await loop.connect_write_pipe(lambda: _StdinPipe(self._channel), stdin)
            # A write has to wait until its data is in the pipe, as stdin_pipe lets others write there.
            self._stdin.set_write_buffer_limits(0)
            for stream, file in zip(Stream, outputs, strict=True):
                self._outputs[stream], _ = await loop.connect_read_pipe(partial(_OutputPipe, self, stream), file)
        except BaseException:
            self.abort()
            raise
        self._end_task = asyncio.create_task(self._wait_for_end())
        self._channel.connection_made(self)

    def write(self, data: bytes) -> None:
        """Write to stdin; data is dropped after the command has closed it."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    def write_eof(self) -> None:
        """Close stdin once all data is sent."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.close()

    @property
    def stdin_pipe(self) -> int | None:
        """The pipe to the master; None while data waits to be written to it."""
        if self._stdin is None or self._stdin.is_closing() or self._stdin.get_write_buffer_size():
            return None
        return int(self._stdin.get_extra_info("pipe").fileno())

    def pause_reading(self) -> None:
        """Stop reading; then the pipes fill, and the server's window."""
        for output in self._outputs.values():
            output.pause_reading()

    def resume_reading(self) -> None:
        """Continue to read."""
        for output in self._outputs.values():
            output.resume_reading()

    def send_signal(self, signal: str) -> None:
        """Send a signal to the command's processes, from another session, as a master does not forward signals."""
        if self._channel.remote_pid:
            self._signal_process(self._channel.remote_pid, signal)

    def abort(self, *, master_ended: bool = False) -> None:
        """End the session and its stdin without waiting for the master."""
        if self._end_task is not None:
            self._end_task.cancel()
        asyncio.get_running_loop().call_soon(self._finish, master_ended)

    def data_received(self, stream: Stream, data: bytes) -> None:
        """Pass output to the channel."""
        self._on_data()
        self._channel.data_received(data, STDERR_TYPE if stream is Stream.ERR else None)

    def output_ended(self, stream: Stream) -> None:
        """Note the end of an output; after both, report it to the channel."""
        self._ended_outputs.add(stream)
        if len(self._ended_outputs) == len(Stream):
            self._outputs_ended.set()
            self._eof_task = asyncio.create_task(self._report_eof())

    async def _report_eof(self) -> None:
        """Report the end of the output, unless the master has ended, so that the connection was lost."""
        if await pid_of_master(self._path, LONGEST_ANSWER) is not None and not self._is_over:
            self._channel.eof_received()

    async def _wait_for_end(self) -> None:
        """Wait for the end of the session, and report the exit status.

        A master reports a command that a signal ended like a session that the server closed; both count as lost.
        """
        with suppress(MasterError):
            while True:
                self._handle(*await self._master.answer())
        await self._outputs_ended.wait()
        # The exit status arrives before the last output; a master that still answers has passed on all output.
        self._finish(await pid_of_master(self._path, LONGEST_ANSWER) is None)

    def _handle(self, kind: int, numbers: tuple[int, ...]) -> None:
        if kind == Message.EXIT and len(numbers) > 1:
            self._channel.exit_status_received(numbers[1])

    def _finish(self, master_ended: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._eof_task is not None:
            self._eof_task.cancel()
        self._master.close()
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.abort()
        for output in self._outputs.values():
            output.close()
        self._channel.connection_lost(ConnectionError("the kept login has ended") if master_ended else None)
        self._on_end(master_ended)


class _StdinPipe(asyncio.BaseProtocol):
    """The flow control of stdin."""

    def __init__(self, channel: SshChannel) -> None:
        self._channel = channel

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    def connection_lost(self, _error: Exception | None) -> None:
        """Unblock writers; their data is dropped."""
        self._channel.resume_writing()


class _OutputPipe(asyncio.Protocol):
    """The pipe of stdout or stderr."""

    def __init__(self, session: KeptSession, stream: Stream) -> None:
        self._session = session
        self._stream = stream

    def data_received(self, data: bytes) -> None:
        self._session.data_received(self._stream, data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._session.output_ended(self._stream)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
