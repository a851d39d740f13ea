"""The commands about the workspace and its servers."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli import streams
from remote_tool.cli.console import Console, inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.json_output import print_json, servers_document
from remote_tool.cli.log_lines import ExactOutput, LabelledOutput
from remote_tool.cli.options import (
    AsJson,
    Command,
    Devices,
    Environment,
    Force,
    Hostfile,
    Hosts,
    Relay,
    Servers,
    ShowOutput,
    Targets,
    Verbose,
    read_environment,
)
from remote_tool.config.devices import parse_devices
from remote_tool.errors import SomeServersFailedError

if TYPE_CHECKING:
    from remote_tool.transport.pool import Results
    from remote_tool.transport.rsync import PushResult

CONNECTING = "connecting"


def prepare(  # noqa: PLR0913 - one parameter per option
    *,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    force: Force = False,
    relay: Relay = False,
    show_output: ShowOutput = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Make servers ready: environment, project and packages; does only what is missing."""
    targets = Targets.read(server, hosts, hostfile)
    with Console(verbose=verbose, show_output=show_output, activity=CONNECTING) as console:
        results = console.find_workspace(targets).prepare(targets.servers, force=force, relay=relay, check=False)
    _show_results(results, console, json=json)


def setup(
    *,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    force: Force = False,
    show_output: ShowOutput = False,
    verbose: Verbose = 0,
) -> None:
    """Install the environment on servers; does only what is missing."""
    targets = Targets.read(server, hosts, hostfile)
    with Console(verbose=verbose, show_output=show_output, activity=CONNECTING) as console:
        results = console.find_workspace(targets).setup(targets.servers, force=force, check=False)
    _show_results(results, console)


def update_packages(
    *,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    force: Force = False,
    show_output: ShowOutput = False,
    verbose: Verbose = 0,
) -> None:
    """Install what requirements.txt, Pipfile, pyproject.toml or environment.yml names."""
    targets = Targets.read(server, hosts, hostfile)
    with Console(verbose=verbose, show_output=show_output, activity=CONNECTING) as console:
        results = console.find_workspace(targets).update_packages(targets.servers, force=force, check=False)
    _show_results(results, console)


def rsync(  # noqa: PLR0913 - one parameter per option
    *,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    show_output: ShowOutput = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would change, and change nothing.")] = False,
    checksum: Annotated[bool, typer.Option("--checksum", help="Compare contents, not sizes and times.")] = False,
    relay: Relay = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Send what changed in the project; removes on the server only what was sent earlier and is gone here."""
    targets = Targets.read(server, hosts, hostfile)
    with Console(verbose=verbose, show_output=show_output, activity=CONNECTING) as console:
        workspace = console.find_workspace(targets)
        results = workspace.rsync(targets.servers, dry_run=dry_run, checksum=checksum, relay=relay, check=False)
    if dry_run and not json:
        _list_changes(results)
    _show_results(results, console, json=json, dry_run=dry_run)


def run(  # noqa: PLR0913 - one parameter per option
    *,
    cmd: Command,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    env: Environment = None,
    devices: Devices = None,
    silent: Annotated[bool, typer.Option("--silent", help="Do not show what it prints.")] = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Run a command in the environment and show what it prints; ends with its exit status."""
    variables, gpus = read_environment(env), parse_devices(devices)
    targets = Targets.read(server, hosts, hostfile)
    with Console(verbose=verbose) as console:
        workspace = console.find_workspace(targets)
        output = _output(list(targets.servers) or list(workspace.config.usual_servers), silent=silent, json=json)
        with closing(output):
            results = workspace.run(
                cmd, targets.servers, env=variables, devices=gpus, on_output=output.write, check=False
            )
    if isinstance(output, _Collected):
        values = {name: {"exit_code": code, **output.of(name)} for name, code in results.values.items()}
        print_json(servers_document(values, results.errors))
    show_failures(results.errors)
    _leave(results, max(results.values.values(), default=0))


def _output(servers: list[str], *, silent: bool, json: bool) -> ExactOutput | LabelledOutput | _Collected | _Silence:
    if json:
        return _Collected()
    if silent:
        return _Silence()
    return LabelledOutput(servers) if len(set(servers)) > 1 else ExactOutput()


class _Collected:
    """What every server printed, for the JSON document."""

    def __init__(self) -> None:
        self._data: dict[tuple[str, int], bytearray] = {}

    def write(self, server: str, stream: int, data: bytes) -> None:
        self._data.setdefault((server, stream), bytearray()).extend(data)

    def close(self) -> None:
        """Nothing is held back."""

    def of(self, server: str) -> dict[str, str]:
        found = {name: self._data.get((server, number), b"") for name, number in STREAMS.items()}
        return {name: data.decode(errors="replace") for name, data in found.items()}


STREAMS = {"stdout": streams.OUT, "stderr": streams.ERR}


class _Silence:
    def write(self, _server: str, _stream: int, _data: bytes) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing is held back."""


def _list_changes(results: Results[PushResult]) -> None:
    for server, result in results.values.items():
        for mark, names in (("send", result.sent), ("remove", result.removed)):
            for name in names:
                print_data(f"{server}: {mark} {name}")


def _show_results(results: Results[Any], console: Console, *, json: bool = False, dry_run: bool = False) -> None:
    if json:
        print_json(servers_document(results.values, results.errors))
    show_failures(results.errors)
    inform(_summary(results, console.seconds, dry_run=dry_run))
    _leave(results, 0)


def _summary(results: Results[Any], seconds: float, *, dry_run: bool) -> str:
    every = len(results.values) + len(results.errors)
    servers = "1 server" if every == 1 else f"{every} servers"
    if results.errors:
        return f"{len(results.errors)} of {servers} failed after {seconds:.1f} s"
    if not any(value.changed for value in results.values.values()):
        return f"nothing had to be done on {servers} ({seconds:.1f} s)"
    if dry_run:
        return f"nothing was changed ({seconds:.1f} s)"
    return f"done on {servers} in {seconds:.1f} s"


def _leave(results: Results[Any], exit_code: int) -> None:
    failed = SomeServersFailedError(results.errors, list(results.values)).exit_code if results.errors else 0
    leave_unless_ok(failed or exit_code)
