"""connections: list the logins that are kept for later commands, or end them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.transport.kept.listing import end_kept, kept_logins
from remote_tool.transport.kept.master import pid_of_master
from remote_tool.workflows.selection import choose_servers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.transport.kept.folder import KeptFolder
    from remote_tool.transport.kept.record import Record
    from remote_tool.workflows.context import Context

# Below the 5 s within which every wait reports something.
ANSWER_SECONDS = 4.0


@dataclass(frozen=True)
class KeptLogin:
    """A kept login.

    Attributes:
        server: The server's name.
        address: The server's address.
        username: The user.
        since: When it was made, in seconds since 1970.
        sessions: The number of sessions that use it now.
        pid: The process id of the local ssh that keeps it; None if that does not answer.
    """

    server: str
    address: str
    username: str
    since: float
    sessions: int
    pid: int | None


async def list_connections(context: Context, servers: Sequence[str]) -> list[KeptLogin]:
    """Return the kept logins, without contacting any server."""
    return await asyncio.gather(*(_describe(folder, record) for folder, record in _find(context, servers)))


async def end_connections(context: Context, servers: Sequence[str]) -> list[KeptLogin]:
    """End the kept logins and all sessions that use them; return the logins that existed."""
    found = _find(context, servers)
    logins = await asyncio.gather(*(_describe(folder, record) for folder, record in found))
    ended = await asyncio.gather(*(end_kept(folder, record) for folder, record in found))
    return [login for login, was_there in zip(logins, ended, strict=True) if was_there]


def _find(context: Context, servers: Sequence[str]) -> list[tuple[KeptFolder, Record]]:
    return kept_logins(context.config.local.root, choose_servers(context.config, servers))


async def _describe(folder: KeptFolder, record: Record) -> KeptLogin:
    return KeptLogin(
        server=record.server,
        address=record.address,
        username=record.login.username,
        since=record.since,
        sessions=folder.sessions,
        pid=await pid_of_master(record.socket, ANSWER_SECONDS),
    )
