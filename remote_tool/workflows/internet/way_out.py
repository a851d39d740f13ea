"""Open the way out for one step on a server: a port of its loopback, whose connections a proxy here answers."""

from __future__ import annotations

import asyncio
import secrets
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, RemoteToolError
from remote_tool.readable import readable_size
from remote_tool.redaction import hide
from remote_tool.workflows.internet.proxy import CHUNK, USER, Proxy
from remote_tool.workflows.tunnel import OpenTunnel, open_tunnel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from remote_tool.config.model import Config
    from remote_tool.protocol.tunnel import Connection
    from remote_tool.transport.host import Host

VARIABLES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
NOT_THROUGH = ("no_proxy", "NO_PROXY")
LOOPBACK, LARGEST_PORT = "127.0.0.1", 65535
MOST_NAMED = 4


@dataclass(frozen=True)
class WayOut:
    """A way out that is open.

    Attributes:
        variables: For the programs that use it.
    """

    variables: Mapping[str, str]
    _proxy: Proxy

    @property
    def carried(self) -> str:
        """What was carried, such as ``3.1 MiB through this machine``; empty if nothing was."""
        return f"{readable_size(self._proxy.bytes)} through this machine" if self._proxy.bytes else ""

    @property
    def problem(self) -> str:
        """The hosts that could not be reached, and why; empty if there was none."""
        problems = [f"{host} {why}" for host, why in self._proxy.problems.items()]
        more = [f"and {len(problems) - MOST_NAMED} more"] if len(problems) > MOST_NAMED else []
        return "; ".join([*problems[:MOST_NAMED], *more])


@asynccontextmanager
async def way_out(host: Host, config: Config, allow: Callable[[str], Awaitable[bool]]) -> AsyncIterator[WayOut]:
    """Open the way out of a server until the context is left.

    Args:
        host: The server.
        config: The configuration, with the hosts that are allowed.
        allow: Asks the user whether another host is allowed.

    Raises:
        NoPythonError: The server has no Python yet.
        JobError: It cannot listen.
        ConnectionLostError: The connection was lost.
    """
    secret = secrets.token_urlsafe(32)
    hide([secret])
    proxy = Proxy(secret, config.internet_hosts, allow)
    serving: set[asyncio.Task[None]] = set()

    async def connect(_: object) -> Connection:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours, limit=CHUNK)
        task = asyncio.create_task(proxy.serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)
        return await asyncio.open_connection(sock=theirs, limit=CHUNK)

    request = {"listen": [{"hosts": [LOOPBACK], "port": 0}], "job": ""}
    try:
        async with open_tunnel(host, config, request, connect) as tunnel:
            url = f"http://{USER}:{secret}@{LOOPBACK}:{_port_in(tunnel, host.name)}"
            taking = asyncio.create_task(_take_frames(tunnel))
            try:
                yield WayOut({**dict.fromkeys(VARIABLES, url), **_not_through(config, host.name)}, proxy)
            finally:
                taking.cancel()
                await asyncio.wait([taking])
    finally:
        for task in serving:
            task.cancel()


def _not_through(config: Config, server: str) -> dict[str, str]:
    """Return the variables with the hosts that programs reach by themselves: the server itself, and as configured."""
    known = config.variables_of(server)
    own = [value for name in NOT_THROUGH if (value := known.get(name))]
    return dict.fromkeys(NOT_THROUGH, ",".join(dict.fromkeys(["localhost", LOOPBACK, "::1", *own])))


def _port_in(tunnel: OpenTunnel, server: str) -> int:
    match tunnel.ready.get("listening"):
        case [int(port)] if 0 < port <= LARGEST_PORT:
            return port
    raise JobError(f"{server}: no port to listen on", server=server)


async def _take_frames(tunnel: OpenTunnel) -> None:
    # When the connection is lost, the step says so itself.
    with suppress(RemoteToolError):
        async for frame in tunnel.frames:
            tunnel.tunnel.take(frame.header, frame.body)
