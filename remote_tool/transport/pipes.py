"""The streams of a session as pipes of this machine: to a kept login's ssh, or to a program here."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.transport.host import Stream
from remote_tool.transport.ssh.channel import STDERR_TYPE

if TYPE_CHECKING:
    from remote_tool.transport.ssh.channel import SshChannel


class PipeSession:
    """A session in the place of the SSH library's channel; see :class:`remote_tool.transport.ssh.channel.RawChannel`.

    A subclass opens the session, gives the other ends of the pipes to a program, and reports how that ended.
    """

    def __init__(self, channel: SshChannel) -> None:
        self._channel = channel
        self._own_ends: list[tuple[Stream | None, int]] = []
        self._stdin: asyncio.WriteTransport | None = None
        self._outputs: dict[Stream, asyncio.ReadTransport] = {}
        self._open_outputs = set(Stream)
        self._outputs_ended = asyncio.Event()

    def _make_pipes(self) -> list[int]:
        """Make the three pipes, and return the program's ends: stdin, stdout and stderr; raises OSError."""
        ends: list[int] = []
        try:
            for stream in (None, *Stream):
                reading, writing = os.pipe()
                ends.append(writing if stream else reading)
                self._own_ends.append((stream, reading if stream else writing))
        except OSError:
            close_all(ends)
            self._close_pipes()
            raise
        return ends

    async def _connect_pipes(self) -> None:
        """Connect our ends to the channel; raises OSError."""
        loop = asyncio.get_running_loop()
        while self._own_ends:
            stream, end = self._own_ends.pop(0)
            if stream is None:
                file = os.fdopen(end, "wb", 0)
                self._stdin, _ = await loop.connect_write_pipe(lambda: _StdinPipe(self._channel), file)
                # A write has to wait until its data is in the pipe, as stdin_pipe lets others write there.
                self._stdin.set_write_buffer_limits(0)
            else:
                file = os.fdopen(end, "rb", 0)
                self._outputs[stream], _ = await loop.connect_read_pipe(partial(_OutputPipe, self, stream), file)

    def _close_pipes(self) -> None:
        """Close our ends; what was not yet written is dropped."""
        close_all([end for _, end in self._own_ends])
        self._own_ends = []
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.abort()
        for output in self._outputs.values():
            output.close()

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
        """The pipe to the command's stdin; None while data waits to be written to it."""
        if self._stdin is None or self._stdin.is_closing() or self._stdin.get_write_buffer_size():
            return None
        return int(self._stdin.get_extra_info("pipe").fileno())

    def pause_reading(self) -> None:
        """Stop reading; then the pipes fill, and the command waits."""
        for output in self._outputs.values():
            output.pause_reading()

    def resume_reading(self) -> None:
        """Continue to read."""
        for output in self._outputs.values():
            output.resume_reading()

    def data_received(self, stream: Stream, data: bytes) -> None:
        """Pass output to the channel."""
        self._channel.data_received(data, STDERR_TYPE if stream is Stream.ERR else None)

    def output_ended(self, stream: Stream) -> None:
        """Note the end of an output; after all of them, report it."""
        self._open_outputs.discard(stream)
        if not self._open_outputs:
            self._outputs_ended.set()
            self._all_outputs_ended()

    def _all_outputs_ended(self) -> None:
        """Report the end of the output to the channel."""
        self._channel.eof_received()


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
    """The pipe of an output."""

    def __init__(self, session: PipeSession, stream: Stream) -> None:
        self._session = session
        self._stream = stream

    def data_received(self, data: bytes) -> None:
        self._session.data_received(self._stream, data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._session.output_ended(self._stream)


def close_all(descriptors: list[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
