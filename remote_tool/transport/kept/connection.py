"""Find the kept login of a server, and connect over it; a login of our own takes over if its master fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.system.locks import unlock
from remote_tool.transport.kept.folder import kept_folder
from remote_tool.transport.kept.master import (
    ANSWER_SECONDS,
    MasterError,
    pid_of_master,
    run_unobserved,
    server_answers,
)
from remote_tool.transport.kept.record import read_record
from remote_tool.transport.kept.session import KeptSession
from remote_tool.transport.ssh.channel import lost
from remote_tool.transport.ssh.host import SshHost
from remote_tool.transport.ssh.liveness import report_silence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Login
    from remote_tool.transport.kept.folder import KeptFolder
    from remote_tool.transport.kept.record import Record
    from remote_tool.transport.ssh.channel import SshChannel
    from remote_tool.transport.ssh.context import ConnectionContext
    from remote_tool.transport.ssh.host import HostConnection

# The master itself sends keepalives; these checks notice that it was stopped (SIGSTOP).
CHECK_SECONDS = 15.0
LONGEST_SILENCE = 60.0
SIGNAL_SECONDS = 5.0
GOODBYE_SECONDS = 1.0


@dataclass(frozen=True)
class UsableLogin:
    """A kept login with unchanged settings, keys and host keys."""

    server: str
    folder: KeptFolder
    record: Record

    def host(self, log_in: Callable[[], Awaitable[HostConnection]], context: ConnectionContext) -> SshHost:
        """Return the server; ``log_in`` makes a login of our own when the kept one opens no session."""
        connection = KeptConnection(self.server, self.folder, self.record, log_in)
        return SshHost(self.server, connection, context.trace, context.rules.notice)


def find_kept(config: Config, name: str) -> UsableLogin | None:
    """Return the kept login of a server if its settings, keys and host keys are unchanged."""
    folder = kept_folder(config, name) if config.keep_connections else None
    record = read_record(folder) if folder else None
    return UsableLogin(name, folder, record) if folder and record and record.is_usable else None


class KeptConnection:
    """A connection over a master; see :class:`remote_tool.transport.ssh.host.HostConnection`.

    Args:
        server: The server's name.
        folder: The folder of the kept login.
        record: The record of the kept login.
        log_in: Makes a login of our own, for sessions that the kept one does not open.
    """

    def __init__(
        self, server: str, folder: KeptFolder, record: Record, log_in: Callable[[], Awaitable[HostConnection]]
    ) -> None:
        self._server = server
        self._folder = folder
        self._record = record
        self._log_in = log_in
        self._own_login: asyncio.Future[HostConnection] | None = None
        self._sessions: set[KeptSession] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._master_watch: asyncio.Task[None] | None = None
        self._clock = asyncio.get_running_loop().time
        self._last_data_at = self._clock()
        self._is_lost = False

    @property
    def own_login(self) -> HostConnection | None:
        """The connection of our own login, if it was made."""
        attempt = self._own_login
        if attempt is None or not attempt.done() or attempt.cancelled() or attempt.exception() is not None:
            return None
        return attempt.result()

    @property
    def alive(self) -> bool:
        """Whether it is connected, as far as known."""
        return not self._is_lost and (self.own_login is None or self.own_login.alive)

    @property
    def login(self) -> Login:
        """The login that the master repeats."""
        return self._record.login

    async def create_session(self, channel: SshChannel) -> None:
        """Run the channel's command in a session of the master, or of our own login if it opens none.

        The script is sent only after the master has confirmed the session; without that, nothing was run. A terminal
        needs our own login, as a master gives it the size of its client's terminal.
        """
        if self._is_lost:
            raise lost(self._server, None)
        if channel.terminal is None and self._own_login is None and await self._open(channel):
            return
        await (await self._log_in_once()).create_session(channel)

    async def watch(self, seconds: float, report: Callable[[bool], None]) -> None:
        """Report when the server becomes silent, and when data arrives again."""
        if self.own_login is not None:
            await self.own_login.watch(seconds, report)
            return
        probing = asyncio.create_task(self._probe_every(seconds / 2))
        try:
            await report_silence(lambda: self._last_data_at, seconds, report)
        finally:
            probing.cancel()

    async def close(self) -> None:
        """End our sessions and our own login; the master keeps running."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GOODBYE_SECONDS)
        for task in (*self._tasks, *([self._master_watch] if self._master_watch else [])):
            task.cancel()
        for session in list(self._sessions):
            session.abort()
        if self._own_login is not None:
            with suppress(Exception):
                await (await self._own_login).close()

    async def _open(self, channel: SshChannel) -> bool:
        """Open a session over the master; return False if our own login is needed."""
        slot = self._folder.take_slot()
        if slot is None:
            return False

        def release(master_ended: bool) -> None:
            unlock(slot)
            self._sessions.discard(session)
            self._is_lost = self._is_lost or master_ended

        session = KeptSession(
            self._record.socket, channel, on_data=self._note_data, on_end=release, signal_process=self._signal_process
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await session.open()
        except (MasterError, TimeoutError):
            unlock(slot)
            await self._forget_dead_master()
            return False
        except BaseException:
            unlock(slot)
            raise
        self._note_data()
        self._sessions.add(session)
        await session.attach()
        self._master_watch = self._master_watch or asyncio.create_task(self._watch_master())
        return True

    async def _forget_dead_master(self) -> None:
        """Remove the record of a master that has ended, so that the next command starts another."""
        if await pid_of_master(self._record.socket) is None:
            with suppress(OSError):
                self._folder.record.unlink()

    async def _log_in_once(self) -> HostConnection:
        attempt = self._own_login
        if attempt is None or (attempt.done() and (attempt.cancelled() or attempt.exception())):
            attempt = self._own_login = asyncio.ensure_future(self._log_in())
        return await asyncio.shield(attempt)

    def _note_data(self) -> None:
        self._last_data_at = self._clock()

    async def _probe_every(self, seconds: float) -> None:
        """Open an empty session on the server after each silence of this many seconds."""
        while True:
            await asyncio.sleep(max(self._last_data_at + seconds - self._clock(), seconds / 4))
            if self._clock() - self._last_data_at >= seconds and await server_answers(self._record.socket):
                self._note_data()

    async def _watch_master(self) -> None:
        """End all sessions when the master does not answer."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._sessions and await pid_of_master(self._record.socket, LONGEST_SILENCE) is None:
                self._is_lost = True
                for session in list(self._sessions):
                    session.abort(master_ended=True)

    def _signal_process(self, pid: int, signal: str) -> None:
        command = f"exec /bin/sh -c 'kill -{signal} -{pid} || kill -{signal} {pid}'"
        self._in_background(run_unobserved(self._record.socket, command, SIGNAL_SECONDS))

    def _in_background(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
