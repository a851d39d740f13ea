"""Write the settings of our logins as ``Host`` blocks, for ssh and the programs that use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.errors import ConnectError
from remote_tool.transport.kept.start import UnsuitableError, config_line
from remote_tool.transport.pool import Results, on_every
from remote_tool.transport.ssh.host_keys.known_hosts import lookup_names
from remote_tool.workflows.events import Notice
from remote_tool.workflows.selection import choose_servers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from remote_tool.transport.ssh.endpoint import Endpoint
    from remote_tool.workflows.context import Context


async def host_blocks(context: Context, servers: Sequence[str]) -> Results[str]:
    """Return the ``Host`` block of each server, after the blocks of its jump hosts; connects to none.

    Raises:
        UsageError: A server is unknown.
    """
    known_hosts = context.config.local.known_hosts

    async def write(server: str) -> str:
        way = await context.pool.endpoints(server)
        for key in dict.fromkeys(endpoint.identity.private_key for endpoint in way):
            if key is not None and not _exists(key):
                context.report(Notice(server, f"its private_key {key} does not exist, so no key is named"))
        try:
            return "".join(f"{line}\n" for line in _blocks(way, known_hosts))
        except UnsuitableError as problem:
            message = f"{server}: ssh_config cannot represent {str(problem)!r:.200}"
            raise ConnectError(message, server=server) from None

    return await on_every(choose_servers(context.config, servers), write)


def _blocks(way: Sequence[Endpoint], known_hosts: Path) -> Iterator[str]:
    server = way[-1].server
    names = [*(f"{server}-jump{number}" for number in range(1, len(way))), server]
    for number, (name, endpoint) in enumerate(zip(names, way, strict=True)):
        if endpoint.has_proxy_command:
            raise ConnectError(
                f"{server}: {endpoint.alias} has a ProxyCommand in ~/.ssh/config, which is not copied",
                hint=f"Add {server} to the Host line of {endpoint.alias} there",
                server=server,
            )
        yield f"Host {name}"
        for line in _settings(endpoint, known_hosts):
            yield f"    {line}"
        if number:
            yield f"    {config_line('ProxyJump', names[number - 1])}"


def _settings(endpoint: Endpoint, known_hosts: Path) -> Iterator[str]:
    identity, trust = endpoint.identity, endpoint.trust
    yield config_line("HostName", endpoint.host)
    yield config_line("Port", str(endpoint.port))
    yield config_line("User", endpoint.username)
    # ssh saves new keys in the first file; ours is written by us alone.
    yield config_line("UserKnownHostsFile", *dict.fromkeys(map(str, (*trust.files, known_hosts))))
    if trust.names != lookup_names(endpoint.host, endpoint.port):
        yield config_line("HostKeyAlias", trust.names[0])
    files = identity.files if identity.private_key is None else (identity.private_key,)
    found = [*filter(_exists, files)]
    for file in found:
        yield config_line("IdentityFile", str(file))
    if found if identity.private_key is not None else identity.files_only:
        yield config_line("IdentitiesOnly", "yes")


def _exists(file: Path) -> bool:
    """Return whether ssh finds a key file, or may find it behind an agent by its public half."""
    return any(each.exists() for each in (file, file.with_name(f"{file.name}.pub")))
