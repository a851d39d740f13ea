"""The connection of a server with a kept login, which falls back to our own login."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.system.locks import unlock
from remote_tool.transport.kept.master import ANSWER_SECONDS, NoAnswerError, pid_of_master, run_blindly, server_answers
from remote_tool.transport.kept.session import KeptSession
from remote_tool.transport.ssh.channel import lost
from remote_tool.transport.ssh.liveness import report_silence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from remote_tool.transport.host import Login
    from remote_tool.transport.kept.folder import Place
    from remote_tool.transport.kept.record import Record
    from remote_tool.transport.ssh.channel import SshChannel
    from remote_tool.transport.ssh.host import HostConnection

# The master sends keepalives itself; this detects a master that was stopped (SIGSTOP).
CHECK_SECONDS = 15.0
LONGEST_SILENCE = 60.0
SIGNAL_SECONDS = 5.0
GOODBYE_SECONDS = 1.0


class KeptConnection:
    """Sessions over a master; see :class:`remote_tool.transport.ssh.host.HostConnection`.

    Args:
        server: The server's name.
        place: The folder of the kept login.
        record: The record of the kept login.
        log_in: Makes our own login, for sessions that the kept one does not open.
    """

    def __init__(
        self, server: str, place: Place, record: Record, log_in: Callable[[], Awaitable[HostConnection]]
    ) -> None:
        self._server = server
        self._place = place
        self._record = record
        self._log_in = log_in
        self._own: asyncio.Future[HostConnection] | None = None
        self._sessions: set[KeptSession] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._guard: asyncio.Task[None] | None = None
        self._clock = asyncio.get_running_loop().time
        self._heard_at = self._clock()
        self._is_lost = False

    @property
    def own(self) -> HostConnection | None:
        """Our own login, if it was made."""
        is_made = self._own is not None and self._own.done() and not self._own.cancelled()
        return self._own.result() if self._own is not None and is_made and self._own.exception() is None else None

    @property
    def alive(self) -> bool:
        """Whether it is connected, as far as known."""
        return not self._is_lost and (self.own is None or self.own.alive)

    @property
    def login(self) -> Login:
        """How the login was authenticated."""
        return self._record.login

    async def create_session(self, channel: SshChannel) -> None:
        """Start the shell in a session of the master, else in one of our own login.

        The script is sent only after the master has confirmed the session. Without that, nothing was run. A master
        gives a terminal only the size of its client's own.
        """
        if self._is_lost:
            raise lost(self._server, None)
        if channel.terminal is None and self._own is None and await self._open(channel):
            return
        await (await self._log_in_once()).create_session(channel)

    async def watch(self, seconds: float, tell: Callable[[bool], None]) -> None:
        """Report when the server becomes silent, and when data arrives again."""
        if self.own is not None:
            await self.own.watch(seconds, tell)
            return
        asking = asyncio.create_task(self._ask_every(seconds / 2))
        try:
            await report_silence(lambda: self._heard_at, seconds, tell)
        finally:
            asking.cancel()

    async def close(self) -> None:
        """End our sessions and our own login; the master continues."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GOODBYE_SECONDS)
        for task in (*self._tasks, *([self._guard] if self._guard else [])):
            task.cancel()
        for session in list(self._sessions):
            session.abort()
        if self._own is not None:
            with suppress(Exception):
                await (await self._own).close()

    async def _open(self, channel: SshChannel) -> bool:
        """Open a session over the master; return False if our own login is needed."""
        slot = self._place.take_slot()
        if slot is None:
            return False

        def end(is_gone: bool) -> None:
            unlock(slot)
            self._sessions.discard(session)
            self._is_lost = self._is_lost or is_gone

        session = KeptSession(
            self._record.socket, channel, on_data=self._hear, on_end=end, signal_process=self._signal_process
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await session.open()
        except (NoAnswerError, TimeoutError):
            unlock(slot)
            await self._forget_a_dead_master()
            return False
        except BaseException:
            unlock(slot)
            raise
        self._hear()
        self._sessions.add(session)
        await session.attach()
        self._guard = self._guard or asyncio.create_task(self._watch_master())
        return True

    async def _forget_a_dead_master(self) -> None:
        """Let the next command start another master, unless this one is alive and only its server is slow."""
        if await pid_of_master(self._record.socket) is None:
            with suppress(OSError):
                self._place.record.unlink()

    async def _log_in_once(self) -> HostConnection:
        if self._own is None or (self._own.done() and (self._own.cancelled() or self._own.exception())):
            self._own = asyncio.ensure_future(self._log_in())
        return await asyncio.shield(self._own)

    def _hear(self) -> None:
        self._heard_at = self._clock()

    async def _ask_every(self, seconds: float) -> None:
        """Ask the server for a sign of life regularly; a lost connection is reported to the sessions."""
        while True:
            await asyncio.sleep(max(self._heard_at + seconds - self._clock(), seconds / 4))
            if self._clock() - self._heard_at >= seconds and await server_answers(self._record.socket):
                self._hear()

    async def _watch_master(self) -> None:
        """End all sessions when the master does not answer."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._sessions and await pid_of_master(self._record.socket, LONGEST_SILENCE) is None:
                self._is_lost = True
                for session in list(self._sessions):
                    session.abort(is_gone=True)

    def _signal_process(self, pid: int, signal: str) -> None:
        command = f"exec /bin/sh -c 'kill -{signal} -{pid} || kill -{signal} {pid}'"
        self._in_background(run_blindly(self._record.socket, command, SIGNAL_SECONDS))

    def _in_background(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
