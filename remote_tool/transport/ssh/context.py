"""Data that the connections of a command share; it stands alone, as the SSH library is slow to import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from remote_tool.transport.connection_cache import ConnectionCache, HasLiveness
from remote_tool.transport.ssh.passwords import Passphrases

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.prompter import Prompter
    from remote_tool.transport.ssh.endpoint import Endpoint
    from remote_tool.transport.ssh.host_keys.entries import HostKey
    from remote_tool.transport.ssh.host_keys.rules import HostKeyRules
    from remote_tool.transport.ssh.passwords import CommonPasswords


@dataclass(frozen=True)
class Hop:
    """A login that worked and can be repeated without asking anybody.

    Attributes:
        endpoint: The destination.
        host_key: The accepted key of the host.
        key_file: The private key of the login; None if the ssh agent has it.
        public_key: Its public half, as in a ``.pub`` file.
        cipher: The cipher for the data that we send.
    """

    endpoint: Endpoint
    host_key: HostKey
    key_file: Path | None
    public_key: str
    cipher: str


class JumpConnection(HasLiveness, Protocol):
    """A connection to a jump host, used for connections to other hosts."""

    @property
    def raw(self) -> Any:  # noqa: ANN401 - a type of the SSH library, which is loaded late
        """The library's connection."""

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The logins up to this host; empty unless all can be repeated."""

    async def close(self) -> None:
        """Close the connection, with a timeout."""


@dataclass(frozen=True)
class ConnectionContext:
    """Data shared by all connections of a command.

    Attributes:
        rules: The rules for host keys.
        prompter: Prompts for secrets.
        trace: Reports durations for ``-v``, in seconds, by server.
        common_passwords: Passwords that are asked for once for several servers.
        jumps: Connections to jump hosts, shared by the servers behind them.
        logins: Limits concurrent logins per address as seen from its jump host; several names may share an address.
        passphrases: Known passphrases of key files.
    """

    rules: HostKeyRules
    prompter: Prompter
    trace: Callable[[str, str, float], None]
    common_passwords: CommonPasswords
    jumps: ConnectionCache[tuple[str, ...], JumpConnection] = field(default_factory=ConnectionCache)
    logins: dict[tuple[JumpConnection | None, str], asyncio.Semaphore] = field(default_factory=dict)
    passphrases: Passphrases = field(default_factory=Passphrases)
