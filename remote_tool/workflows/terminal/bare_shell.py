"""A shell on a server that has no Python for the agent: on a terminal of sshd's own, or with three plain streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from remote_tool.protocol.terminal import END, INPUT, WINDOW, MessageReader, read_window
from remote_tool.transport.host import Stream, UserTerminal
from remote_tool.workflows.jobs.bare_run import CHUNK, END_OF_INPUT, input_line, open_bare, status_of
from remote_tool.workflows.status.link_news import LinkNews
from remote_tool.workflows.terminal.session import End, serve, unless_left

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.transport.host import Channel
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.terminal.session import Screen

UNKNOWN_KIND = "dumb"


async def hold_bare(context: Context, server: str, request: Mapping[str, object], screen: Screen) -> End:
    """Serve a shell until it ends or the user leaves it.

    Raises:
        ConnectError: The server gives no terminal.
        ConnectionLostError: The connection was lost.
    """
    return await unless_left(screen, _hold(context, server, request, screen))


async def _hold(context: Context, server: str, request: Mapping[str, object], screen: Screen) -> End:
    news = LinkNews(context, server)
    with news.waiting():
        host = await context.pool.host(server)
    async with open_bare(host, context.config, request, _terminal_of(screen)) as channel:
        await screen.begin()
        async with news.watching(host):
            return await serve(_send(channel, screen), _receive(channel, screen))


def _terminal_of(screen: Screen) -> UserTerminal | None:
    if not screen.is_terminal:
        return None
    return UserTerminal(screen.variables.get("TERM", UNKNOWN_KIND), *screen.window)


async def _send(channel: Channel, screen: Screen) -> End:
    reader = MessageReader()
    while (data := await screen.next()) is not None:
        for kind, body in reader.feed(data):
            if kind == INPUT:
                await channel.write(body if screen.is_terminal else input_line(body))
            elif kind == END:
                await channel.write(END_OF_INPUT)
            elif kind == WINDOW:
                channel.resize(*read_window(body))
    return End(is_detached=True)


async def _receive(channel: Channel, screen: Screen) -> End:
    async def show(stream: Stream) -> None:
        while data := await channel.read(stream, CHUNK):
            await screen.show(stream, data)

    await asyncio.gather(*map(show, Stream))
    return End(status_of(await channel.wait()))
