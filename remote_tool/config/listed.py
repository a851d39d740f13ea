"""Hosts of a list as servers: configured servers keep their settings, others use ssh's."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.config.forms import canonical_host
from remote_tool.config.hosts import ListedHost, name_for
from remote_tool.config.servers import Server
from remote_tool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from remote_tool.config.model import Config

LONGEST_NAME = 64


def nobody(_server: Server) -> str:
    """Return no user: who logs in to a server without one is unknown."""
    return ""


def with_listed(
    config: Config,
    hosts: Sequence[ListedHost],
    *,
    private_key: Path | None = None,
    usual_user: Callable[[Server], str] = nobody,
) -> Config:
    """Return a configuration that selects the hosts of a list, in their order.

    A host that is the name or the hostname of a configured server is that server. Another one becomes a server; a host
    of an earlier list keeps its name. A host without a user is the same as one with the user that it has anyway.

    Args:
        config: The configuration.
        hosts: The list.
        private_key: The key for all of them; None: as configured, or as ssh finds it.
        usual_user: Tells who logs in to a server that has no user.

    Raises:
        UsageError: A host is ambiguous or given twice, or its user is not that of its server.
    """
    found = servers_for(hosts, config.servers, usual_user)
    if private_key is not None:
        found = [(replace(server, private_key=private_key), host) for server, host in found]
    return replace(
        config,
        servers={**config.servers, **{server.name: server for server, _ in found}},
        listed={server.name: host.processes for server, host in found},
    )


def servers_for(
    hosts: Sequence[ListedHost], known: Mapping[str, Server], usual_user: Callable[[Server], str] = nobody
) -> list[tuple[Server, ListedHost]]:
    """Return the server of each host: a known one by name, or a new one.

    Raises:
        UsageError: As :func:`with_listed`.
    """
    servers = dict(known)
    listed: dict[str, list[Server]] = defaultdict(list)
    for server in known.values():
        if server.is_listed:
            listed[canonical_host(server.hostname)].append(server)
    found: list[tuple[Server, ListedHost]] = []
    for host in _each_once(hosts, usual_user):
        same_host = listed[canonical_host(host.hostname)]
        server = _configured(servers, host, usual_user) or _known(same_host, host, usual_user) or _new(servers, host)
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


def _each_once(hosts: Sequence[ListedHost], usual_user: Callable[[Server], str]) -> list[ListedHost]:
    """Return the hosts, merging entries that are the same login with and without its user."""
    merged: dict[tuple[str, str | None], ListedHost] = {}
    users: dict[str, list[ListedHost]] = defaultdict(list)
    for host in hosts:
        same_host = users[canonical_host(host.hostname)]
        same = next((each for each in same_host if _is_one_login(_new({}, each), host, usual_user)), None)
        if same is None:
            same_host.append(host)
            merged[host.login] = host
        else:
            count = (merged[same.login].processes or 1) + (host.processes or 1)
            merged[same.login] = replace(same, processes=count)
    return [*merged.values()]


def _is_one_login(server: Server, host: ListedHost, usual_user: Callable[[Server], str]) -> bool:
    if canonical_host(server.hostname) != canonical_host(host.hostname):
        return False
    if server.username is not None and host.username is not None:
        return server.username == host.username
    user = server.username or host.username
    return user is None or user == usual_user(replace(server, username=None))


def _configured(servers: Mapping[str, Server], host: ListedHost, usual_user: Callable[[Server], str]) -> Server | None:
    named = servers.get(host.hostname)
    if named is not None and not named.is_listed:
        return _with_its_user(named, host, usual_user)
    address = canonical_host(host.hostname)
    same_host = [each for each in servers.values() if not each.is_listed and canonical_host(each.hostname) == address]
    found = [each for each in same_host if host.username is None or each.username in {None, host.username}]
    if len(found) > 1:
        names = " and ".join(each.name for each in found)
        raise UsageError(
            f"{host.hostname} is ambiguous: it is the host of {names}",
            hint=f"Use the name of the server, such as {found[0].name}",
        )
    return _with_its_user(found[0], host, usual_user) if found else None


def _with_its_user(server: Server, host: ListedHost, usual_user: Callable[[Server], str]) -> Server:
    if host.username is not None and host.username != (server.username or usual_user(server)):
        configured = f"the user {server.username}" if server.username else "no username"
        raise UsageError(
            f"{host.username}@{host.hostname} is the server {server.name}, which is configured with {configured}",
            hint=f"Leave out {host.username}@, or set username: of {server.name} in .remote/configs.yaml",
        )
    return server


def _known(same_host: Sequence[Server], host: ListedHost, usual_user: Callable[[Server], str]) -> Server | None:
    """Return the server that this host became in an earlier list, from the servers with its address."""
    exactly = (server for server in same_host if server.username == host.username)
    alike = (server for server in same_host if _is_one_login(server, host, usual_user))
    return next(itertools.chain(exactly, alike), None)


def _new(servers: Mapping[str, Server], host: ListedHost) -> Server:
    name = name_for(host.hostname)
    candidates = (f"{name[: LONGEST_NAME - 5]}-{number}" for number in itertools.count(2))
    free = next(each for each in itertools.chain([name], candidates) if each not in servers)
    return Server(free, host.hostname, host.username, is_listed=True)
