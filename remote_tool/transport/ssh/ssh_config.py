"""Merge ``~/.ssh/config`` for a server and its jump hosts with our configuration.

asyncssh parses the file; its parser gains the options that affect trust.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from remote_tool.errors import ConnectError
from remote_tool.transport.ssh.endpoint import DEFAULT_PORT, Endpoint, Identity, Trust
from remote_tool.transport.ssh.host_keys.known_hosts import lookup_names
from remote_tool.transport.ssh.library import SSHClientConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.config.servers import Server

KEEPALIVE_SECONDS = 15.0
KEEPALIVE_COUNT = 4
DEFAULT_USERNAME = "ubuntu"

# Options in attributes of Endpoint, and options that a login ignores.
KNOWN_OPTIONS = {
    *("Hostname", "Port", "User", "ProxyJump", "IdentityFile", "IdentitiesOnly", "IdentityAgent", "HostKeyAlias"),
    *("UserKnownHostsFile", "GlobalKnownHostsFile", "RevokedHostKeys", "StrictHostKeyChecking", "HashKnownHosts"),
    *("ServerAliveInterval", "ServerAliveCountMax", "ConnectTimeout", "Compression", "RequestTTY", "RemoteCommand"),
    *("ForwardAgent", "ForwardX11Trusted", "SendEnv", "SetEnv"),
}

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")


def resolve_endpoints(server: Server) -> list[Endpoint]:
    """Return the jump hosts of a server, nearest first, then the server."""
    identity = Identity(private_key=server.private_key, password=server.password, password_env=server.password_env)
    configured = _configured(server.name, server.hostname, server.username, server.port, identity)
    endpoints = [_resolve(replace(configured, is_listed=server.is_listed))]
    jumps, seen = list(endpoints[0].jumps), [""]
    while jumps:
        jump = jumps.pop()
        if jump in seen:
            text = f"{server.name}: ProxyJump in ~/.ssh/config forms a loop: {', '.join([*seen[1:], jump])}"
            raise ConnectError(text, server=server.name)
        seen.append(jump)
        endpoints.insert(0, _resolve_jump(server.name, jump))
        jumps = jumps or list(endpoints[0].jumps)
    return endpoints


def _resolve_jump(server: str, jump: str) -> Endpoint:
    split = _split_jump(jump)
    if split is None:
        raise ConnectError(f"{server}: invalid ProxyJump in ~/.ssh/config: {jump!r}", server=server)
    user, host, port = split
    return _resolve(replace(_configured(server, host, user, port, Identity()), is_jump=True))


def _configured(server: str, alias: str, username: str | None, port: int | None, identity: Identity) -> Endpoint:
    """Return an endpoint without options of ssh_config; username "" and port 0 are not configured."""
    return Endpoint(
        server=server,
        is_jump=False,
        alias=alias,
        host=alias,
        port=port or 0,
        username=username or "",
        jumps=(),
        trust=Trust((), ()),
        identity=identity,
    )


def _resolve(configured: Endpoint) -> Endpoint:
    """Add the options of ``~/.ssh/config`` to an endpoint of :func:`_configured`."""
    file = Path.home() / ".ssh" / "config"
    files = (file,) if os.access(file, os.R_OK) else ()
    try:
        settings = _load_config(configured, files)
    except (OSError, ValueError) as error:
        raise ConnectError(f"{configured.title}: {file} cannot be used: {error}", server=configured.server) from None
    host = str(settings.get("Hostname", configured.alias))
    port = cast("int", settings.get("Port", DEFAULT_PORT))
    jumps = cast("str | None", settings.get("ProxyJump"))
    # Jump hosts and hosts of a list are not configured, so the user is that of ssh.
    default_username = getpass.getuser() if configured.is_jump or configured.is_listed else DEFAULT_USERNAME
    return replace(
        configured,
        host=host,
        port=port,
        username=str(settings.get("User") or default_username),
        jumps=tuple(jump.strip() for jump in jumps.split(",")) if jumps else (),
        trust=_trust_of(settings, lookup_names(host, port, cast("str | None", settings.get("HostKeyAlias")))),
        identity=_identity_of(settings, configured.identity),
        config_files=files,
        included=tuple(settings.included),
        other_options=frozenset(settings.get_options(reload=False)) - KNOWN_OPTIONS,
        chooses_ciphers=bool(settings.get("Ciphers")),
        has_proxy_command=bool(settings.get("ProxyCommand")),
        keepalive_seconds=cast("float", settings.get("ServerAliveInterval", KEEPALIVE_SECONDS)),
        keepalive_count=cast("int", settings.get("ServerAliveCountMax", KEEPALIVE_COUNT)) or sys.maxsize,
    )


def _load_config(configured: Endpoint, files: tuple[Path, ...]) -> _Parser:
    def load(*, final: bool) -> _Parser:
        arguments = (getpass.getuser(), configured.username or (), configured.alias, configured.port or ())
        return cast("_Parser", _Parser.load(None, list(files), False, False, final, *arguments))

    settings = load(final=False)
    return load(final=True) if settings.has_match_final() else settings


class _Parser(SSHClientConfig):
    """Adds the options that affect trust, which asyncssh ignores, and the paths of included files."""

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401 - as in asyncssh
        super().__init__(*arguments)
        self.included: list[Path] = []

    def _include(self, option: str, args: list[str]) -> None:
        self.included += [Path.home() / ".ssh" / Path(pattern).expanduser() for pattern in args]
        SSHClientConfig._include(self, option, args)  # noqa: SLF001

    _handlers = SSHClientConfig._handlers | {  # noqa: SLF001 - asyncssh handles Host and Match
        "stricthostkeychecking": ("StrictHostKeyChecking", SSHClientConfig._set_string),  # noqa: SLF001
        "revokedhostkeys": ("RevokedHostKeys", SSHClientConfig._set_string),  # noqa: SLF001
        "knownhostscommand": ("KnownHostsCommand", SSHClientConfig._set_string),  # noqa: SLF001
        "hashknownhosts": ("HashKnownHosts", SSHClientConfig._set_bool),  # noqa: SLF001
        "include": ("Include", _include),
    }
    _no_split = SSHClientConfig._no_split | {"knownhostscommand"}  # noqa: SLF001
    _percent_expand = SSHClientConfig._percent_expand | {  # noqa: SLF001
        "UserKnownHostsFile",
        "GlobalKnownHostsFile",
        "RevokedHostKeys",
    }


def _trust_of(settings: SSHClientConfig, names: tuple[str, ...]) -> Trust:
    def paths(option: str, *default: str) -> list[Path]:
        names = cast("Sequence[str]", settings.get(option, default))
        return [Path(name).expanduser() for name in names]

    revoked = cast("str | None", settings.get("RevokedHostKeys"))
    has_command = settings.get("KnownHostsCommand") is not None
    checking = str(settings.get("StrictHostKeyChecking", "")).lower()
    return Trust(
        names=names,
        files=(
            *paths("UserKnownHostsFile", "~/.ssh/known_hosts", "~/.ssh/known_hosts2"),
            *paths("GlobalKnownHostsFile", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"),
        ),
        revoked=Path(revoked).expanduser() if revoked else None,
        strict=checking in {"yes", "true"} or has_command,
        asks=checking == "ask",
        hashes_names=bool(settings.get("HashKnownHosts")),
        ignored=("KnownHostsCommand",) if has_command else (),
        chooses_algorithms=bool(settings.get("HostKeyAlgorithms")),
    )


def _identity_of(settings: SSHClientConfig, configured: Identity) -> Identity:
    files = cast("Sequence[str]", settings.get("IdentityFile") or [f"~/.ssh/{name}" for name in DEFAULT_KEYS])
    agent = cast("str | None", settings.get("IdentityAgent", "SSH_AUTH_SOCK"))
    if agent == "SSH_AUTH_SOCK":
        agent = os.environ.get("SSH_AUTH_SOCK")
    return replace(
        configured,
        files=tuple(Path(name).expanduser() for name in files),
        files_only=bool(settings.get("IdentitiesOnly")),
        agent=str(Path(agent).expanduser()) if agent else "",
    )


def _split_jump(jump: str) -> tuple[str | None, str, int | None] | None:
    """Split ``[ssh://][user@]host[:port]``."""
    text = jump.removeprefix("ssh://").rstrip("/")
    user, at, place = text.rpartition("@")
    match = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?", place)
    if match is None:
        return None
    port = match["port"]
    return user if at else None, match["six"] or match["host"], int(port) if port else None
