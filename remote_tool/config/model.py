"""The configuration of configs.yaml, as frozen values: each key is declared here, or in the class of its section."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from remote_tool.config import forms
from remote_tool.config.artifacts import ArtifactLimit, read_artifact_limit, read_artifact_patterns
from remote_tool.config.data_sets import read_data_sets
from remote_tool.config.ends import read_on_empty, read_on_end
from remote_tool.config.environment import Environment, EnvironmentKind, read_environment
from remote_tool.config.keys import Key, key
from remote_tool.config.launch_command import as_started
from remote_tool.config.readers import (
    choice,
    inside_project,
    local_path,
    script,
    status_patterns,
    text,
    texts,
    time_limit,
    unused,
    variables,
    yes_or_no,
)
from remote_tool.config.servers import Internet, read_default_server
from remote_tool.protocol.limits import DEFAULT_IDLE_AFTER, DEFAULT_LOG_LIMIT, DEFAULT_LOST_AFTER
from remote_tool.redaction import hide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.config.data_sets import DataSet
    from remote_tool.config.ends import OnEmpty, OnEnd
    from remote_tool.config.servers import Server
    from remote_tool.paths import LocalPaths, RemotePaths
    from remote_tool.protocol.artifact_patterns import ArtifactPattern

DEFAULT_KEPT_SECONDS = 600


class HostKeyPolicy(StrEnum):
    """How to handle the key of an unknown host; a changed key is always refused."""

    ACCEPT_NEW = "accept-new"
    STRICT = "strict"


class Snapshots(StrEnum):
    """Which jobs run in a copy of the project as it was when they were given."""

    QUEUED = "queued"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True)
class MinFree:
    """The free space to keep on a server's disk: the smaller of a number of bytes and a share in percent."""

    bytes: int = 5 * 1024**3
    hundredths: float = 5.0

    @classmethod
    def parse(cls, text: str) -> MinFree:
        """Return bytes or a share, which then applies alone."""
        hundredths = forms.read_hundredths(text)
        size = forms.read_size(text) if hundredths is None else None
        return cls(2**62 if size is None else size, 100.0 if hundredths is None else hundredths)


@dataclass(frozen=True)
class KeptJobs:
    """The finished jobs to keep on a server when others start: the newest ``count``, or the last ``seconds``."""

    count: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> KeptJobs:
        """Return a number of jobs, or an age."""
        return cls(count=int(text)) if text.isdigit() else cls(seconds=forms.read_age(text))


def _whole_seconds(age: str) -> int:
    return int(forms.read_age(age) or 0)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole configuration: sizes are in bytes, times in seconds, and None stands for what is not configured.

    Attributes:
        servers: By name, in the order of the file; includes those of host lists, earlier ones too.
        local: The local files of the workspace.
        remote: The project's folders on each server.
        listed: The servers of a host list, in its order, with their numbers of processes (None: not given); they
            are the default selection. Empty: no list was given.
    """

    name: str = field(
        metadata=key(
            None,
            "the name of the project's folder here",
            "The project's folder in the home folder on each server. Letters, digits, `.` `_` `-`; starts with a "
            "letter, a digit, or `_`. May be a path: `dev/digits`, or `~/dev/digits`, is the folder `digits` in the "
            "folder `dev`, up to eight levels deep. Not an absolute path: for another disk, make a link in the home "
            "folder.",
        ),
    )
    python: str | None = field(
        default=None,
        metadata=key(
            text(forms.PYTHON),
            "the version that runs remote-tool",
            "The Python version to install, such as `3.11` or `3.11.7`; 3.8 or newer.",
        ),
    )
    environment: Environment = field(
        default=Environment(),
        metadata=key(
            read_environment,
            "`miniconda`",
            "The source of Python, see [below](#environments).",
        ),
    )
    servers: Mapping[str, Server] = field(
        metadata=key(
            None,
            "none",
            "The servers, by name. The file is valid without any; commands then need [`--hosts` or "
            "`--hostfile`](guide/hosts.md).",
        ),
    )
    host_keys: HostKeyPolicy = field(
        default=HostKeyPolicy.ACCEPT_NEW,
        metadata=key(
            choice(HostKeyPolicy),
            "`accept-new`",
            "How to handle an unknown host key: `accept-new` shows it and saves it in `.remote/known_hosts`, `strict` "
            "refuses it. A password is sent to such a host only after you accept the key, or with "
            "`--accept-new-keys`. A changed key is always refused.",
        ),
    )
    log_limit: int = field(
        default=DEFAULT_LOG_LIMIT,
        metadata=key(
            text(forms.LOG_LIMIT, forms.read_size),
            "`4GB`",
            "Maximum size of each output file of a job, on its server and here: `500MB`, `4GB`; 1 MB or more. Beyond "
            "it, the oldest part is dropped; the first 256 KiB stay. All files of a job together may use a quarter of "
            "the disk at most.",
        ),
    )
    lost_after: float = field(
        default=DEFAULT_LOST_AFTER,
        metadata=key(
            text(forms.LOST_AFTER, float),
            "`60`",
            "How many seconds a launch waits for a silent server: from 5 to 86400. If the server is back in time, the "
            "launch continues; otherwise all of it is stopped. The launch does not wait for a server whose process "
            "died or that has rebooted. `--lost-after` takes precedence.",
        ),
    )
    idle_after: float = field(
        default=DEFAULT_IDLE_AFTER,
        metadata=key(
            text(forms.IDLE_AFTER, float),
            "`60`",
            "How many seconds a GPU must be idle before a [queued job](guide/queue.md) takes it, if "
            "it was used by a program that had not reserved it: from 0 to 86400. A GPU that a job of remote-tool had "
            "reserved is free as soon as that job has ended.",
        ),
    )
    shared: bool | None = field(
        default=None,
        metadata=key(
            yes_or_no,
            "found by a test",
            "Whether all servers share the project's folder, as on a network disk (NFS). `true`: all do, without a "
            "test; `false`: none do. See [one folder for several servers](guide/shared-folder.md).",
        ),
    )
    scripts_folder: ClassVar[Key] = Key(
        unused(forms.INSIDE),
        "",
        "labml_remote stored its scripts there. Accepted, and ignored: there are no local scripts.",
    )
    logs_folder: ClassVar[Key] = Key(
        inside_project,
        "`.remote/logs`",
        "Local: the output of every setup, sync, and package step.",
        fills="local.logs_folder",
    )
    jobs_folder: ClassVar[Key] = Key(
        inside_project,
        "`.remote/jobs`",
        "Local: the records and logs of jobs.",
        fills="local.jobs_folder",
    )
    exclude_file: ClassVar[Key] = Key(
        inside_project,
        "`.remote/exclude.txt`",
        "Local: rsync patterns of files that are not sent, one per line.",
        fills="local.exclude",
    )
    respect_gitignore: bool = field(
        default=False,
        metadata=key(
            yes_or_no,
            "`false`",
            "`true`: what git ignores is not sent either, see [which files are sent](guide/files.md).",
        ),
    )
    send_anyway: tuple[str, ...] = field(
        default=(),
        metadata=key(
            texts(forms.SENT_ANYWAY, "a list of files, such as [config/example.env, tests/keys/*.pem]"),
            "none",
            "Files to send even if they look like credentials or private keys, see [below](#send-it-anyway).",
        ),
    )
    remote_scripts_folder_name: ClassVar[Key] = Key(
        text(forms.FOLDER_NAME),
        "`.remote-scripts`",
        "On the server: the environment, and remote-tool's own files.",
        fills="remote.scripts_name",
    )
    remote_jobs_folder_name: ClassVar[Key] = Key(
        text(forms.FOLDER_NAME),
        "`.jobs`",
        "On the server: the jobs.",
        fills="remote.jobs_name",
    )
    artifacts: tuple[ArtifactPattern, ...] = field(
        default=(),
        metadata=key(
            read_artifact_patterns,
            "none",
            "The files of jobs to fetch, see [below](#artifacts).",
        ),
    )
    artifacts_folder: ClassVar[Key] = Key(
        local_path(forms.LOCAL_FOLDER),
        "beside each job's record",
        "The folder for these files: relative to the project, absolute, or starting with `~/`. Its parent folder must "
        "exist. Each job gets its own subfolder, named by its id. It is never sent.",
        fills="local.artifacts_folder",
    )
    artifact_limit: ArtifactLimit = field(
        default=ArtifactLimit(),
        metadata=key(
            read_artifact_limit,
            "`{file: 10GB, job: 50GB}`",
            "Maximum size of each of these files, and of all files of a job: `1GB` sets the first, `{file: 20GB, job: "
            "200GB}` both. Larger files are listed and stay on the server.",
        ),
    )
    packages: tuple[str, ...] | None = field(
        default=None,
        metadata=key(
            texts(forms.PACKAGES, "a list of files and folders, such as [requirements/gpu.txt]", or_one=True),
            "found by their names",
            "The files and folders of the project that `update-packages` installs, see [below](#packages).",
        ),
    )
    keep_jobs: KeptJobs | None = field(
        default=None,
        metadata=key(
            text(forms.KEPT_JOBS, KeptJobs.parse),
            "all",
            "The ended jobs of each server to keep when others start there: a number such as `200`, or an age such as "
            "`30d`. Older ones are removed on the server and here, and a line says so. Jobs whose artifacts have not "
            "been fetched stay, and so do fetched files. See [clean up](guide/clean-up.md).",
        ),
    )
    keep_connections: int = field(
        default=DEFAULT_KEPT_SECONDS,
        metadata=key(
            text(forms.KEPT_LOGINS, _whole_seconds),
            "`10m`",
            "How long a login stays open for later commands after the last one that used it: `10m`, `2h`; `0` keeps "
            "none. Only logins with a key that needs no passphrase, or with a key of the ssh agent, are kept. See "
            "[kept logins](guide/kept-logins.md).",
        ),
    )
    min_free: MinFree = field(
        default=MinFree(),
        metadata=key(
            text(forms.MIN_FREE, MinFree.parse),
            "the smaller one of `5%` and `5GB`",
            "`prepare`, starts, and syncs that send files warn if a server's disk has less free space, with the space "
            "that `clean` would free: a size such as `20GB`, or a part of the disk such as `10%`. `0MB` disables the "
            "warning.",
        ),
    )
    setup: str | None = field(
        default=None,
        metadata=key(
            script,
            "none",
            "A shell script, sourced before the command of every job, launch, and `run`, see "
            "[below](#setup-script-and-variables). Not related to the command `setup`.",
        ),
    )
    env: Mapping[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata=key(
            variables,
            "none",
            "Variables of every job, launch, `run`, and step of `prepare`, by name, see "
            "[below](#setup-script-and-variables).",
        ),
    )
    status: Mapping[str, str] = field(
        default_factory=dict,
        metadata=key(
            status_patterns,
            "none",
            "Additional values for the status line while you follow jobs, see [below](#the-status-line).",
        ),
    )
    workdir: str | None = field(
        default=None,
        metadata=key(
            text(forms.WORKDIR, forms.within),
            "where you type",
            "The folder of the project in which every job, launch, and `run` starts, such as `src`; `.` is the "
            "project's folder. `--workdir` takes precedence. See [the working "
            "folder](guide/run.md#the-working-folder).",
        ),
    )
    data: Mapping[str, DataSet] = field(
        default_factory=dict,
        metadata=key(
            read_data_sets,
            "none",
            "Data sets outside of the project, by name, see [below](#data-sets).",
        ),
    )
    on_end: OnEnd | None = field(
        default=None,
        metadata=key(
            read_on_end,
            "none",
            "A command that the server runs when a job has ended, see [below](#when-a-job-ends). `--on-end` takes "
            "precedence.",
        ),
    )
    snapshots: Snapshots = field(
        default=Snapshots.QUEUED,
        metadata=key(
            choice(Snapshots),
            "`queued`",
            "Which jobs run in a copy of the project as it was when they were started: `queued`, those that wait for "
            "GPUs or other jobs; `always`, all; `never`, none. See [frozen code](guide/frozen-code.md).",
        ),
    )
    internet: Internet = field(
        default=Internet.DIRECT,
        metadata=key(
            choice(Internet),
            "`direct`",
            "How servers reach package indexes: `direct`, or `through-me`, through this machine while a step of "
            "`prepare`, `setup` or `update-packages` runs. See "
            "[a server without internet](guide/no-internet.md).",
        ),
    )
    internet_hosts: tuple[str, ...] = field(
        default=(),
        metadata=key(
            texts(forms.INTERNET_HOST, "a list of host names, such as [index.example.com, '*.example.org']"),
            "none: you are asked",
            "The hosts that servers may reach through this machine: those of your package index, and of what it links "
            "to. `*.` in front stands for all names below. On a terminal, you are asked about others.",
        ),
    )
    on_empty: OnEmpty | None = field(
        default=None,
        metadata=key(
            read_on_empty,
            "none",
            "A command that the server runs when a job has ended and nothing of yours runs there any more, see "
            "[below](#when-no-job-is-left).",
        ),
    )
    default_server: str | None = field(
        default=None,
        metadata=key(
            read_default_server,
            "asks",
            "Where `job-run` starts a job without `--server`: the name of a server, or `all`. Without it, `job-run` "
            "asks the first time on a terminal, and starts on all servers in a pipe.",
        ),
    )
    max_duration: float | None = field(
        default=None,
        metadata=key(
            time_limit,
            "none",
            "Stop a job after this time: `45s`, `90m`, `12h`, `2d`. `0`: never. `--max-duration` takes precedence. "
            "See [limits](guide/limits-and-retries.md).",
        ),
    )
    stop_if_idle: float | None = field(
        default=None,
        metadata=key(
            time_limit,
            "none",
            "Stop a job when all its GPUs were idle for this time. `0`: never. `--stop-if-idle` takes precedence.",
        ),
    )
    stop_signal: str = field(
        default="SIGTERM",
        metadata=key(
            text(forms.SIGNAL),
            "`SIGTERM`",
            "The signal with which a stop of a job begins, such as `SIGINT`. `--stop-signal` takes precedence.",
        ),
    )
    retries: int = field(
        default=0,
        metadata=key(
            text(forms.RETRIES, int),
            "none",
            "How many times `job-run` runs a failed command again. `--retries` takes precedence.",
        ),
    )
    retry_on: tuple[str, ...] = field(
        default=(),
        metadata=key(
            texts(forms.RETRY_ON, "a list of exit codes and signals, such as [75, SIGKILL]"),
            "any failure",
            "The exit codes and signals after which it does, such as `[75, SIGKILL]`. `--retry-on` takes precedence.",
        ),
    )
    local: LocalPaths
    remote: RemotePaths
    listed: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def usual_servers(self) -> tuple[str, ...]:
        """The servers of a command that names none."""
        return tuple(self.listed) or tuple(name for name, server in self.servers.items() if not server.is_listed)

    @property
    def python_version(self) -> str:
        """The version to install, like ``3.11``: as configured, else the one that runs this program."""
        return self.python or f"{sys.version_info.major}.{sys.version_info.minor}"

    def for_server(self, name: str) -> Config:
        """Return this configuration with the environment of a server, and the project's folders there."""
        server, remote = self.servers[name], self.remote_on(name)
        if server.environment is not None:
            return replace(self, environment=server.environment, remote=remote)
        if server.is_entered:
            return replace(self, environment=Environment(EnvironmentKind.INSIDE), python=None, remote=remote)
        return self if remote is self.remote else replace(self, remote=remote)

    def remote_on(self, server: str) -> RemotePaths:
        """Return the project's folders on a server; on this machine, they are in the project's own folder."""
        known = self.servers.get(server)
        return replace(self.remote, project=known.project) if known and known.localhost else self.remote

    def workdir_for(self, asked_for: str | None) -> str:
        """Return the folder in which a command starts, relative to the project; empty for the project folder itself."""
        return forms.within((self.workdir or "") if asked_for is None else asked_for)

    def setup_of(self, server: str) -> str:
        """The shell commands to run before each command on a server; may be empty."""
        own = self.servers[server].setup
        return (self.setup if own is None else own) or ""

    def internet_of(self, server: str) -> Internet:
        """How steps on a server reach package indexes; on this machine, always by themselves."""
        own = self.servers[server]
        return Internet.DIRECT if own.localhost else own.internet or self.internet

    def variables_of(self, server: str) -> dict[str, str]:
        """The variables that the configuration sets for commands on a server.

        From now on the values of ``env`` are redacted in every text; the paths of data sets are not secret.
        """
        variables = {**self.env, **self.servers[server].env}
        hide(variables.values())
        is_here = self.servers[server].localhost
        data = {each.variable: str(each.source) if is_here else each.target for each in self.data.values()}
        return {**data, **variables}

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
