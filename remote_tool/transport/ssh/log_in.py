"""Log in to a server through its jump hosts, and retry while the server is busy; loaded late, with asyncssh."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.errors import ConnectError
from remote_tool.transport.ssh.connection import Connection
from remote_tool.transport.ssh.endpoint import AuthMethods
from remote_tool.transport.ssh.host import SshHost
from remote_tool.transport.ssh.host_keys.rules import UnconfirmedKeyError
from remote_tool.transport.ssh.login_errors import HungUpError
from remote_tool.transport.ssh.ssh_config import resolve_endpoints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.config.servers import Server
    from remote_tool.transport.ssh.context import ConnectionContext, JumpConnection
    from remote_tool.transport.ssh.endpoint import Endpoint

# Seconds before retries. The first are short, as a busy server often accepts the next login. Their sum exceeds
# the first penalty of sshd after failed logins, 5 to 15 s (PerSourcePenalties).
PAUSES = (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 6.4)
JITTER = (0.85, 1.5)
REPORTED_PAUSE = 1.0
MAX_CONCURRENT_LOGINS = 8  # to one address: a stock sshd begins to drop at 10


async def connect(server: Server, context: ConnectionContext, methods: AuthMethods = AuthMethods.ANY) -> SshHost:
    """Log in to a server, through its jump hosts.

    Raises:
        ConnectError: Not connected; HostKeyError or LoginError if that was the reason.
    """
    connection = await log_in_to(server, context, methods)
    return SshHost(server.name, connection, context.trace, context.rules.notice)


async def log_in_to(server: Server, context: ConnectionContext, methods: AuthMethods = AuthMethods.ANY) -> Connection:
    """Log in to a server as in :func:`connect`, and return the connection itself."""
    began = time.monotonic()
    *jumps, endpoint = await asyncio.to_thread(resolve_endpoints, server)
    endpoint = replace(endpoint, identity=replace(endpoint.identity, methods=methods))
    connection = await log_in(jumps, endpoint, context)
    context.trace(server.name, f"log in to {endpoint.address} as {endpoint.username}", time.monotonic() - began)
    return connection


async def log_in(jumps: Sequence[Endpoint], endpoint: Endpoint, context: ConnectionContext) -> Connection:
    """Log in to each jump host in turn, then to the endpoint; every host key is checked."""
    tunnel: JumpConnection | None = None
    for number, jump in enumerate(jumps, 1):
        path = tuple(f"{before.username}@{before.address}" for before in jumps[:number])
        tunnel = await context.jumps.get(path, partial(_log_in_confirming_key, jump, context, tunnel))
    return await _log_in_confirming_key(endpoint, context, tunnel)


async def _log_in_confirming_key(
    endpoint: Endpoint, context: ConnectionContext, tunnel: JumpConnection | None
) -> Connection:
    """Log in; if a new host key must be confirmed, ask for that while no connection is open."""
    try:
        return await _log_in_with_retries(endpoint, context, tunnel)
    except UnconfirmedKeyError as error:
        if not await context.rules.confirm([error.new]):
            raise
    return await _log_in_with_retries(endpoint, context, tunnel)


async def _log_in_with_retries(
    endpoint: Endpoint, context: ConnectionContext, tunnel: JumpConnection | None
) -> Connection:
    """Log in; retry only if the server hung up before the login: it is busy, or refuses this machine for a while."""
    limit = context.logins.setdefault((tunnel, endpoint.address), asyncio.Semaphore(MAX_CONCURRENT_LOGINS))
    for pause in (*PAUSES, None):
        connection = Connection(endpoint, context)
        try:
            async with limit:
                await connection.log_in(tunnel)
        except HungUpError as error:
            if pause is None:
                raise ConnectError(error.message, hint=error.hint, server=error.server) from None
            if pause > REPORTED_PAUSE:
                context.rules.notice(endpoint.server, f"{error.message}; {error.hint}; trying again")
            await asyncio.sleep(pause * random.uniform(*JITTER))  # noqa: S311 - only a delay
        else:
            return connection
    raise AssertionError
