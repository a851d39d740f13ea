"""Data shared by a command's connections, in its own module, since importing the SSH library is slow."""

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
        endpoint: Where it led.
        host_key: What the host showed and may show.
        key_file: The private key that let us in; None when the ssh agent has it.
        public_key: The public half, as a ``.pub`` file has it.
        cipher: What encrypts the data that we send.
    """

    endpoint: Endpoint
    host_key: HostKey
    key_file: Path | None
    public_key: str
    cipher: str


class JumpConnection(HasLiveness, Protocol):
    """A connection to a jump host, used for others."""

    @property
    def raw(self) -> Any:  # noqa: ANN401 - a type of the SSH library, which is loaded late
        """The library's connection."""

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The logins on the way, where all of them can be repeated."""

    async def close(self) -> None:
        """Close the connection, with a timeout."""


@dataclass(frozen=True)
class ConnectionContext:
    """Data shared by all connections of a command.

    Attributes:
        rules: Which host keys are accepted.
        prompter: Prompts for secrets.
        trace: Reports durations for ``-v``, in seconds, by server.
        common_passwords: Passwords asked for once for several servers.
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
