"""How to reach the servers that only a host list named: kept beside their jobs, for the commands that come later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.listed import with_listed, with_remembered
from remote_tool.config.model import Server
from remote_tool.errors import JobError
from remote_tool.jobs.whole_files import read_whole, write_whole
from remote_tool.supervisor import strict_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remote_tool.config.hosts import ListedHost
    from remote_tool.config.model import Config
    from remote_tool.jobs.registry import Registry

FILE = "hosts.yaml"
LARGEST_FILE = 4 * 1024 * 1024
# The oldest go; a line has some hundred bytes.
MOST_HOSTS = 10_000


def recall_hosts(config: Config, registry: Registry) -> Config:
    """Return a configuration that also knows the servers of earlier host lists.

    Raises:
        JobError: Their file cannot be read.
    """
    return with_remembered(config, _read(registry.folder / FILE))


def remember_hosts(config: Config, registry: Registry, hosts: Sequence[ListedHost]) -> Config:
    """Return a configuration in which the hosts of a list are meant, and write down those that are new.

    Raises:
        UsageError: A host of the list cannot be told from a configured server.
        JobError: Nothing can be written.
    """
    path = registry.folder / FILE
    with registry.locked():
        known = _read(path)
        listed = with_listed(with_remembered(config, known), hosts)
        names = {server.name for server in known}
        new = [listed.servers[name] for name in listed.listed if listed.servers[name].is_listed and name not in names]
        if new:
            write_whole(path, _format([*known, *new][-MOST_HOSTS:]))
    return listed


def _format(servers: Sequence[Server]) -> bytes:
    """YAML, and in each line a name and a JSON value: what people and programs read without much ado."""
    lines = [
        f"{json.dumps(each.name)}: {json.dumps({'hostname': each.hostname, 'username': each.username})}\n"
        for each in servers
    ]
    return "".join(
        ["# Servers that --hosts or --hostfile named; a line without jobs may be removed.\n", *lines]
    ).encode()


def _read(path: Path) -> list[Server]:
    try:
        text, _ = read_whole(path, LARGEST_FILE)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise JobError(f"{path} cannot be read: {error}", hint=f"ls -l {path}") from error
    servers = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            servers.append(_read_line(line))
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(f"{path}:{number}: not a host that we wrote ({error})", hint=f"rm {path}") from error
    return servers


def _read_line(line: bytes) -> Server:
    ((name, values),) = strict_json.parse(b"{%s}" % line).items()
    hostname, username = values["hostname"], values["username"]
    if not isinstance(hostname, str) or not isinstance(username, str | None):
        raise TypeError("not the types of a host")
    if not (forms.SERVER_NAME.accepts(name) and forms.HOSTNAME.accepts(hostname)):
        raise ValueError("no server has such a name")
    if username is not None and not forms.USERNAME.accepts(username):
        raise ValueError("no user has such a name")
    return Server(name, hostname, username, is_listed=True)
