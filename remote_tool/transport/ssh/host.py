"""A server behind an SSH connection: run scripts there, in as many sessions as it allows at once."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from remote_tool.errors import ConnectError, RemoteCommandError
from remote_tool.redaction import redact
from remote_tool.transport.host import MEBIBYTE, Completed, Exit
from remote_tool.transport.ssh import login_shell
from remote_tool.transport.ssh.channel import SshChannel
from remote_tool.transport.ssh.endpoint import printable
from remote_tool.transport.ssh.login_shell import TIMED_OUT_STATUS
from remote_tool.transport.ssh.script import wrap, wrap_for_terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from remote_tool.transport.host import Channel, Login, UserTerminal

MAX_SESSIONS = 10  # as in a stock sshd
LONGEST_STDERR = 64 * 1024
REFUSED_SECONDS = 3.0


class SessionRefusedError(Exception):
    """The server opens no more sessions on this connection."""


class HostConnection(Protocol):
    """A connection that opens sessions on a server: our own login, or a kept one."""

    @property
    def alive(self) -> bool:
        """Whether it is connected, as far as known."""

    @property
    def login(self) -> Login:
        """The login of the connection."""

    async def create_session(self, channel: SshChannel) -> None:
        """Run the channel's command in a new session; raises SessionRefusedError, ConnectionLostError."""

    async def watch(self, seconds: float, report: Callable[[bool], None]) -> None:
        """Report when the server becomes silent, and when data arrives again."""

    async def close(self) -> None:
        """Close it, with a timeout."""


class SshHost:
    """A connected server; see :class:`remote_tool.transport.host.Host`."""

    def __init__(
        self,
        name: str,
        connection: HostConnection,
        trace: Callable[[str, str, float], None],
        notice: Callable[[str, str], None],
    ) -> None:
        self._name = name
        self._connection = connection
        self._trace = trace
        self._notice = notice
        self._has_reported_slow_shell = False
        self._sessions = SessionLimit()
        self._has_opened_session = False
        self._openings: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<SshHost {self._name}>"

    @property
    def name(self) -> str:
        """The server's name in the configuration."""
        return self._name

    @property
    def login(self) -> Login:
        """The login of the connection."""
        return self._connection.login

    @property
    def alive(self) -> bool:
        """Return whether the connection is up, as far as known."""
        return self._connection.alive

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,  # noqa: ASYNC109 - as in Host
        limit: int = 16 * MEBIBYTE,
        check: bool = True,
        label: str = "",
    ) -> Completed:
        """Run a script to its end; see :meth:`remote_tool.transport.host.Host.run`."""
        label = label or _label_of(script)
        try:
            async with asyncio.timeout(timeout):
                completed = await self._run(script, stdin, limit, label)
        except TimeoutError:
            message = f"{self._name}: {label}: timed out after {timeout:g} s"
            raise RemoteCommandError(message, server=self._name, command=label, exit_status=TIMED_OUT_STATUS) from None
        if check and not completed.ok:
            raise _command_error(self._name, label, completed)
        return completed

    @asynccontextmanager
    async def open(
        self, script: str, *, label: str = "", terminal: UserTerminal | None = None
    ) -> AsyncIterator[Channel]:
        """Start a script; see :meth:`remote_tool.transport.host.Host.open`."""
        async with self._open(script, label or _label_of(script), terminal) as channel:
            yield channel

    async def watch(self, seconds: float, report: Callable[[bool], None]) -> None:
        """Monitor whether the server responds; see :meth:`remote_tool.transport.host.Host.watch`."""
        await self._connection.watch(seconds, report)

    async def close(self) -> None:
        """Close the connection; wait about a second for the server."""
        await self._connection.close()

    async def _run(self, script: str, stdin: bytes, limit: int, label: str) -> Completed:
        async with self._open(script, label) as channel:
            if stdin:
                await channel.write(stdin)
            await channel.write_eof()
            out, err = await channel.read_all(limit)
            return Completed(await channel.wait(), out, err)

    @asynccontextmanager
    async def _open(self, script: str, label: str, terminal: UserTerminal | None = None) -> AsyncIterator[SshChannel]:
        began = time.monotonic()
        channel = await self._open_session(script, label, terminal)
        try:
            yield channel
        except BaseException:
            channel.hang_up()
            raise
        finally:
            channel.close()
            noise = f" ({channel.noise} bytes of noise before it)" if channel.noise else ""
            self._trace(self._name, label + noise, time.monotonic() - began)

    async def _open_session(self, script: str, label: str, terminal: UserTerminal | None) -> SshChannel:
        """Open a session; if the server allows no more, wait until one of ours ends."""
        deadline = time.monotonic() + REFUSED_SECONDS
        while True:
            await self._sessions.acquire()
            channel = SshChannel(
                self._name,
                label,
                wrap(script) if terminal is None else wrap_for_terminal(script),
                terminal=terminal,
                on_slow=self._report_slow_shell,
                on_end=self._sessions.release,
            )
            opening = asyncio.create_task(self._connection.create_session(channel))
            self._openings.add(opening)
            opening.add_done_callback(partial(self._settle_opening, channel))
            try:
                # asyncssh would forget a session whose opening is canceled, and the server would keep it.
                await asyncio.shield(opening)
            except SessionRefusedError as refusal:
                await self._wait_for_session(refusal, deadline)
            except BaseException:
                channel.hang_up()
                raise
            else:
                self._has_opened_session = True
                return channel

    def _report_slow_shell(self) -> None:
        """Report once that the login shell is slow."""
        if not self._has_reported_slow_shell:
            self._has_reported_slow_shell = True
            self._notice(self._name, login_shell.slow_notice())

    def _settle_opening(self, channel: SshChannel, opening: asyncio.Task[None]) -> None:
        """Release the session unless it was opened; end it if its caller was canceled meanwhile."""
        self._openings.discard(opening)
        error = None if opening.cancelled() else opening.exception()
        if isinstance(error, SessionRefusedError):
            self._sessions.refused()
        elif error is not None or opening.cancelled():
            self._sessions.release()
        elif channel.is_closed:
            channel.hang_up()

    async def _wait_for_session(self, refusal: SessionRefusedError, deadline: float) -> None:
        if self._sessions.held:
            return  # acquire() waits until one of ours has ended
        # sshd counts a session slightly longer than its channel exists.
        if not self._has_opened_session or time.monotonic() > deadline:
            raise _no_session(self._name, refusal) from None
        await asyncio.sleep(0.05)


class SessionLimit:
    """A semaphore that learns from refusals how many sessions a server allows per connection.

    Attributes:
        limit: Maximum number of sessions.
        held: Current number; a closed session counts until its command has ended, as in sshd.
    """

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self.limit = limit
        self.held = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> None:
        """Wait until another session may be opened, in order of arrival."""
        while self.held >= self.limit:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        self.held += 1

    def release(self) -> None:
        """Release a session that has ended."""
        self.held -= 1
        self._wake_all()

    def refused(self) -> None:
        """Return a refused session, and lower the limit to the current number."""
        self.held -= 1
        self.limit = max(1, min(self.limit, self.held))
        self._wake_all()

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


def _no_session(server: str, refusal: SessionRefusedError) -> ConnectError:
    return ConnectError(
        f"{server}: the server refused a new session: {printable(str(refusal))}",
        hint="Check MaxSessions in its sshd_config, and which of your sessions still run there",
        server=server,
    )


def _command_error(server: str, label: str, completed: Completed) -> RemoteCommandError:
    status = _status_of(completed.exit)
    tail = redact(completed.stderr[-LONGEST_STDERR:].decode(errors="replace"))[-2000:].strip()
    how = f"was killed by SIG{completed.exit.signal}" if completed.exit.signal else f"failed with status {status}"
    message = f"{server}: {label} {how}" + (f": {tail.splitlines()[-1]}" if tail else "")
    return RemoteCommandError(message, server=server, command=label, exit_status=status, stderr_tail=tail)


def _status_of(end: Exit) -> int:
    """Return the exit status as a shell reports it."""
    if end.status is not None:
        return end.status
    return 128 + int(getattr(signal, f"SIG{end.signal}", 0))


def _label_of(script: str) -> str:
    """Return the first line of a script that is not a comment, as its label."""
    lines = [line.strip() for line in script.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return (lines[0] if lines else "script")[:100]
