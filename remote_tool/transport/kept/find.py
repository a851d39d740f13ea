"""Find the kept login of a server, if it may still be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.transport.kept.connection import KeptConnection
from remote_tool.transport.kept.folder import place_of
from remote_tool.transport.kept.record import read_record
from remote_tool.transport.ssh.host import SshHost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from remote_tool.config.model import Config
    from remote_tool.transport.kept.folder import Place
    from remote_tool.transport.kept.record import Record
    from remote_tool.transport.ssh.context import ConnectionContext
    from remote_tool.transport.ssh.host import HostConnection


@dataclass(frozen=True)
class Kept:
    """A kept login."""

    server: str
    place: Place
    record: Record

    def host(self, log_in: Callable[[], Awaitable[HostConnection]], context: ConnectionContext) -> SshHost:
        """Return the server; ``log_in`` makes our own login when the kept one opens no session."""
        connection = KeptConnection(self.server, self.place, self.record, log_in)
        return SshHost(self.server, connection, context.trace, context.rules.notice)


def find_kept(config: Config, name: str) -> Kept | None:
    """Return the kept login of a server if its settings, keys and host keys are unchanged."""
    place = place_of(config, name) if config.keep_connections else None
    record = read_record(place) if place else None
    return Kept(name, place, record) if place and record and record.is_usable else None
