"""A machine, and the readers of ``servers:`` and ``default_server:`` of configs.yaml."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.devices import read_devices
from remote_tool.config.environment import Environment, read_environment
from remote_tool.config.keys import key, keys_of, read_keys
from remote_tool.config.readers import choice, local_path, script, text, text_of, variables, yes_or_no
from remote_tool.config.slurm import Slurm, read_slurm
from remote_tool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from remote_tool.config.document import ConfigNode
    from remote_tool.config.forms import Validator
    from remote_tool.config.keys import ProjectParts, Reader

USUAL_PORT = 22
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})")
ALL_SERVERS = "all"
THIS_MACHINE = "localhost"
# What messages call this machine, and what init calls it as a server.
HERE = "here"
# Keys of a server that one logs in to.
_OF_LOGINS = ("hostname", "username", "port", "private_key", "password", "password_env")
_NOT_BESIDE_SLURM = {
    "launch": "its jobs start on other machines",
    "container": "its jobs start on other machines",
    "devices": "Slurm chooses the GPUs of a job",
    "address": "the nodes of a launch are known only when it starts",
}


class Internet(StrEnum):
    """How steps on a server reach package indexes: by themselves, or through this machine."""

    DIRECT = "direct"
    THROUGH_ME = "through-me"


def _literal_words(form: Validator) -> Reader:
    """Return the reader of the words of a command in which no variable is replaced."""

    def read(place: ConfigNode, _project: ProjectParts) -> tuple[str, ...]:
        words = shlex.split(place.text(form) or "")
        # A word with a space may be the script of a shell, which replaces its variables itself.
        found = [match for word in words if " " not in word and (match := _VARIABLE.search(word))]
        if found:
            place.refuse(f"{found[0][0]} is not replaced; write its value")
        return tuple(words)

    return read


@dataclass(frozen=True)
class Server:
    """One machine.

    Attributes:
        name: Its name: letters, digits, ``. _ -``.
        environment: Overrides the common one; None: the common one, or with launch or container the one inside.
        project: With ``localhost``, the project's own folder, absolute; else empty.
        is_listed: Whether it comes from a host list and not from configs.yaml.
    """

    name: str
    hostname: str = field(
        metadata=key(
            None,
            "required, except with `localhost`",
            "An address, a host name, or an alias from `~/.ssh/config`. `me@10.0.0.5` is short for `hostname: "
            "10.0.0.5` and `username: me`. The port has its own key.",
        ),
    )
    username: str | None = field(
        default=None,
        metadata=key(
            None,
            "`User` of `~/.ssh/config`, else `ubuntu`",
            "The user to log in as.",
        ),
    )
    port: int | None = field(
        default=None,
        metadata=key(
            text(forms.PORT, int),
            "`Port` of `~/.ssh/config`, else 22",
            "The port of sshd.",
        ),
    )
    localhost: bool = field(
        default=False,
        metadata=key(
            None,
            "no",
            "`true` in place of `hostname`: this machine. Nothing logs in and nothing is sent; jobs run in the "
            "project's own folder, see [this machine as a server](guide/this-machine.md).",
        ),
    )
    private_key: Path | None = field(
        default=None,
        metadata=key(
            local_path(),
            "ssh agent, `~/.ssh/config`, default keys",
            "The path of a key file, relative to the project, absolute, or starting with `~/`. Only this key is "
            "offered then. If other users can read it, it gets mode 600 first, and a message says so.",
        ),
    )
    password: str | None = field(
        default=None,
        repr=False,
        metadata=key(
            text(forms.SECRET),
            "none",
            "The password, stored as plain text in this file, so `chmod 600` the file; one of the next two ways is "
            "better.",
        ),
    )
    password_env: str | None = field(
        default=None,
        metadata=key(
            text(forms.VARIABLE),
            "none",
            "The name of the local environment variable that contains the password. Cannot be combined with "
            "`password`.",
        ),
    )
    address: str | None = field(
        default=None,
        metadata=key(
            text(forms.ADDRESS, forms.plain_host),
            "found by a test before each launch",
            "The address at which the other servers reach this one, if it differs from yours.",
        ),
    )
    devices: tuple[str, ...] = field(
        default=(),
        metadata=key(
            read_devices,
            "all",
            "A list of the GPUs that commands see on this server: numbers as in `nvidia-smi`, or UUIDs as listed by "
            "`nvidia-smi -L`, `GPU-…` or `MIG-…`; the first letters of a UUID are enough. `--devices` takes "
            "precedence over it, and it takes precedence over `CUDA_VISIBLE_DEVICES` of `env`.",
        ),
    )
    launch: tuple[str, ...] | None = field(
        default=None,
        metadata=key(
            _literal_words(forms.LAUNCH),
            "none",
            "A command that runs every other command, such as `docker exec -w {project} -i NAME`; see below.",
        ),
    )
    container: tuple[str, ...] | None = field(
        default=None,
        metadata=key(
            _literal_words(forms.CONTAINER),
            "none",
            "An image: every job gets its own container; see below. Cannot be combined with `launch`.",
        ),
    )
    environment: Environment | None = field(
        default=None,
        metadata=key(
            read_environment,
            "that of the project",
            "The source of Python on this server alone. With `launch` or `container`: the Python inside.",
        ),
    )
    setup: str | None = field(
        default=None,
        metadata=key(
            script,
            "as for all",
            "This server's setup script, which replaces the one for all.",
        ),
    )
    internet: Internet | None = field(
        default=None,
        metadata=key(
            choice(Internet),
            "as for all",
            "How this server reaches the internet, in place of `internet` for all.",
        ),
    )
    slurm: Slurm | None = field(
        default=None,
        metadata=key(
            read_slurm,
            "none",
            'Options of `sbatch` by their long names, such as `{partition: gpu, gres: "gpu:4", time: "8:00:00"}`: '
            "the server is the login node of a Slurm cluster, which runs the jobs. `nodes` is the number of nodes of a "
            "launch without `--nnodes`. See [a Slurm cluster](guide/slurm.md).",
        ),
    )
    env: Mapping[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata=key(
            variables,
            "none",
            "This server's variables, in addition to those for all; they take precedence.",
        ),
    )
    project: str = ""
    is_listed: bool = False

    @property
    def is_entered(self) -> bool:
        """Whether commands on it start behind a launch command, or in a container."""
        return self.launch is not None or self.container is not None


def read_servers(place: ConfigNode, project: ProjectParts) -> dict[str, Server]:
    """Read the servers by name; two of them cannot be the same machine."""
    servers: dict[str, Server] = {}
    machines: dict[tuple[str, int, str | None], str] = {}
    for name, found in place.pairs():
        if not forms.SERVER_NAME.accepts(name):
            found.refuse(f"the name must be {forms.SERVER_NAME.expected}")
        server = _server(name, found, project)
        if server is None:
            continue
        servers[name] = server
        machine = (forms.canonical_host(server.hostname), server.port or USUAL_PORT, server.username)
        if machines.setdefault(machine, name) != name:
            found.refuse(f"is the same machine as {machines[machine]} (same hostname, port and username)")
    return servers


def read_default_server(place: ConfigNode, project: ProjectParts) -> str | None:
    """Read the name of a server, or ``all``."""
    return place.text(forms.one_of((*project.servers, ALL_SERVERS)))


def _server(name: str, place: ConfigNode, project: ProjectParts) -> Server | None:
    if not place.is_mapping and not place.is_blank:
        place.must_be("a mapping, such as {hostname: 10.0.0.5}")
        return None
    values = place.entries(keys_of(Server))
    for name_of_key, found in place.pairs():
        if name_of_key == "slurm" and found.is_blank:
            # Without it, jobs would run on the login node.
            found.refuse("must be a mapping, such as {partition: gpu}, or {} for what the cluster has by default")
    if "localhost" in values and yes_or_no(values["localhost"], project):
        return _this_machine(name, values, project)
    if "hostname" not in values:
        place.refuse(f"hostname is missing; it must be {forms.CONFIGURED_HOST.expected}")
    if "password" in values and "password_env" in values:
        values["password_env"].refuse("cannot be combined with password; keep one of them")
    _refuse_two_ways_in(values)
    _refuse_beside_slurm(values)
    hostname, username = _login(values)
    server = Server(name, hostname, username, **read_keys(Server, values, project))
    return server if hostname else None


def _this_machine(name: str, values: Mapping[str, ConfigNode], project: ProjectParts) -> Server:
    for login in _OF_LOGINS:
        if login in values:
            values[login].refuse("cannot be combined with localhost: nothing logs in to this machine")
    _refuse_two_ways_in(values)
    if "slurm" in values:
        values["slurm"].refuse("cannot be combined with localhost: it is for a login node that one logs in to")
    others = {key: value for key, value in values.items() if key not in _OF_LOGINS}
    return Server(name, THIS_MACHINE, localhost=True, project=str(project.root), **read_keys(Server, others, project))


def _refuse_two_ways_in(values: Mapping[str, ConfigNode]) -> None:
    if "launch" in values and "container" in values:
        values["container"].refuse("cannot be combined with launch; keep one of them")


def _refuse_beside_slurm(values: Mapping[str, ConfigNode]) -> None:
    for name, why in _NOT_BESIDE_SLURM.items():
        if "slurm" in values and name in values:
            values[name].refuse(f"cannot be combined with slurm: {why}")


def _login(values: Mapping[str, ConfigNode]) -> tuple[str, str | None]:
    """Return the host, empty if missing, and the user, who may precede it as for ssh: ``me@10.0.0.5``."""
    user, _, host = (text_of(values, "hostname", forms.CONFIGURED_HOST) or "").rpartition("@")
    username = text_of(values, "username", forms.USERNAME)
    if user and username not in {None, user}:
        values["username"].refuse(f"is {username}, but hostname says {user}@; keep one of them")
    return forms.plain_host(host), username or user or None


def refuse_other_systems(name: str) -> None:
    """Refuse this machine as a server where the programs of a server cannot run.

    Raises:
        UsageError: It has no Linux.
    """
    if sys.platform != "linux":
        raise UsageError(
            f"{name}: this machine cannot be a server: the programs of a server need Linux",
            hint="Name a server with Linux: remote-tool init --server NAME=USER@HOST",
        )
