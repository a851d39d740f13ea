"""What configs.yaml says, as frozen values."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from remote_tool.supervisor.log_limit import DEFAULT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from remote_tool.paths import LocalPaths, RemotePaths
    from remote_tool.supervisor.artifact_patterns import ArtifactPattern

CONDA_FORGE = ("conda-forge",)


class EnvironmentKind(StrEnum):
    """How Python gets onto a server; inside: it is behind the server's launch command, and none of our business."""

    MINICONDA = "miniconda"
    MINIFORGE = "miniforge"
    UV = "uv"
    VENV = "venv"
    EXISTING = "existing"
    INSIDE = "inside"

    @property
    def is_conda(self) -> bool:
        return self in {EnvironmentKind.MINICONDA, EnvironmentKind.MINIFORGE}


class HostKeyPolicy(StrEnum):
    """What to do with the key of a host that no known_hosts file has; a changed key is always refused."""

    ACCEPT_NEW = "accept-new"
    STRICT = "strict"


@dataclass(frozen=True)
class Installer:
    """A conda installer other than the pinned ones: a URL or a local file, with its SHA-256 (64 hex digits)."""

    sha256: str
    url: str | None = None
    file: Path | None = None


@dataclass(frozen=True)
class Environment:
    """Which Python a server gets.

    Attributes:
        kind: The tool that makes it.
        prefix: Of an existing environment, on the server; ``~`` is allowed.
        installer: Instead of the pinned conda installer.
        channels: Where conda takes Python from.
    """

    kind: EnvironmentKind = EnvironmentKind.MINICONDA
    prefix: str | None = None
    installer: Installer | None = None
    channels: tuple[str, ...] = CONDA_FORGE


@dataclass(frozen=True)
class ArtifactLimit:
    """How many bytes of artifacts come home.

    Attributes:
        file: Of each file.
        job: Of all files of a job together.
    """

    file: int = 10 * 1024**3
    job: int = 50 * 1024**3


@dataclass(frozen=True)
class Server:
    """One machine.

    Attributes:
        name: Letters, digits, ``. _ -``.
        hostname: An address, a name, or an alias of ``~/.ssh/config``.
        username: None: User of ``~/.ssh/config``, else ubuntu.
        port: None: Port of ``~/.ssh/config``, else 22.
        private_key: Absolute; None: ssh agent, ``~/.ssh/config``, default keys.
        password: Never shown.
        password_env: The local variable that holds the password.
        address: How the other servers reach this one; None: found by test.
        devices: The GPUs that commands see there, by number or UUID; empty: all.
        launch: Words that begin the job's shell, such as ``docker exec -i NAME``; ``{project}`` is the project there.
        container: Options of ``docker run``, and the image of a container that each job gets; None without.
        environment: Of this server alone; None: that of all, and the one inside where jobs begin behind a command.
        is_listed: Whether only a host list named it, and not configs.yaml.
        setup: For the shell, before each command; None: as for all servers.
        env: Variables of each command, by name.
    """

    name: str
    hostname: str
    username: str | None = None
    port: int | None = None
    private_key: Path | None = None
    password: str | None = field(default=None, repr=False)
    password_env: str | None = None
    address: str | None = None
    launch: tuple[str, ...] | None = None
    container: tuple[str, ...] | None = None
    environment: Environment | None = None
    devices: tuple[str, ...] = ()
    is_listed: bool = False
    setup: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_entered(self) -> bool:
        """Whether what runs there begins behind a launch command, or in a container."""
        return self.launch is not None or self.container is not None


@dataclass(frozen=True)
class Config:
    """A whole configuration.

    Attributes:
        name: The project's folder under the server's home.
        servers: By name, in the order of the file; with those that only host lists named, earlier or now.
        local: The workspace's files here.
        remote: The project's folders on each server.
        python: As configured; None when it is not.
        environment: Which Python the servers get.
        host_keys: What happens at the first contact.
        log_limit: Bytes that each output file of a job may have, on its server and here.
        artifacts: Which files that jobs write come home.
        artifact_limit: How many bytes of them.
        shared: Whether all servers have the project's folder in common; None: found by test.
        listed: The servers of a host list, in its order, with their processes (None: it does not say); they are meant
            where none is named. Empty: no list was given.
        setup: For the shell, before each command; a server's own one counts instead.
        env: Variables of each command, by name; a server's own ones win.
        status: Patterns by name that tell from a job's output how far it is; they come beside the usual ones.
    """

    name: str
    servers: Mapping[str, Server]
    local: LocalPaths
    remote: RemotePaths
    python: str | None = None
    environment: Environment = Environment()
    host_keys: HostKeyPolicy = HostKeyPolicy.ACCEPT_NEW
    log_limit: int = DEFAULT_LIMIT
    artifacts: tuple[ArtifactPattern, ...] = ()
    artifact_limit: ArtifactLimit = ArtifactLimit()
    shared: bool | None = None
    listed: Mapping[str, int | None] = field(default_factory=dict)
    status: Mapping[str, str] = field(default_factory=dict)
    setup: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def usual_servers(self) -> tuple[str, ...]:
        """Those that are meant where none is named."""
        return tuple(self.listed) or tuple(name for name, server in self.servers.items() if not server.is_listed)

    @property
    def python_version(self) -> str:
        """The version to install, like ``3.11``: as configured, else the one running this program."""
        return self.python or f"{sys.version_info.major}.{sys.version_info.minor}"

    def for_server(self, name: str) -> Config:
        """Return it with the environment that this server has."""
        server = self.servers[name]
        if server.environment is not None:
            return replace(self, environment=server.environment)
        if server.is_entered:
            return replace(self, environment=Environment(EnvironmentKind.INSIDE), python=None)
        return self

    def setup_of(self, server: str) -> str:
        """What the shell of a command sources first on a server; empty without one."""
        own = self.servers[server].setup
        return (self.setup if own is None else own) or ""

    def variables_of(self, server: str) -> dict[str, str]:
        """The variables that the configuration has for the commands on a server."""
        return {**self.env, **self.servers[server].env}

    def entry_of(self, name: str) -> dict[str, object] | None:
        """Return what a server is told of where its commands begin; None when they begin there as they are."""
        server = self.servers[name]
        if not server.is_entered:
            return None
        # One that was named for this server is reached from inside too: it lies in the project's folder, or is mounted.
        activates = self.for_server(name).environment.kind is not EnvironmentKind.INSIDE
        kind, words = ("container", server.container) if server.container is not None else ("launch", server.launch)
        return {kind: list(words or ()), "activate": activates}
