"""A server behind an SSH connection: run scripts and write files there."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from remote_tool.errors import RemoteCommandError
from remote_tool.redaction import redact
from remote_tool.transport.host import MEBIBYTE, Completed, Exit
from remote_tool.transport.ssh import login_shell
from remote_tool.transport.ssh.channel import SshChannel
from remote_tool.transport.ssh.login_shell import TIMED_OUT_STATUS
from remote_tool.transport.ssh.script import wrap, wrap_for_terminal
from remote_tool.transport.ssh.session_limit import SessionLimit, SessionRefusedError, no_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from remote_tool.transport.host import Channel, UserTerminal
    from remote_tool.transport.login import Login

LONGEST_STDERR = 64 * 1024
REFUSED_SECONDS = 3.0


class Link(Protocol):
    """The connection that carries the sessions of a server: our own login, or a kept one."""

    @property
    def alive(self) -> bool:
        """Whether it is connected, as far as known."""

    @property
    def login(self) -> Login:
        """How the login was authenticated."""

    async def create_session(self, channel: SshChannel) -> None:
        """Start the shell in a new session; raises SessionRefusedError, ConnectionLostError."""

    async def watch(self, seconds: float, tell: Callable[[bool], None]) -> None:
        """Report when the server becomes silent, and when data arrives again."""

    async def close(self) -> None:
        """Close it, with a timeout."""


class SshHost:
    """A connected server; see :class:`remote_tool.transport.host.Host`."""

    def __init__(
        self,
        name: str,
        connection: Link,
        trace: Callable[[str, str, float], None],
        notice: Callable[[str, str], None],
    ) -> None:
        self._name = name
        self._connection = connection
        self._trace = trace
        self._notice = notice
        self._is_slow = False
        self._sessions = SessionLimit()
        self._opened_one = False
        self._openings: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<SshHost {self._name}>"

    @property
    def name(self) -> str:
        """The server's name in the configuration."""
        return self._name

    @property
    def login(self) -> Login:
        """How the login was authenticated."""
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
        timeout: float = 60.0,  # noqa: ASYNC109 - the seam has it
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

    async def watch(self, seconds: float, tell: Callable[[bool], None]) -> None:
        """Monitor whether the server responds; see :meth:`remote_tool.transport.host.Host.watch`."""
        await self._connection.watch(seconds, tell)

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
        """Open a session, waiting for one of ours to end if the server allows no more."""
        deadline = time.monotonic() + REFUSED_SECONDS
        while True:
            await self._sessions.acquire()
            channel = SshChannel(
                self._name,
                label,
                wrap(script) if terminal is None else wrap_for_terminal(script),
                terminal=terminal,
                on_slow=self._report_slow,
                on_end=self._sessions.release,
            )
            opening = asyncio.create_task(self._connection.create_session(channel))
            self._openings.add(opening)
            opening.add_done_callback(partial(self._note_opening, channel))
            try:
                # asyncssh would forget a session whose opening is canceled, and the server would keep it.
                await asyncio.shield(opening)
            except SessionRefusedError as refusal:
                await self._wait_for_session(refusal, deadline)
            except BaseException:
                channel.hang_up()
                raise
            else:
                self._opened_one = True
                return channel

    def _report_slow(self) -> None:
        """Report once what is being waited for."""
        if not self._is_slow:
            self._is_slow = True
            self._notice(self._name, login_shell.slow_notice())

    def _note_opening(self, channel: SshChannel, opening: asyncio.Task[None]) -> None:
        """Handle the result of an opening, even if it was canceled."""
        self._openings.discard(opening)
        error = None if opening.cancelled() else opening.exception()
        if isinstance(error, SessionRefusedError):
            self._sessions.refused()
        elif error is not None or opening.cancelled():
            self._sessions.release()
        elif channel.is_given_up:
            channel.hang_up()

    async def _wait_for_session(self, refusal: SessionRefusedError, deadline: float) -> None:
        if self._sessions.held:
            return  # one of ours will end, and wake us
        # sshd counts a session slightly longer than its channel exists.
        if not self._opened_one or time.monotonic() > deadline:
            raise no_session(self._name, refusal) from None
        await asyncio.sleep(0.05)


def _command_error(server: str, label: str, completed: Completed) -> RemoteCommandError:
    status = _status_of(completed.exit)
    tail = redact(completed.stderr[-LONGEST_STDERR:].decode(errors="replace"))[-2000:].strip()
    how = f"was killed by SIG{completed.exit.signal}" if completed.exit.signal else f"failed with status {status}"
    message = f"{server}: {label} {how}" + (f": {tail.splitlines()[-1]}" if tail else "")
    return RemoteCommandError(message, server=server, command=label, exit_status=status, stderr_tail=tail)


def _status_of(ended: Exit) -> int:
    if ended.status is not None:
        return ended.status
    return 128 + int(getattr(signal, f"SIG{ended.signal}", 0))


def _label_of(script: str) -> str:
    """Return a label for a script: its first line that does something."""
    lines = [line.strip() for line in script.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return (lines[0] if lines else "script")[:100]
