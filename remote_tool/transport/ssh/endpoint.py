"""Where a login goes and with what: the configuration and ``~/.ssh/config`` together, as frozen values."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from remote_tool.redaction import redact

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT = 22


@dataclass(frozen=True)
class Trust:
    """Where the key of a host is looked up.

    Attributes:
        names: What the host is called in known_hosts files.
        files: Those of the user and of the system.
        revoked: A file of keys that no host may show.
        strict: Whether ssh_config refuses unknown hosts.
        asks: Whether ssh_config wants a person to confirm unknown hosts.
        hashes_names: Whether ssh_config wants names of hosts written as hashes.
        ignored: Options of ssh_config that we leave out, on the strict side.
        chooses_algorithms: Whether ssh_config says which types of host keys are asked for.
    """

    names: tuple[str, ...]
    files: tuple[Path, ...]
    revoked: Path | None = None
    strict: bool = False
    asks: bool = False
    hashes_names: bool = False
    ignored: tuple[str, ...] = ()
    chooses_algorithms: bool = False


class AuthMethods(Enum):
    """What a login may use."""

    ANY = "any"
    KEYS = "keys"
    PASSWORDS = "passwords"


@dataclass(frozen=True)
class Identity:
    """What to log in with.

    Attributes:
        methods: Whether keys, passwords or both are used.
        private_key: The configured one; no other key is offered then.
        password: Never shown.
        password_env: The variable that holds it.
        files: The key files that ssh would try.
        files_only: Whether the agent may offer only these.
        agent: The socket of the ssh agent; empty without one.
    """

    methods: AuthMethods = AuthMethods.ANY
    private_key: Path | None = None
    password: str | None = field(default=None, repr=False)
    password_env: str | None = None
    files: tuple[Path, ...] = ()
    files_only: bool = False
    agent: str = ""

    def configured_password(self) -> str | None:
        """Return the password that nobody needs to be asked for."""
        if self.password is not None or self.password_env is None:
            return self.password
        return os.environ.get(self.password_env)


@dataclass(frozen=True)
class Endpoint:
    """One SSH server to log in to.

    Attributes:
        server: The name in the configuration of the server it is, or leads to.
        is_jump: Whether it is a jump host on the way to the server.
        alias: What was configured; ``~/.ssh/config`` is asked for it.
        host: What is connected to.
        port: Of the host.
        username: Who logs in.
        jumps: The jump hosts before it, ``user@host:port`` each.
        trust: Whose key it must show.
        identity: What to log in with.
        config_files: The ssh_config files that say all the rest.
        other_options: What they say about this host that no other attribute has.
        chooses_ciphers: Whether they say which ciphers are used.
        is_listed: Whether only a host list named the server, so that nothing is configured for it.
        has_proxy_command: Whether a program of theirs connects, instead of us.
        keepalive_seconds: How long the server may be silent before it is asked for a sign of life; 0 never asks.
        keepalive_count: How many of these it may leave unanswered.
    """

    server: str
    is_jump: bool
    alias: str
    host: str
    port: int
    username: str
    jumps: tuple[str, ...]
    trust: Trust
    identity: Identity
    config_files: tuple[Path, ...] = ()
    other_options: frozenset[str] = frozenset()
    chooses_ciphers: bool = False
    is_listed: bool = False
    has_proxy_command: bool = False
    keepalive_seconds: float = 0
    keepalive_count: int = 0

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"jump host {self.alias}" if self.is_jump else self.server

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def ssh_command(self) -> str:
        """What a user types to try it."""
        port = "" if self.port == DEFAULT_PORT else f"-p {self.port} "
        return f"ssh {port}{self.username}@{self.alias}"

    def settings(self, *keys: str) -> str:
        """Name settings by their place: ``hostname: and port: of gpu1 in .remote/configs.yaml``."""
        if self.is_jump or self.is_listed:
            return f"{self.alias} in ~/.ssh/config"
        return f"{' and '.join(f'{key}:' for key in keys)} of {self.server} in .remote/configs.yaml"


def printable(text: str) -> str:
    """Return a server's text without what could steer a terminal."""
    return redact("".join(letter if letter.isprintable() else " " for letter in text))[:500]
