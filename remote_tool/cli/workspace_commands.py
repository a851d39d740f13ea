"""The commands about the workspace and its servers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.console import Console, inform, leave_unless_ok, show_failures
from remote_tool.cli.json_output import print_json, servers_document
from remote_tool.cli.log_lines import ExactOutput, LabelledOutput
from remote_tool.cli.options import (
    AsJson,
    Command,
    Environment,
    Force,
    Servers,
    ShowOutput,
    Verbose,
    read_environment,
)
from remote_tool.cli.plain import visible
from remote_tool.cli.questions import ask_answers
from remote_tool.errors import SomeServersFailedError
from remote_tool.workflows.init import InitAnswers, parse_server_option, write_workspace
from remote_tool.workspace import Workspace

if TYPE_CHECKING:
    from remote_tool.transport.pool import Results


def init(
    *,
    name: Annotated[str | None, typer.Option("--name", help="The project's folder on the servers.")] = None,
    server: Annotated[
        list[str] | None, typer.Option("--server", metavar="NAME=[USER@]HOST[:PORT]", help="A server; may be repeated.")
    ] = None,
    private_key: Annotated[str | None, typer.Option("--private-key", help="The key to log in with.")] = None,
) -> None:
    """Write .remote/configs.yaml and exclude.txt; asks for what is not given. Overwrites nothing."""
    root = Path.cwd()
    given = InitAnswers(name or "", tuple(parse_server_option(each) for each in server or ()), private_key)
    answers = given if given.servers or not sys.stdin.isatty() else ask_answers(given, root)
    for path in write_workspace(root, answers):
        inform(f"wrote {path.relative_to(root)}")
    inform("next: remote-tool prepare")


def prepare(
    *,
    server: Servers = None,
    force: Force = False,
    show_output: ShowOutput = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Make servers ready: environment, project and packages; does only what is missing."""
    with Console(verbose=verbose, quiet=json, show_output=show_output) as console:
        results = Workspace.find(hooks=console.hooks).prepare(server or (), force=force, check=False)
    _show_results(results, json=json)


def setup(
    *, server: Servers = None, force: Force = False, show_output: ShowOutput = False, verbose: Verbose = 0
) -> None:
    """Install the environment on servers; does only what is missing."""
    with Console(verbose=verbose, show_output=show_output) as console:
        results = Workspace.find(hooks=console.hooks).setup(server or (), force=force, check=False)
    _show_results(results)


def update_packages(
    *, server: Servers = None, force: Force = False, show_output: ShowOutput = False, verbose: Verbose = 0
) -> None:
    """Install what requirements.txt, Pipfile, pyproject.toml or environment.yml names."""
    with Console(verbose=verbose, show_output=show_output) as console:
        results = Workspace.find(hooks=console.hooks).update_packages(server or (), force=force, check=False)
    _show_results(results)


def rsync(
    *,
    server: Servers = None,
    show_output: ShowOutput = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would change, and change nothing.")] = False,
    checksum: Annotated[bool, typer.Option("--checksum", help="Compare contents, not sizes and times.")] = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Send what changed in the project; removes on the server only what was sent earlier and is gone here."""
    with Console(verbose=verbose, quiet=json, show_output=show_output) as console:
        workspace = Workspace.find(hooks=console.hooks)
        results = workspace.rsync(server or (), dry_run=dry_run, checksum=checksum, check=False)
    for result in results.values.values() if dry_run and not json else ():
        for mark, names in (("send", result.sent), ("remove", result.removed)):
            for name in names:
                typer.echo(f"{result.server}: {mark} {visible(name)}")
    _show_results(results, json=json)


def run(
    *,
    cmd: Command,
    server: Servers = None,
    env: Environment = None,
    silent: Annotated[bool, typer.Option("--silent", help="Do not show what it prints.")] = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Run a command in the environment and show what it prints; ends with its exit status."""
    with Console(verbose=verbose, quiet=True) as console:
        workspace = Workspace.find(hooks=console.hooks)
        collected = _Collected()
        several = len(server or workspace.config.servers) > 1
        output = LabelledOutput(sys.stdout.isatty) if several else ExactOutput()
        show = collected.write if json else _drop if silent else output.write
        results = workspace.run(cmd, server or (), env=read_environment(env), on_output=show, check=False)
        output.end()
    if json:
        values = {name: {"exit_code": code, **collected.of(name)} for name, code in results.values.items()}
        print_json(servers_document(values, results.errors))
    show_failures(results.errors)
    _leave(results, max(results.values.values(), default=0))


class _Collected:
    """What every server printed, for the JSON document."""

    def __init__(self) -> None:
        self._data: dict[tuple[str, int], bytes] = {}

    def write(self, server: str, stream: int, data: bytes) -> None:
        self._data[server, stream] = self._data.get((server, stream), b"") + data

    def of(self, server: str) -> dict[str, str]:
        found = {"stdout": self._data.get((server, 1), b""), "stderr": self._data.get((server, 2), b"")}
        return {name: data.decode(errors="replace") for name, data in found.items()}


def _drop(_server: str, _stream: int, _data: bytes) -> None:
    """Show nothing."""


def _show_results(results: Results[Any], *, json: bool = False) -> None:
    if json:
        print_json(servers_document(results.values, results.errors))
    else:
        changed = [name for name, value in results.values.items() if value.changed]
        if results.values and not changed and not results.errors:
            inform("nothing had to be done")
    show_failures(results.errors)
    _leave(results, 0)


def _leave(results: Results[Any], exit_code: int) -> None:
    failed = SomeServersFailedError(results.errors, list(results.values)).exit_code if results.errors else 0
    leave_unless_ok(failed or exit_code)
