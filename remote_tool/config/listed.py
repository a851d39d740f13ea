"""Hosts of a list as servers: configured servers keep their settings, others use ssh's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.config.hosts import ListedHost, canonical_host, name_for
from remote_tool.config.model import Server
from remote_tool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote_tool.config.model import Config

LONGEST_NAME = 64


def with_listed(config: Config, hosts: Sequence[ListedHost]) -> Config:
    """Return a configuration that selects the hosts of a list, in their order.

    A host that is the name or the hostname of a configured server is that server. Another one becomes a server; a host
    of an earlier list keeps its name.

    Raises:
        UsageError: A host is ambiguous or given twice, or its user is not that of its server.
    """
    found = servers_for(hosts, config.servers)
    return replace(
        config,
        servers={**config.servers, **{server.name: server for server, _ in found}},
        listed={server.name: host.processes for server, host in found},
    )


def servers_for(hosts: Sequence[ListedHost], known: Mapping[str, Server]) -> list[tuple[Server, ListedHost]]:
    """Return the server of each host: a known one by name, or a new one.

    Raises:
        UsageError: As :func:`with_listed`.
    """
    servers = dict(known)
    found: list[tuple[Server, ListedHost]] = []
    for host in hosts:
        server = _configured(servers, host) or _known(servers, host) or _new(servers, host)
        twice = [other.hostname for each, other in found if each.name == server.name]
        if twice:
            raise UsageError(f"{twice[0]} and {host.hostname} are both the server {server.name}", hint="List it once")
        servers[server.name] = server
        found.append((server, host))
    return found


def with_remembered(config: Config, remembered: Iterable[Server]) -> Config:
    """Return a configuration that includes the servers of earlier lists; configured ones win."""
    return replace(
        config,
        servers={**config.servers, **{each.name: each for each in remembered if each.name not in config.servers}},
    )


def _configured(servers: Mapping[str, Server], host: ListedHost) -> Server | None:
    named = servers.get(host.hostname)
    if named is not None and not named.is_listed:
        return _with_its_user(named, host)
    address = canonical_host(host.hostname)
    there = [each for each in servers.values() if not each.is_listed and canonical_host(each.hostname) == address]
    found = [each for each in there if host.username is None or each.username in {None, host.username}]
    if len(found) > 1:
        names = " and ".join(each.name for each in found)
        raise UsageError(
            f"{host.hostname} is ambiguous: it is the host of {names}",
            hint=f"Use the name of the server, such as {found[0].name}",
        )
    return _with_its_user(found[0], host) if found else None


def _with_its_user(server: Server, host: ListedHost) -> Server:
    if host.username not in {None, server.username}:
        wanted = f"the user {server.username}" if server.username else "no username"
        raise UsageError(
            f"{host.username}@{host.hostname} is the server {server.name}, which is configured with {wanted}",
            hint=f"Leave out {host.username}@, or set username: of {server.name} in .remote/configs.yaml",
        )
    return server


def _known(servers: Mapping[str, Server], host: ListedHost) -> Server | None:
    """Return the server that this host became in an earlier list."""
    for server in servers.values():
        if server.is_listed and (canonical_host(server.hostname), server.username) == host.login:
            return server
    return None


def _new(servers: Mapping[str, Server], host: ListedHost) -> Server:
    name = name_for(host.hostname)
    candidates = (f"{name[: LONGEST_NAME - 5]}-{number}" for number in itertools.count(2))
    free = next(each for each in itertools.chain([name], candidates) if each not in servers)
    return Server(free, host.hostname, host.username, is_listed=True)
