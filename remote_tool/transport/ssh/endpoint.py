"""The destination and the credentials of a login: frozen values, from our configuration and ``~/.ssh/config``."""

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
    """The rules of ssh_config for the key of a host.

    Attributes:
        names: Names of the host in known_hosts files.
        files: The known_hosts files of the user and of the system.
        revoked: A file of revoked keys.
        strict: Whether ssh_config refuses unknown hosts.
        asks: Whether ssh_config requires confirmation of unknown hosts.
        hashes_names: Whether ssh_config requires hashed host names.
        ignored: Options of ssh_config that we do not support; without them, fewer keys are accepted.
        chooses_algorithms: Whether ssh_config sets the types of host keys.
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
    """The authentication methods of a login."""

    ANY = "any"
    KEYS = "keys"
    PASSWORDS = "passwords"


@dataclass(frozen=True)
class Identity:
    """The credentials of a login.

    Attributes:
        methods: Whether keys, passwords or both are used.
        private_key: The configured key; only this one is offered then.
        password: The configured password, never shown.
        password_env: The environment variable with the password.
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
        """Return the configured password; None if the user must be asked."""
        if self.password is not None or self.password_env is None:
            return self.password
        return os.environ.get(self.password_env)


@dataclass(frozen=True)
class Endpoint:
    """An SSH server to log in to.

    Attributes:
        server: Name of the configured server at this endpoint, or behind this jump host.
        is_jump: Whether it is a jump host on the way to the server.
        alias: The configured host, looked up in ``~/.ssh/config``.
        host: The host to connect to.
        port: The host's port.
        username: The user.
        jumps: The jump hosts before it, ``user@host:port`` each.
        trust: The rules for its host key.
        identity: The credentials.
        config_files: The ssh_config files with all other options.
        included: The paths in their Include options, which may have wildcards.
        other_options: Options for this host that no other attribute contains.
        chooses_ciphers: Whether ssh_config sets the ciphers.
        is_listed: Whether the server comes from a host list, without configuration.
        has_proxy_command: Whether ssh_config connects through a program.
        keepalive_seconds: Silence before a keepalive is sent; 0 disables keepalives.
        keepalive_count: Unanswered keepalives until the connection is lost.
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
    included: tuple[Path, ...] = ()
    other_options: frozenset[str] = frozenset()
    chooses_ciphers: bool = False
    is_listed: bool = False
    has_proxy_command: bool = False
    keepalive_seconds: float = 0
    keepalive_count: int = 0

    @property
    def title(self) -> str:
        """Return its name in messages."""
        return f"jump host {self.alias}" if self.is_jump else self.server

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def ssh_command(self) -> str:
        """Return the ssh command for the same login."""
        port = "" if self.port == DEFAULT_PORT else f"-p {self.port} "
        return f"ssh {port}{self.username}@{self.alias}"

    def settings(self, *keys: str) -> str:
        """Return the names of settings with their source: ``hostname: and port: of gpu1 in .remote/configs.yaml``."""
        if self.is_jump or self.is_listed:
            return f"{self.alias} in ~/.ssh/config"
        return f"{' and '.join(f'{key}:' for key in keys)} of {self.server} in .remote/configs.yaml"


def printable(text: str) -> str:
    """Return a server's text without control characters."""
    return redact("".join(letter if letter.isprintable() else " " for letter in text))[:500]
