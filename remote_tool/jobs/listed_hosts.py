"""The servers of host lists, stored beside their jobs for later commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.listed import nobody, with_listed, with_remembered
from remote_tool.config.servers import Server
from remote_tool.errors import JobError
from remote_tool.protocol import strict_json
from remote_tool.system.files import read_bounded, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remote_tool.config.hosts import ListedHost
    from remote_tool.config.model import Config
    from remote_tool.jobs.registry import Registry

FILE = "hosts.yaml"
LARGEST_FILE = 4 * 1024 * 1024
# The oldest are dropped; a line has some hundred bytes.
MOST_HOSTS = 10_000
SHOWN_PROBLEMS = 3


def recall_hosts(config: Config, registry: Registry, warn: Callable[[str], None]) -> Config:
    """Return a configuration that includes the servers of earlier host lists; warn about unreadable ones."""
    known, problems = _read(registry.folder / FILE)
    for error in problems[:SHOWN_PROBLEMS]:
        warn(f"{error.message}; {error.hint}")
    if len(problems) > SHOWN_PROBLEMS:
        warn(f"{registry.folder / FILE}: {len(problems)} lines cannot be read")
    return with_remembered(config, known)


def remember_hosts(
    config: Config,
    registry: Registry,
    hosts: Sequence[ListedHost],
    *,
    private_key: Path | None = None,
    usual_user: Callable[[Server], str] = nobody,
) -> Config:
    """Return a configuration that selects the hosts of a list, and record new hosts, and new keys for them.

    Raises:
        UsageError: A host in the list is ambiguous.
        JobError: The file cannot be written, or is unreadable and would be lost.
    """
    path = registry.folder / FILE
    with registry.locked():
        known, problems = _read(path)
        remembered = with_remembered(config, known)
        listed = with_listed(remembered, hosts, private_key=private_key, usual_user=usual_user)
        chosen = {name: listed.servers[name] for name in listed.listed if listed.servers[name].is_listed}
        new = {name: server for name, server in chosen.items() if remembered.servers.get(name) != server}
        if new and problems:
            raise problems[0]
        if new:
            all_hosts = {**{server.name: server for server in known}, **new}
            write_atomically(path, _format([*all_hosts.values()][-MOST_HOSTS:]))
    return listed


def _format(servers: Sequence[Server]) -> bytes:
    """Return YAML with a name and a JSON value per line, readable for people and programs."""
    lines = [f"{json.dumps(each.name)}: {json.dumps(_as_record(each))}\n" for each in servers]
    return "".join(
        ["# Servers that --hosts or --hostfile named; a line without jobs may be removed.\n", *lines]
    ).encode()


def _as_record(server: Server) -> dict[str, str | None]:
    key = {} if server.private_key is None else {"private_key": str(server.private_key)}
    return {"hostname": server.hostname, "username": server.username, **key}


def _read(path: Path) -> tuple[list[Server], list[JobError]]:
    """Return the servers, and the errors of the file or of its lines."""
    try:
        text, _ = read_bounded(path, LARGEST_FILE)
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError) as error:
        return [], [JobError(f"{path} cannot be read: {error}", hint=f"ls -l {path}")]
    servers, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            servers.append(_read_line(line))
        except (ValueError, KeyError, TypeError) as error:
            problems.append(JobError(f"{path}:{number}: not a host that we wrote ({error})", hint="remove that line"))
    return servers, problems


def _read_line(line: bytes) -> Server:
    ((name, values),) = strict_json.parse(b"{%s}" % line).items()
    hostname, username = values["hostname"], values["username"]
    key = values.get("private_key")
    if not isinstance(hostname, str) or not isinstance(username, str | None) or not isinstance(key, str | None):
        raise TypeError("not the types of a host")
    if not (forms.SERVER_NAME.accepts(name) and forms.HOSTNAME.accepts(hostname)):
        raise ValueError("no server has such a name")
    if username is not None and not forms.USERNAME.accepts(username):
        raise ValueError("no user has such a name")
    return Server(name, hostname, username, private_key=None if key is None else Path(key), is_listed=True)
