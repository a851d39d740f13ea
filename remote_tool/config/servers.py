"""Read ``servers:`` of configs.yaml."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from remote_tool.config import fields, forms
from remote_tool.config.devices import problem_with
from remote_tool.config.environment import read_environment
from remote_tool.config.hosts import canonical_host
from remote_tool.config.model import Server

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from remote_tool.config.document import ConfigNode
    from remote_tool.config.forms import Validator

KEYS = (
    "hostname",
    "username",
    "port",
    "private_key",
    "password",
    "password_env",
    "address",
    "devices",
    "launch",
    "container",
    "environment",
    "setup",
    "env",
)
USUAL_PORT = 22
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})")
ALL_SERVERS = "all"


def read_servers(place: ConfigNode, root: Path) -> dict[str, Server]:
    servers: dict[str, Server] = {}
    machines: dict[tuple[str, int, str | None], str] = {}
    for name, found in place.pairs():
        if not forms.SERVER_NAME.accepts(name):
            found.refuse(f"the name must be {forms.SERVER_NAME.wanted}")
        server = _server(name, found, root)
        if server is None:
            continue
        servers[name] = server
        machine = (canonical_host(server.hostname), server.port or USUAL_PORT, server.username)
        if machines.setdefault(machine, name) != name:
            found.refuse(f"is the same machine as {machines[machine]} (same hostname, port and username)")
    return servers


def read_default(place: ConfigNode, servers: Mapping[str, Server]) -> str | None:
    """Read ``default_server``: the name of a server, or ``all``."""
    return place.text(forms.one_of((*servers, ALL_SERVERS)))


def _server(name: str, place: ConfigNode, root: Path) -> Server | None:
    if not place.is_mapping and not place.is_blank:
        place.must_be("a mapping, such as {hostname: 10.0.0.5}")
        return None
    values = place.entries(KEYS)
    if "hostname" not in values:
        place.refuse(f"hostname is missing; it must be {forms.CONFIGURED_HOST.wanted}")
    if "password" in values and "password_env" in values:
        values["password_env"].refuse("cannot be combined with password; keep one of them")
    if "launch" in values and "container" in values:
        values["container"].refuse("cannot be combined with launch; keep one of them")
    hostname, username = _login(values)
    server = Server(
        name=name,
        hostname=hostname,
        username=username,
        port=_port(values),
        private_key=fields.local_path(values, "private_key", root),
        password=fields.text_of(values, "password", forms.SECRET),
        password_env=fields.text_of(values, "password_env", forms.VARIABLE),
        address=_address(values),
        launch=_literal_words(values, "launch", forms.LAUNCH),
        container=_literal_words(values, "container", forms.CONTAINER),
        environment=read_environment(values["environment"], root) if "environment" in values else None,
        devices=_devices(values["devices"]) if "devices" in values else (),
        setup=fields.text_of(values, "setup", forms.SCRIPT),
        env=fields.variables(values),
    )
    return server if hostname else None


def _login(values: dict[str, ConfigNode]) -> tuple[str, str | None]:
    """Return the host, empty if missing, and the user, who may precede it as for ssh: ``me@10.0.0.5``."""
    user, _, host = (fields.text_of(values, "hostname", forms.CONFIGURED_HOST) or "").rpartition("@")
    username = fields.text_of(values, "username", forms.USERNAME)
    if user and username not in {None, user}:
        values["username"].refuse(f"is {username}, but hostname says {user}@; keep one of them")
    return forms.plain_host(host), username or user or None


def _literal_words(values: dict[str, ConfigNode], key: str, form: Validator) -> tuple[str, ...] | None:
    words = fields.words(values, key, form)
    # A word with a space may be the script of a shell, which replaces its variables itself.
    found = [match for word in words or () if " " not in word and (match := _VARIABLE.search(word))]
    if found:
        values[key].refuse(f"{found[0][0]} is not replaced; write its value")
    return words


def _port(values: dict[str, ConfigNode]) -> int | None:
    text = fields.text_of(values, "port", forms.PORT)
    return int(text) if text else None


def _address(values: dict[str, ConfigNode]) -> str | None:
    text = fields.text_of(values, "address", forms.ADDRESS)
    return forms.plain_host(text) if text else None


def _devices(place: ConfigNode) -> tuple[str, ...]:
    found = [each.text(forms.DEVICE) for each in place.items("a list of GPUs, such as [0, 3]")]
    devices = tuple(each for each in found if each)
    if problem := problem_with(devices):
        place.refuse(problem)
    return devices
