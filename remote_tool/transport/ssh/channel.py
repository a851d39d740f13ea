"""One session of a connection: its buffers, its end, and the back pressure in both directions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from remote_tool.errors import ConnectionLostError, RemoteCommandError
from remote_tool.transport.host import MEBIBYTE, Exit, Stream
from remote_tool.transport.ssh import login_shell
from remote_tool.transport.ssh.script import NO_OUTPUT, NOT_RUN

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.transport.host import UserTerminal
    from remote_tool.transport.ssh.script import WrappedScript

# Reading stops at PAUSE_BYTES, so that a slow reader slows the command down; it resumes while a caller waits for the
# other stream, up to MAX_BYTES.
PAUSE_BYTES = 4 * MEBIBYTE
MAX_BYTES = 64 * MEBIBYTE
TAIL_BYTES = 2000
STDERR_TYPE = 1  # RFC 4254, 5.2
LOST_HINT = "Jobs on the server keep running; run the same command again once it answers"


class RawChannel(Protocol):
    """The part of the SSH library's channel that we use; a kept login has its own."""

    def write(self, data: bytes) -> None: ...
    def write_eof(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def send_signal(self, signal: str) -> None: ...
    def abort(self) -> None: ...


class SshChannel:
    """A remote command, and its streams without the earlier output of the login shell.

    Args:
        server: The server's name.
        label: The command's name in errors.
        script: The script, and the mark at the beginning of both its outputs.
        terminal: The terminal that the command gets in place of three streams.
        on_slow: Called when the login shell is slow to start the script.
        on_end: Called once when the session is over.
    """

    def __init__(
        self,
        server: str,
        label: str,
        script: WrappedScript,
        *,
        terminal: UserTerminal | None = None,
        on_slow: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._server = server
        self._label = label
        self._script = script
        self.terminal = terminal
        self._waits_for_mark = terminal is not None
        self._on_slow = on_slow
        self._on_end = on_end
        self._outputs = {stream: _OutputBuffer(script.mark) for stream in Stream}
        self._sent_before_mark = b""
        self._timers: list[asyncio.TimerHandle] = []
        self._was_too_slow = False
        self._was_redirected = False
        self._raw: RawChannel | None = None
        self._exit: Exit | None = None
        self._failure: Exception | None = None
        self._eof = False
        self._ended = False
        self._is_closed = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._waiters: list[asyncio.Future[None]] = []
        self._readers = 0
        self._paused = False

    # For the caller

    @property
    def command(self) -> str:
        """Return the command for the login shell."""
        return self._script.command

    async def start(self) -> None:
        """Wait until the login shell has started the script, or the session is over."""
        self._readers += 1
        try:
            while not self._has_started and not self._at_end:
                await self._change()
        finally:
            self._readers -= 1

    async def write(self, data: bytes) -> None:
        """Write to the command's stdin; after its end, bytes are dropped, and its exit status tells why."""
        if self._is_open:
            self._send(data)
        await self._writable.wait()
        self._raise_failure()

    async def write_eof(self) -> None:
        """Close the command's stdin."""
        if self._is_open and self._raw is not None:
            with suppress(OSError):
                self._raw.write_eof()

    @property
    def stdin_pipe(self) -> int | None:
        """The local pipe to the command's stdin; None without one, or while data waits to be written to it."""
        pipe: int | None = getattr(self._raw, "stdin_pipe", None) if self._is_open else None
        return pipe

    async def read(self, stream: Stream = Stream.OUT, size: int = 65536) -> bytes:
        """Return received bytes, at most ``size``; empty at the end."""
        output = self._outputs[stream]
        self._readers += 1
        try:
            while not output.data and not self._at_end:
                await self._change()
        finally:
            self._readers -= 1
        data = output.take(size)
        if not data:
            self._raise_failure()
        self._update_flow()
        return data

    async def wait(self) -> Exit:
        """Return how the command ended, once all its output has arrived."""
        self._readers += 1
        try:
            while not self._ended and self._failure is None:
                await self._change()
        finally:
            self._readers -= 1
        return self._result()

    async def read_all(self, limit: int) -> tuple[bytes, bytes]:
        """Return both outputs once the command has ended.

        Raises:
            RemoteCommandError: It printed more than ``limit`` bytes.
            ConnectionLostError: The connection was lost.
        """
        self._readers += 1
        try:
            while not self._ended and self._failure is None and self._waiting_bytes <= limit:
                await self._change()
        finally:
            self._readers -= 1
        if self._waiting_bytes > limit:
            raise self._error(f"printed more than {limit} bytes", 141)
        self._raise_failure()
        return self._outputs[Stream.OUT].take(limit), self._outputs[Stream.ERR].take(limit)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the command's terminal, if it has one."""
        change = getattr(self._raw, "change_terminal_size", None)
        if change is not None and self.terminal is not None and self._is_open:
            change(columns, rows)

    def close(self) -> None:
        """Close the channel without waiting for the command, whose stdin ends."""
        self._is_closed = True
        self._stop_timers()
        if self._raw is not None and not self._ended:
            self._raw.abort()
        self._writable.set()
        self._wake()

    def hang_up(self) -> None:
        """Close the channel and send the command SIGHUP, like a closed terminal."""
        if self._raw is not None and not self._ended and self._exit is None:
            with suppress(OSError):
                self._raw.send_signal("HUP")
        self.close()

    @property
    def remote_pid(self) -> int:
        """The process id of the script's shell; 0 before it has started."""
        return self._outputs[Stream.OUT].pid

    @property
    def is_closed(self) -> bool:
        """Return whether the channel was closed on this side."""
        return self._is_closed

    @property
    def noise(self) -> int:
        """Return the number of bytes that came before the mark."""
        return sum(output.noise for output in self._outputs.values())

    # Called by the SSH library

    def connection_made(self, chan: RawChannel) -> None:
        """Send the script along with the request for the shell, which saves a round trip; to a terminal, later."""
        self._raw = chan
        loop = asyncio.get_running_loop()
        if not self._waits_for_mark:
            loop.call_soon(self._send_script)
        self._timers = [
            loop.call_later(login_shell.NOTICE_SECONDS, self._on_slow),
            loop.call_later(login_shell.LONGEST_START, self._end_slow_shell),
        ]

    def session_started(self) -> None:
        """Do nothing: the script was sent already, or waits for the mark."""

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Store received bytes after the mark."""
        output = self._outputs[Stream.ERR if datatype == STDERR_TYPE else Stream.OUT]
        if not output.feed(data):
            self._fail(login_shell.too_noisy(self._server))
        elif len(output.data) > MAX_BYTES:
            self._fail(self._error(f"printed more than {MAX_BYTES} bytes that were not read", 141))
        if self._has_started:
            self._handle_start()
        elif self._is_redirected and not self._was_redirected:
            self._was_redirected = True
            error = login_shell.redirected(self._server, has_run=True)
            self._timers.append(
                asyncio.get_running_loop().call_later(login_shell.NOTICE_SECONDS, lambda: self._fail(error))
            )
        self._wake()
        self._update_flow()

    def eof_received(self) -> bool:
        """Handle the end of both outputs; True keeps stdin open."""
        self._eof = True
        self._wake()
        return True

    def exit_status_received(self, status: int) -> None:
        """Store the exit status."""
        self._exit = Exit(status)

    def exit_signal_received(self, signal: str, _core_dumped: bool, _message: str, _language: str) -> None:
        """Store the signal that ended the command."""
        self._exit = Exit(None, signal)

    def pause_writing(self) -> None:
        """Block writers: the server's window is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Unblock writers."""
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the session: without an exit status or all its output, the connection was lost."""
        if self._ended:
            return
        self._ended = True
        self._stop_timers()
        if not self._is_closed and (self._exit is None or (error is not None and not self._eof)):
            self._failure = self._failure or lost(self._server, error)
        self._on_end()
        self._writable.set()
        self._wake()

    # Internal

    @property
    def _waiting_bytes(self) -> int:
        return sum(len(output.data) for output in self._outputs.values())

    @property
    def _is_open(self) -> bool:
        return not (self._ended or self._is_closed)

    @property
    def _at_end(self) -> bool:
        return self._eof or self._ended or self._is_closed or self._failure is not None

    @property
    def _has_started(self) -> bool:
        return self._outputs[Stream.OUT].started

    @property
    def _is_redirected(self) -> bool:
        """Return whether the script has started, but its standard output does not arrive."""
        return self._outputs[Stream.ERR].started and not self._has_started

    def _send_script(self) -> None:
        if self._is_open:
            self._send(self._script.lines)

    def _end_slow_shell(self) -> None:
        """Close the stdin of a slow shell, so that one that reads it ends; fail if the shell does not end."""
        self._was_too_slow = True
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(login_shell.END_SECONDS, lambda: self._fail(login_shell.too_slow(self._server)))
        ]
        if self._raw is not None:
            with suppress(OSError):
                self._raw.write_eof()

    def _handle_start(self) -> None:
        self._stop_timers()
        self._sent_before_mark = b""
        if self._was_too_slow:
            self._fail(login_shell.too_slow(self._server))
        elif self._waits_for_mark:
            self._waits_for_mark = False
            self._send_script()

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _send(self, data: bytes) -> None:
        if not self._has_started:
            self._sent_before_mark += data
        if self._raw is not None:
            with suppress(BrokenPipeError):  # the command has just ended
                self._raw.write(data)

    def _update_flow(self) -> None:
        """Pause reading while a buffer is full, unless a caller waits for data."""
        full = max(len(output.data) for output in self._outputs.values()) > PAUSE_BYTES and not self._readers
        if self._raw is None or not self._is_open or full == self._paused:
            return
        self._paused = full
        if full:
            self._raw.pause_reading()
        else:
            self._raw.resume_reading()

    def _result(self) -> Exit:
        self._raise_failure()
        if self._exit is None:
            return Exit(None, "HUP")
        if not self._has_started:
            self._raise_not_run(self._exit)
        return self._exit

    def _raise_not_run(self, end: Exit) -> None:
        if end.status == NOT_RUN:
            raise login_shell.swallowed(self._server)
        if end.status == NO_OUTPUT or self._is_redirected:
            raise login_shell.redirected(self._server, has_run=end.status != NO_OUTPUT)
        if self._was_too_slow:
            raise login_shell.too_slow(self._server)
        noise = self._outputs[Stream.OUT].tail or self._outputs[Stream.ERR].tail
        raise login_shell.not_run(self._server, end, noise, self._sent_before_mark)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.hang_up()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _error(self, reason: str, status: int) -> RemoteCommandError:
        message = f"{self._server}: {self._label}: {reason}"
        return RemoteCommandError(message, server=self._server, command=self._label, exit_status=status)

    async def _change(self) -> None:
        """Wait for data or the end."""
        self._update_flow()
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _OutputBuffer:
    """The unread bytes of one stream after the mark."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self.started = False
        self.pid = 0
        self.noise = 0
        self.tail = b""
        self.data = bytearray()

    def feed(self, data: bytes) -> bool:
        """Add bytes; return False if there are too many before the mark."""
        if not self.started:
            window = self.tail + data
            before, _, after = window.partition(self._mark)
            pid, has_mark, data = after.partition(b"\n")
            if not has_mark:
                before = window
            self.noise += len(before) - len(self.tail)
            self.tail = before[-TAIL_BYTES:]
            if not has_mark:
                return self.noise <= login_shell.MAX_NOISE_BYTES
            self.started = True
            self.pid = int(pid) if pid.isdigit() else 0
        self.data += data
        return True

    def take(self, size: int) -> bytes:
        """Return unread bytes, at most ``size``."""
        data = bytes(self.data[:size])
        del self.data[:size]
        return data


def lost(server: str, error: Exception | None) -> ConnectionLostError:
    """Return the error for a lost connection."""
    reason = str(error) if error is not None else "the session ended without an exit status"
    # asyncssh says this when it knows no cause.
    suffix = "" if reason == "Connection lost" else f": {reason}"
    return ConnectionLostError(f"{server}: the connection was lost{suffix}", hint=LOST_HINT, server=server)
