"""Carry bytes between the user's screen and a program on a server, until one of them ends it.

A program that outlasts its connection is connected with again, and the screen continues where it was.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import signal as signals
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from remote_tool.errors import JobError, RemoteToolError
from remote_tool.transport.host import Stream
from remote_tool.workflows.agent_client import (
    Conversation,
    NoAnswerError,
    SupervisorMissingError,
    open_agent,
    provide_supervisor,
)
from remote_tool.workflows.jobs.follow import WORKED_SECONDS, Patience, is_interruption
from remote_tool.workflows.status.link_news import LinkNews

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping

    from remote_tool.protocol.framing import Frame
    from remote_tool.transport.host import Channel, Host
    from remote_tool.workflows.context import Context

# For the first answer; the server says nothing more while nothing happens.
BEGIN_SECONDS = 60.0
# For keys typed before the user left; a server that does not take them is not waited for.
LAST_KEYS_SECONDS = 0.5


class Screen(Protocol):
    """The user's side."""

    @property
    def is_terminal(self) -> bool:
        """Whether keys and output belong to one terminal."""

    @property
    def window(self) -> tuple[int, int]:
        """Its rows and columns."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that describe it."""

    async def begin(self) -> None:
        """Take over the terminal: from now on keys go to the program. Called again for each new connection."""

    async def next(self) -> bytes | None:
        """Return the next message for the server; None once the user detaches."""

    async def left(self) -> None:
        """Return as soon as the user detaches, even if earlier messages have not been taken."""

    async def show(self, stream: Stream, output: bytes) -> None:
        """Show output as it is."""


@dataclass(frozen=True)
class End:
    """How a session ended.

    Attributes:
        exit_code: Of the program, 128+N for signal N; None when it may still run.
        is_detached: Whether the user has left it.
        refusal: Why the server did not give the terminal again after the connection was lost.
    """

    exit_code: int | None = None
    is_detached: bool = False
    refusal: JobError | None = None

    @property
    def text(self) -> str:
        """Return ``exit code 3``, or ``SIGTERM`` if a signal ended the program."""
        code = self.exit_code or 0
        with suppress(ValueError):
            return signals.Signals(code - 128).name if code > 128 else f"exit code {code}"  # noqa: PLR2004 - as shells do
        return f"exit code {code}"


@dataclass
class _Session:
    """One or several connections to the same program, one after the other.

    Attributes:
        seen: How many bytes the program had printed when the screen last showed some; None before the first ones.
        has_begun: Whether the screen was taken over.
    """

    context: Context
    server: str
    operation: str
    request: Mapping[str, object]
    screen: Screen
    news: LinkNews
    seen: int | None = None
    has_begun: bool = False


async def hold(context: Context, server: str, operation: str, request: Mapping[str, object], screen: Screen) -> End:
    """Ask for a program's terminal, and serve it until the program ends or the user detaches.

    An end without an exit code and without a user who left means that the server closed the session.

    Raises:
        JobError: The server cannot do it.
        ConnectionLostError: The connection was lost.
    """
    session = _Session(context, server, operation, request, screen, LinkNews(context, server))
    return await unless_left(screen, _connect(session))


async def hold_on(context: Context, server: str, operation: str, request: Mapping[str, object], screen: Screen) -> End:
    """As :func:`hold`, but connect again whenever the connection is lost, until the server refuses.

    Raises:
        JobError: The server cannot do it.
        ConnectError: The first connection failed.
    """
    session = _Session(context, server, operation, request, screen, LinkNews(context, server))
    return await unless_left(screen, _connect_until_it_ends(session))


async def unless_left(screen: Screen, work: Coroutine[Any, Any, End]) -> End:
    """Do work until the user leaves."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(screen.left())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((working,), timeout=LAST_KEYS_SECONDS)
        return working.result() if working.done() else End(is_detached=True)
    finally:
        await _end(working, leaving)


async def _connect_until_it_ends(session: _Session) -> End:
    # A laptop may be asleep for days.
    patience = Patience(math.inf)
    while True:
        connected_at = time.monotonic()
        try:
            end = await _connect(session)
            if end.exit_code is not None or end.is_detached:
                return end
            # It was too slow, or the supervisor has ended, which the next answer says.
            problem: RemoteToolError = NoAnswerError(f"{session.server} closed the terminal", server=session.server)
        except RemoteToolError as error:
            problem = error
        if not (session.has_begun and is_interruption(problem)):
            if session.has_begun and isinstance(problem, JobError):
                return End(refusal=problem)
            raise problem
        if time.monotonic() - connected_at > WORKED_SECONDS:
            patience.restore()
        pause = patience.next_pause(problem)
        session.news.interrupt(f"{problem.message}; connecting again")
        await asyncio.sleep(pause)


async def _connect(session: _Session) -> End:
    with session.news.waiting():
        host = await session.context.pool.host(session.server)
    try:
        return await _converse(session, host)
    except SupervisorMissingError:
        await provide_supervisor(host, session.context.config, session.operation)
        return await _converse(session, host)


async def _converse(session: _Session, host: Host) -> End:
    config, nonce = session.context.config, secrets.token_hex(16)
    request = dict(session.request) if session.seen is None else {**session.request, "seen": session.seen}
    label = f"terminal: {session.operation}"
    async with open_agent(host, config, session.operation, request, nonce, label=label) as channel:
        frames = Conversation(host, channel, nonce).frames()
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                first = await anext(frames, None)
        except TimeoutError:
            message = f"{host.name}: the terminal did not open within {BEGIN_SECONDS:.0f} s"
            raise NoAnswerError(message, server=host.name) from None
        if first is None:
            return End()
        session.has_begun = True
        session.news.resume()
        await session.screen.begin()
        async with session.news.watching(host):
            return await serve(_send(channel, session.screen), _receive(session, frames))


async def serve(sending: Coroutine[Any, Any, End], receiving: Coroutine[Any, Any, End]) -> End:
    """Pass on keys and output until one of them ends; the server's last word counts if both have ended."""
    tasks = asyncio.create_task(sending), asyncio.create_task(receiving)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[1].result() if tasks[1].done() else tasks[0].result()
    finally:
        await _end(*tasks)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def _send(channel: Channel, screen: Screen) -> End:
    while (message := await screen.next()) is not None:
        await channel.write(message)
    return End(is_detached=True)


async def _receive(session: _Session, frames: AsyncIterator[Frame]) -> End:
    end = End()
    async for frame in frames:
        if "stream" in frame.header:
            stream = Stream.ERR if frame.header["stream"] == Stream.ERR else Stream.OUT
            await session.screen.show(stream, frame.body)
            # Of a job: either the frame says where it ends, or it continues the one before.
            at = frame.header.get("at")
            session.seen = at if isinstance(at, int) else (session.seen or 0) + len(frame.body)
        elif "exit_code" in frame.header:
            end = End(_exit_code(frame.header))
    return end


def _exit_code(header: Mapping[str, Any]) -> int:
    code, name = header.get("exit_code"), header.get("signal")
    if isinstance(code, int):
        return code & 0xFF
    return 128 + signals.Signals[name] if isinstance(name, str) and name in signals.Signals.__members__ else 1
