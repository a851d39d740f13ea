"""Carry bytes between the user's screen and a program on a server, until the program ends or the user detaches.

A program that outlasts a lost connection is connected again, and the screen continues where it was.
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

# For the first answer; after it, the server sends nothing while nothing happens.
BEGIN_SECONDS = 60.0
# For sending the keys that the user typed before detaching.
LAST_KEYS_SECONDS = 0.5


class Screen(Protocol):
    """The user's side: a terminal, or three plain streams."""

    @property
    def is_terminal(self) -> bool:
        """Whether keys and output belong to one terminal."""

    @property
    def window(self) -> tuple[int, int]:
        """The rows and columns of the terminal."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that describe the terminal."""

    async def begin(self) -> None:
        """Send keys to the program from now on. Called again for each new connection."""

    async def next(self) -> bytes | None:
        """Return the next message for the server; None when the user detaches."""

    async def left(self) -> None:
        """Return as soon as the user detaches, even if the server has not received earlier messages."""

    async def show(self, stream: Stream, output: bytes) -> None:
        """Write output unchanged."""


@dataclass(frozen=True)
class SessionEnd:
    """The end of a session.

    Attributes:
        exit_code: The exit code of the program, 128+N for signal N; None if it may still run.
        is_detached: Whether the user has detached.
        refusal: The error if the server refused the terminal after the connection was lost.
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
class _TerminalSession:
    """Connections to the same program, one after the other.

    Attributes:
        seen: The number of bytes of the program's output up to the last one shown; None before the first.
        has_begun: Whether the screen has begun to send keys.
    """

    context: Context
    server: str
    operation: str
    request: Mapping[str, object]
    screen: Screen
    news: LinkNews
    seen: int | None = None
    has_begun: bool = False


async def serve_terminal(
    context: Context, server: str, operation: str, request: Mapping[str, object], screen: Screen
) -> SessionEnd:
    """Connect the screen to a program, until the program ends or the user detaches.

    If the end has no exit code and the user has not detached, the server closed the session.

    Raises:
        JobError: The server cannot do it.
        ConnectionLostError: The connection was lost.
    """
    session = _TerminalSession(context, server, operation, request, screen, LinkNews(context, server))
    return await until_detached(screen, _connect(session))


async def serve_terminal_reconnecting(
    context: Context, server: str, operation: str, request: Mapping[str, object], screen: Screen
) -> SessionEnd:
    """Do the same as :func:`serve_terminal`, but connect again when the connection is lost, until the server refuses.

    Raises:
        JobError: The server cannot do it.
        ConnectError: The first connection failed.
    """
    session = _TerminalSession(context, server, operation, request, screen, LinkNews(context, server))
    return await until_detached(screen, _connect_until_end(session))


async def until_detached(screen: Screen, work: Coroutine[Any, Any, SessionEnd]) -> SessionEnd:
    """Do work until the user detaches."""
    working, detaching = asyncio.create_task(work), asyncio.create_task(screen.left())
    try:
        await asyncio.wait((working, detaching), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((working,), timeout=LAST_KEYS_SECONDS)
        return working.result() if working.done() else SessionEnd(is_detached=True)
    finally:
        await _cancel(working, detaching)


async def _connect_until_end(session: _TerminalSession) -> SessionEnd:
    # A laptop may be asleep for days.
    patience = Patience(math.inf)
    while True:
        connected_at = time.monotonic()
        try:
            end = await _connect(session)
            if end.exit_code is not None or end.is_detached:
                return end
            # This screen was too slow, or the supervisor has ended: the next answer says so.
            problem: RemoteToolError = NoAnswerError(f"{session.server} closed the terminal", server=session.server)
        except RemoteToolError as error:
            problem = error
        if not (session.has_begun and is_interruption(problem)):
            if session.has_begun and isinstance(problem, JobError):
                return SessionEnd(refusal=problem)
            raise problem
        if time.monotonic() - connected_at > WORKED_SECONDS:
            patience.restore()
        pause = patience.next_pause(problem)
        session.news.interrupt(f"{problem.message}; connecting again")
        await asyncio.sleep(pause)


async def _connect(session: _TerminalSession) -> SessionEnd:
    with session.news.waiting():
        host = await session.context.pool.host(session.server)
    try:
        return await _converse(session, host)
    except SupervisorMissingError:
        await provide_supervisor(host, session.context.config, session.operation)
        return await _converse(session, host)


async def _converse(session: _TerminalSession, host: Host) -> SessionEnd:
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
            return SessionEnd()
        session.has_begun = True
        session.news.resume()
        await session.screen.begin()
        async with session.news.watching(host):
            return await serve(_send(channel, session.screen), _receive(session, frames))


async def serve(sending: Coroutine[Any, Any, SessionEnd], receiving: Coroutine[Any, Any, SessionEnd]) -> SessionEnd:
    """Pass on keys and output until one of them ends; if both have, the end of the output counts."""
    tasks = asyncio.create_task(sending), asyncio.create_task(receiving)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[1].result() if tasks[1].done() else tasks[0].result()
    finally:
        await _cancel(*tasks)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def _send(channel: Channel, screen: Screen) -> SessionEnd:
    while (message := await screen.next()) is not None:
        await channel.write(message)
    return SessionEnd(is_detached=True)


async def _receive(session: _TerminalSession, frames: AsyncIterator[Frame]) -> SessionEnd:
    end = SessionEnd()
    async for frame in frames:
        if "stream" in frame.header:
            stream = Stream.ERR if frame.header["stream"] == Stream.ERR else Stream.OUT
            await session.screen.show(stream, frame.body)
            # A frame of a job's output may tell where it ends; otherwise it continues the one before.
            at = frame.header.get("at")
            session.seen = at if isinstance(at, int) else (session.seen or 0) + len(frame.body)
        elif "exit_code" in frame.header:
            end = SessionEnd(_exit_code(frame.header))
    return end


def _exit_code(header: Mapping[str, Any]) -> int:
    code, name = header.get("exit_code"), header.get("signal")
    if isinstance(code, int):
        return code & 0xFF
    return 128 + signals.Signals[name] if isinstance(name, str) and name in signals.Signals.__members__ else 1
