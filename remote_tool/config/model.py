"""The configuration of configs.yaml, as frozen values."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from remote_tool.config.forms import within
from remote_tool.config.launch_command import as_started
from remote_tool.protocol.limits import DEFAULT_IDLE_AFTER, DEFAULT_LOG_LIMIT, DEFAULT_LOST_AFTER
from remote_tool.redaction import hide

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from remote_tool.config.data_sets import DataSet
    from remote_tool.paths import LocalPaths, RemotePaths
    from remote_tool.protocol.artifact_patterns import ArtifactPattern

CONDA_FORGE = ("conda-forge",)
DEFAULT_KEPT_SECONDS = 600
DEFAULT_ON_EMPTY_AFTER = 600.0


class EnvironmentKind(StrEnum):
    """How Python gets onto a server: each kind is a line here and a module in ``environments/kinds``.

    ``inside`` is for jobs that start behind a launch command or in a container, which bring a Python of their own.
    """

    MINICONDA = "miniconda"
    MINIFORGE = "miniforge"
    UV = "uv"
    VENV = "venv"
    EXISTING = "existing"
    INSIDE = "inside"

    @property
    def is_conda(self) -> bool:
        return self in {EnvironmentKind.MINICONDA, EnvironmentKind.MINIFORGE}

    @property
    def module(self) -> str:
        """The module of ``environments/kinds`` that plans it."""
        return "conda" if self.is_conda else self.value


class HostKeyPolicy(StrEnum):
    """How to handle the key of an unknown host; a changed key is always refused."""

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
    """The Python environment of a server.

    Attributes:
        kind: The tool that creates it.
        prefix: Of an existing environment, on the server; ``~`` is allowed.
        installer: Replaces the pinned conda installer.
        channels: Where conda takes Python from.
    """

    kind: EnvironmentKind = EnvironmentKind.MINICONDA
    prefix: str | None = None
    installer: Installer | None = None
    channels: tuple[str, ...] = CONDA_FORGE


@dataclass(frozen=True)
class ArtifactLimit:
    """Limits on the bytes of artifacts that are pulled.

    Attributes:
        file: Of each file.
        job: Of all files of a job together.
    """

    file: int = 10 * 1024**3
    job: int = 50 * 1024**3


@dataclass(frozen=True)
class MinFree:
    """The free space to keep on a server's disk: the smaller of a number of bytes and a share in percent."""

    bytes: int = 5 * 1024**3
    hundredths: float = 5.0


@dataclass(frozen=True)
class OnEnd:
    """A command that a server runs when a job has ended.

    Attributes:
        run: For the shell.
        secrets: Names of local variables whose values only this command gets.
    """

    run: str
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class OnEmpty(OnEnd):
    """A command that a server runs when a job has ended and none is left.

    Attributes:
        after: Seconds that it waits for another job first.
    """

    after: float = DEFAULT_ON_EMPTY_AFTER


@dataclass(frozen=True)
class KeptJobs:
    """The finished jobs to keep on a server when others start: the newest ``count``, or the last ``seconds``."""

    count: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Server:
    """One machine.

    Attributes:
        name: Its name: letters, digits, ``. _ -``.
        hostname: An address, a name, or an alias of ``~/.ssh/config``.
        username: The login; None: User from ``~/.ssh/config``, else ubuntu, or your own name for a host of a list.
        port: The SSH port; None: Port from ``~/.ssh/config``, else 22.
        private_key: An absolute path; None: ssh agent, ``~/.ssh/config``, default keys.
        password: The password; never shown.
        password_env: The local variable that holds the password.
        address: The address at which the other servers reach this one; None: detected.
        devices: The GPUs that commands see there, by number or UUID; empty: all.
        launch: Command that starts the shell of a job, such as ``docker exec -i NAME``; ``{project}`` is the project.
        container: ``docker run`` options and the image of a new container for each job; None: no containers.
        environment: Overrides the common one; None: the common one, or with launch or container the one inside.
        is_listed: Whether it comes from a host list and not from configs.yaml.
        setup: Shell commands to run before each command; None: the common ones.
        env: Environment variables of each command, by name.
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
        """Whether commands on it start behind a launch command, or in a container."""
        return self.launch is not None or self.container is not None


class Snapshots(StrEnum):
    """Which jobs run in a copy of the project as it was when they were given."""

    QUEUED = "queued"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True)
class Config:
    """A whole configuration.

    Attributes:
        name: The project's folder under the server's home.
        servers: By name, in the order of the file; includes those of host lists, earlier ones too.
        local: The local files of the workspace.
        remote: The project's folders on each server.
        python: The configured version; None: not configured.
        environment: The Python environment of the servers.
        host_keys: How to handle unknown host keys.
        log_limit: The maximum bytes of each output file of a job, on its server and locally.
        lost_after: Seconds that a launch waits for a silent server.
        idle_after: Seconds for which a GPU that was used without being reserved must be idle to be free.
        artifacts: Patterns of the files to pull from jobs.
        artifact_limit: The maximum bytes of these files.
        workdir: The folder in which commands start, relative to the project; None: not configured.
        packages: Files and folders in the project that list packages; None: detected by name.
        keep_jobs: Which finished jobs to keep; None: all, until they are cleaned.
        min_free: Warn if less disk space is free on a server.
        keep_connections: Seconds that a login is kept for later commands; 0: logins are not kept.
        send_anyway: Patterns of files to send even though they look like credentials.
        shared: Whether all servers share the project folder; None: detected.
        listed: The servers of a host list, in its order, with their numbers of processes (None: not given); they
            are the default selection. Empty: no list was given.
        setup: Shell commands to run before each command; a server can override them.
        env: Environment variables of each command, by name; those of a server take precedence.
        status: Regular expressions by name, for values of the status line besides the built-in ones.
        on_end: What servers run when a job has ended; None: nothing.
        on_empty: What servers run when a job has ended and none is left; None: nothing.
        max_duration: Seconds after which a job is stopped; None: never.
        stop_if_idle: Seconds after which a job is stopped if its GPUs are idle for so long; None: never.
        default_server: Where ``job-run`` starts a job without ``--server``: a name, or ``all``; None: not configured.
        retries: How many times a failed command of ``job-run`` is run again.
        retry_on: Exit codes and signals after which it is; empty: any failure.
        data: Data sets outside the project, by name.
        snapshots: Which jobs run in a copy of the project.
    """

    name: str
    servers: Mapping[str, Server]
    local: LocalPaths
    remote: RemotePaths
    python: str | None = None
    environment: Environment = Environment()
    host_keys: HostKeyPolicy = HostKeyPolicy.ACCEPT_NEW
    log_limit: int = DEFAULT_LOG_LIMIT
    lost_after: float = DEFAULT_LOST_AFTER
    idle_after: float = DEFAULT_IDLE_AFTER
    artifacts: tuple[ArtifactPattern, ...] = ()
    artifact_limit: ArtifactLimit = ArtifactLimit()
    packages: tuple[str, ...] | None = None
    shared: bool | None = None
    listed: Mapping[str, int | None] = field(default_factory=dict)
    status: Mapping[str, str] = field(default_factory=dict)
    setup: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    send_anyway: tuple[str, ...] = ()
    workdir: str | None = None
    keep_jobs: KeptJobs | None = None
    min_free: MinFree = MinFree()
    keep_connections: int = DEFAULT_KEPT_SECONDS
    data: Mapping[str, DataSet] = field(default_factory=dict)
    on_end: OnEnd | None = None
    snapshots: Snapshots = Snapshots.QUEUED
    on_empty: OnEmpty | None = None
    max_duration: float | None = None
    stop_if_idle: float | None = None
    default_server: str | None = None
    retries: int = 0
    retry_on: tuple[str, ...] = ()

    @property
    def usual_servers(self) -> tuple[str, ...]:
        """The servers of a command that names none."""
        return tuple(self.listed) or tuple(name for name, server in self.servers.items() if not server.is_listed)

    @property
    def python_version(self) -> str:
        """The version to install, like ``3.11``: as configured, else the one that runs this program."""
        return self.python or f"{sys.version_info.major}.{sys.version_info.minor}"

    def for_server(self, name: str) -> Config:
        """Return this configuration with the environment of a server."""
        server = self.servers[name]
        if server.environment is not None:
            return replace(self, environment=server.environment)
        if server.is_entered:
            return replace(self, environment=Environment(EnvironmentKind.INSIDE), python=None)
        return self

    def workdir_for(self, asked_for: str | None) -> str:
        """Return the folder in which a command starts, relative to the project; empty for the project folder itself."""
        return within((self.workdir or "") if asked_for is None else asked_for)

    def setup_of(self, server: str) -> str:
        """The shell commands to run before each command on a server; may be empty."""
        own = self.servers[server].setup
        return (self.setup if own is None else own) or ""

    def variables_of(self, server: str) -> dict[str, str]:
        """The variables that the configuration sets for commands on a server.

        From now on the values of ``env`` are redacted in every text; the paths of data sets are not secret.
        """
        variables = {**self.env, **self.servers[server].env}
        hide(variables.values())
        return {**{each.variable: each.target for each in self.data.values()}, **variables}

    def entry_of(self, name: str) -> dict[str, object] | None:
        """Return how commands are wrapped on a server: behind a launch command or in a container; None: not at all."""
        server = self.servers[name]
        if not server.is_entered:
            return None
        # An environment configured for this server is reachable from inside: it is in the project folder, or mounted.
        activates = self.for_server(name).environment.kind is not EnvironmentKind.INSIDE
        if server.container is not None:
            return {"container": list(server.container), "activate": activates}
        return {"launch": as_started(server.launch or ()), "activate": activates}
