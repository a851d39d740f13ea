"""What carries the sessions of a server whose login is kept, with a login of our own where that does not do."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.transport.kept.master import ANSWER_SECONDS, NoAnswerError, pid_of_master, run_blindly, server_answers
from remote_tool.transport.kept.session import KeptSession
from remote_tool.transport.ssh.channel import lost
from remote_tool.transport.ssh.liveness import report_silence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from remote_tool.transport.kept.folder import Place
    from remote_tool.transport.kept.record import Record
    from remote_tool.transport.login import Login
    from remote_tool.transport.ssh.channel import SshChannel
    from remote_tool.transport.ssh.host import Link

# The master itself asks the server, and ends when it does not answer; this is for a master that was stopped.
CHECK_SECONDS = 15.0
LONGEST_SILENCE = 60.0
SIGNAL_SECONDS = 5.0
GOODBYE_SECONDS = 1.0


class KeptConnection:
    """Sessions over a master; see :class:`remote_tool.transport.ssh.host.Link`.

    Args:
        server: Its name.
        place: Where the kept login is.
        record: What is known of it.
        log_in: Makes a login of our own, for a session that the kept one does not open.
    """

    def __init__(self, server: str, place: Place, record: Record, log_in: Callable[[], Awaitable[Link]]) -> None:
        self._server = server
        self._place = place
        self._record = record
        self._log_in = log_in
        self._own: asyncio.Future[Link] | None = None
        self._sessions: set[KeptSession] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._guard: asyncio.Task[None] | None = None
        self._clock = asyncio.get_running_loop().time
        self._heard_at = self._clock()
        self._is_lost = False

    @property
    def own(self) -> Link | None:
        """The login of our own, where one was made."""
        is_made = self._own is not None and self._own.done() and not self._own.cancelled()
        return self._own.result() if self._own is not None and is_made and self._own.exception() is None else None

    @property
    def alive(self) -> bool:
        """Whether it stands, as far as we know."""
        return not self._is_lost and (self.own is None or self.own.alive)

    @property
    def login(self) -> Login:
        """How we got in."""
        return self._record.login

    async def create_session(self, channel: SshChannel) -> None:
        """Start the shell in a session over the master, else in one of our own login.

        The master has said that the session is open before it gets a byte of the script: where it says anything else,
        or nothing in time, nothing was run.
        """
        if self._is_lost:
            raise lost(self._server, None)
        if self._own is None and await self._open(channel):
            return
        await (await self._log_in_once()).create_session(channel)

    async def watch(self, seconds: float, tell: Callable[[bool], None]) -> None:
        """Tell when the server falls silent, and when it speaks again."""
        if self.own is not None:
            await self.own.watch(seconds, tell)
            return
        asking = asyncio.create_task(self._ask_every(seconds / 2))
        try:
            await report_silence(lambda: self._heard_at, seconds, tell)
        finally:
            asking.cancel()

    async def close(self) -> None:
        """Leave the master as it is; end what is ours."""
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
        """Open a session over the master; False where our own login has to."""
        slot = self._place.take_slot()
        if slot is None:
            return False

        def end(is_gone: bool) -> None:
            os.close(slot)
            self._sessions.discard(session)
            self._is_lost = self._is_lost or is_gone

        session = KeptSession(
            self._record.socket, channel, on_data=self._hear, on_end=end, signal_process=self._signal_process
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await session.open()
        except (NoAnswerError, TimeoutError):
            os.close(slot)
            await self._forget_a_dead_master()
            return False
        except BaseException:
            os.close(slot)
            raise
        self._hear()
        self._sessions.add(session)
        await session.attach()
        self._guard = self._guard or asyncio.create_task(self._watch_master())
        return True

    async def _forget_a_dead_master(self) -> None:
        """Have the next command start another one; a master that lives may have a server that is only slow."""
        if await pid_of_master(self._record.socket) is None:
            with suppress(OSError):
                self._place.record.unlink()

    async def _log_in_once(self) -> Link:
        if self._own is None or (self._own.done() and (self._own.cancelled() or self._own.exception())):
            self._own = asyncio.ensure_future(self._log_in())
        return await asyncio.shield(self._own)

    def _hear(self) -> None:
        self._heard_at = self._clock()

    async def _ask_every(self, seconds: float) -> None:
        """Have the server say something; where nothing carries the question, the sessions hear of that."""
        while True:
            await asyncio.sleep(max(self._heard_at + seconds - self._clock(), seconds / 4))
            if self._clock() - self._heard_at >= seconds and await server_answers(self._record.socket):
                self._hear()

    async def _watch_master(self) -> None:
        """End the sessions of a master that does not answer."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._sessions and await pid_of_master(self._record.socket, LONGEST_SILENCE) is None:
                self._is_lost = True
                for session in list(self._sessions):
                    session.abort()

    def _signal_process(self, pid: int, signal: str) -> None:
        command = f"exec /bin/sh -c 'kill -{signal} -{pid} || kill -{signal} {pid}'"
        self._in_background(run_blindly(self._record.socket, command, SIGNAL_SECONDS))

    def _in_background(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
