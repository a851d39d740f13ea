"""Groups of options: a command that has one as a parameter takes all its options, and gets them as one object."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from remote_tool.cli.options import (
    AcceptNewKeys,
    After,
    AfterAny,
    Artifacts,
    AsJson,
    ChangeNothing,
    Checksum,
    Devices,
    Environment,
    Follow,
    Hostfile,
    Hosts,
    JobNames,
    Keys,
    MasterPort,
    NoSync,
    Overwrite,
    PlanOnly,
    PrivateKey,
    Relay,
    Servers,
    ShowOutput,
    TagsToFind,
    TagsToSet,
    Verbose,
    Workdir,
    complete,
    read_environment,
    read_workdir,
)
from remote_tool.cli.output.console import Console
from remote_tool.config.devices import parse_devices
from remote_tool.errors import UsageError
from remote_tool.launchers import options
from remote_tool.workflows.selection import JobSelection

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool import Workspace

R = TypeVar("R")
# Options that a request has in another form, or by another name.
_READ = {
    "server",
    "hosts",
    "hostfile",
    "private_key",
    "env",
    "devices",
    "tag",
    "artifact",
    "workdir",
    "no_sync",
    "after",
    "after_any",
}


# Groups are not compared or shown: making these methods would take a few milliseconds of each command's start.
@dataclass(frozen=True, eq=False, repr=False)
class ConnectionFlags:
    """How a command connects to servers, and what it says about that."""

    accept_new_keys: AcceptNewKeys = False
    verbose: Verbose = 0

    def console(self, activity: str = "", *, show_output: bool = False, only_changes: bool = False) -> Console:
        """Return a console with these options."""
        return Console(
            verbose=self.verbose,
            accept_new_keys=self.accept_new_keys,
            show_output=show_output,
            activity=activity,
            only_changes=only_changes,
        )


@dataclass(frozen=True, eq=False, repr=False)
class Targets:
    """The servers to act on: configured ones, or the hosts of a list.

    Raises:
        UsageError: More than one of the options is given.
    """

    server: Servers = None
    hosts: Hosts = None
    hostfile: Hostfile = None
    private_key: PrivateKey = None

    def __post_init__(self) -> None:
        """Refuse two ways to name servers, and a key without a list."""
        if self.private_key is not None and not self.is_list:
            raise UsageError(
                "--private-key is for --hosts and --hostfile",
                hint="Set private_key: in .remote/configs.yaml for the servers there",
            )
        options = {"--server": self.server or None, "--hosts": self.hosts, "--hostfile": self.hostfile}
        given = [name for name, value in options.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} cannot be combined", hint="Keep one of them")

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of configured servers; empty: all."""
        return tuple(self.server or ())

    @property
    def is_list(self) -> bool:
        """Whether hosts of a list are given."""
        return self.hosts is not None or self.hostfile is not None

    @property
    def words(self) -> str:
        """The options as typed, with a space before each; empty without any."""
        given = [*(("--server", name) for name in self.servers), ("--hosts", self.hosts), ("--hostfile", self.hostfile)]
        given.append(("--private-key", self.private_key))
        return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value is not None)

    def find_workspace(self, console: Console) -> Workspace:
        """Find the workspace here or above, with the hosts of a list when one is given."""
        workspace = console.find_workspace()
        if self.hosts is not None:
            return workspace.with_hosts(self.hosts, private_key=self.private_key)
        if self.hostfile is not None:
            return workspace.with_hostfile(self.hostfile, private_key=self.private_key)
        return workspace


@dataclass(frozen=True, eq=False, repr=False)
class _StartedJobs(Targets):
    """Options of commands that start jobs which a request has in another form."""

    env: Environment = None
    devices: Devices = None
    tag: TagsToSet = None
    artifact: Artifacts = None
    workdir: Workdir = None
    no_sync: NoSync = False


@dataclass(frozen=True, eq=False, repr=False)
class StartFlags(options.JobOptions, _StartedJobs):
    """How a command starts jobs."""

    def request(self, kind: Callable[..., R], **own: object) -> R:
        """Return a request of this kind, with these options and the command's own."""
        as_given = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _READ}
        return kind(
            servers=self.servers,
            env=read_environment(self.env),
            devices=parse_devices(self.devices),
            tags=tuple(self.tag or ()),
            artifacts=tuple(self.artifact or ()),
            workdir=read_workdir(self.workdir),
            sync=not self.no_sync,
            **{**as_given, **own},
        )


@dataclass(frozen=True, eq=False, repr=False)
class ProgramFlags(options.ProgramOptions, options.EndOptions, StartFlags):
    """How a command starts one program, which may resume from the artifacts of a job."""


@dataclass(frozen=True, eq=False, repr=False)
class RunFlags(options.RunOptions, ProgramFlags):
    """How a command starts jobs that may wait for GPUs and for other jobs.

    Raises:
        UsageError: Both kinds of waiting for jobs are given.
    """

    after: After = None
    after_any: AfterAny = None

    def __post_init__(self) -> None:
        """Refuse two conditions."""
        super().__post_init__()
        if self.after and self.after_any:
            raise UsageError("--after and --after-any cannot be combined", hint="Keep one of them")

    def request(self, kind: Callable[..., R], **own: object) -> R:
        """Return a request of this kind, with these options and the command's own."""
        after = tuple(self.after or self.after_any or ())
        return super().request(kind, after=after, after_any=bool(self.after_any), **own)


@dataclass(frozen=True, eq=False, repr=False)
class LaunchFlags(options.LaunchOptions, ProgramFlags):
    """How a command starts one program on several servers."""


@dataclass(frozen=True, eq=False, repr=False)
class RendezvousFlags(LaunchFlags):
    """How a command starts a program whose nodes meet at a port of the first server."""

    master_port: MasterPort = None


@dataclass(frozen=True, eq=False, repr=False)
class Shown:
    """Output of a command that starts jobs.

    Raises:
        UsageError: Both options are given.
    """

    follow: Follow = False
    json: AsJson = False

    def __post_init__(self) -> None:
        """Refuse two uses of stdout."""
        if self.json and self.follow:
            raise UsageError("--json and --follow both write to stdout", hint="--json, then remote-tool job-tail KEY")


@dataclass(frozen=True, eq=False, repr=False)
class PlannedOrShown(Shown):
    """Output of a command that starts a launch."""

    dry_run: PlanOnly = False


@dataclass(frozen=True, eq=False, repr=False)
class NamedJobs:
    """Jobs by key or id."""

    keys: Keys = None
    job: JobNames = None

    @property
    def names(self) -> tuple[str, ...]:
        """The keys and ids."""
        return (*(self.keys or ()), *(self.job or ()))


@dataclass(frozen=True, eq=False, repr=False)
class ChosenJobs(NamedJobs):
    """Jobs by key, id, tag or server."""

    server: Servers = None
    tag: TagsToFind = None

    def selection(self, *, stopped: bool = False) -> JobSelection:
        """Return the selection."""
        return JobSelection(self.names, tuple(self.tag or ()), tuple(self.server or ()), stopped=stopped)


@dataclass(frozen=True, eq=False, repr=False)
class SyncFlags:
    """How a command sends files."""

    show_output: ShowOutput = False
    dry_run: ChangeNothing = False
    checksum: Checksum = False
    relay: Relay = False
    overwrite: Overwrite = False

    @property
    def options(self) -> dict[str, bool]:
        """The options of the sync itself."""
        return {
            "dry_run": self.dry_run,
            "checksum": self.checksum,
            "relay": self.relay,
            "overwrite": self.overwrite,
        }


def flatten(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as Typer reads it: a function with one parameter for each option, also of its groups."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = groups.get(parameter.name)
        parameters += _parameters_of(kind) if kind else [parameter.replace(annotation=hints[parameter.name])]

    def run(**values: Any) -> None:  # noqa: ANN401 - whatever the options are
        for name, kind in groups.items():
            values[name] = kind(**{each.name: values.pop(each.name) for each in fields(kind)})
        command(**values)

    run.__doc__ = command.__doc__
    # Typer reads these two.
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters_of(group: Any) -> list[inspect.Parameter]:  # noqa: ANN401 - a class with fields has no type
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(each.name, kind, default=each.default, annotation=_as_typed(hints[each.name]))
        for each in fields(group)
    ]


def _as_typed(hint: Any) -> Any:  # noqa: ANN401 - a type with its annotations has no type
    """Return the type of an option as Typer reads it."""
    kind, *notes = get_args(hint)
    option = notes[0]
    if not isinstance(option, options.Option):
        return hint
    typed = typer.Option(
        option.flag,
        metavar=option.metavar,
        help=option.help,
        show_default=False,
        autocompletion=complete(option.completes) if option.completes else None,
    )
    return Annotated[kind if option.typed is None else option.typed | None, typed]
