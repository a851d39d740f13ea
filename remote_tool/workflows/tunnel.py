"""A tunnel to the agent on a server: connections to and from its ports, over one channel."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from remote_tool.errors import ConnectError, JobError
from remote_tool.protocol.tunnel import Tunnel
from remote_tool.workflows.agent_client import (
    NoAnswerError,
    SupervisorMissingError,
    open_conversation,
    provide_supervisor,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from remote_tool.config.model import Config
    from remote_tool.protocol.framing import Frame
    from remote_tool.protocol.tunnel import Connection
    from remote_tool.transport.host import Host
    from remote_tool.workflows.agent_client import Conversation

OPERATION = "forward"
FIRST_ANSWER_SECONDS = 60.0
# The server ends a tunnel whose client is silent for two minutes.
ALIVE_SECONDS = 20.0


class OpenTunnel(NamedTuple):
    """A tunnel whose other side is ready.

    Attributes:
        tunnel: This side.
        ready: The first frame's header, with the ports on which the server listens.
        frames: All other frames.
    """

    tunnel: Tunnel
    ready: Mapping[str, Any]
    frames: AsyncIterator[Frame]


@asynccontextmanager
async def open_tunnel(
    host: Host, config: Config, request: Mapping[str, Any], connect: Callable[[Any], Awaitable[Connection]]
) -> AsyncIterator[OpenTunnel]:
    """Open a tunnel; leaving the context resets its connections, and closes the server's ports.

    Args:
        host: The server.
        config: The configuration.
        request: Where the server listens, and the job whose ports it reports.
        connect: Connects to a target here that the server names.

    Raises:
        NoPythonError: The server has no Python.
        JobError: It refuses, for example because a port is in use there.
        NoAnswerError: It does not answer in time.
    """
    async with AsyncExitStack() as stack:
        opening = partial(_open_once, host, config, request, connect)
        try:
            opened = await stack.enter_async_context(opening())
        except SupervisorMissingError:
            await provide_supervisor(host, config, OPERATION)
            opened = await stack.enter_async_context(opening())
        yield opened


@asynccontextmanager
async def _open_once(
    host: Host, config: Config, request: Mapping[str, Any], connect: Callable[[Any], Awaitable[Connection]]
) -> AsyncIterator[OpenTunnel]:
    async with open_conversation(host, config, OPERATION, request) as conversation:
        tunnel = Tunnel(conversation.nonce, is_first=True, write=partial(_write, conversation), connect=connect)
        frames = conversation.frames()
        ready = await _first_header(frames, host.name)
        keep_alive = asyncio.create_task(_send_alive(tunnel))
        try:
            yield OpenTunnel(tunnel, ready, frames)
        finally:
            keep_alive.cancel()
            await tunnel.close()


async def _first_header(frames: AsyncIterator[Frame], server: str) -> Mapping[str, Any]:
    try:
        async with asyncio.timeout(FIRST_ANSWER_SECONDS):
            first = await anext(frames, None)
    except TimeoutError:
        raise NoAnswerError(f"{server}: no answer within {FIRST_ANSWER_SECONDS:.0f} s", server=server) from None
    if first is None or "ready" not in first.header:
        raise NoAnswerError(f"{server}: the tunnel ended before it began", server=server)
    return first.header


async def _write(conversation: Conversation, frame: bytes) -> None:
    try:
        await conversation.send(frame)
    except (ConnectError, JobError) as error:
        raise ConnectionResetError(str(error)) from error


async def _send_alive(tunnel: Tunnel) -> None:
    with suppress(OSError):
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            await tunnel.send({"alive": True})
