"""The commands that prepare servers and send files to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import ConnectionFlags, SyncFlags, Targets
from remote_tool.cli.options import Adopt, AsJson, Force, Overwrite, Relay, ShowOutput
from remote_tool.cli.output.console import Console, inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.output.json_output import errors_as_json, print_json, servers_document
from remote_tool.errors import SomeServersFailedError, SyncError
from remote_tool.readable import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool import Workspace
    from remote_tool.transport.pool import Results
    from remote_tool.transport.sync.push import PushResult
    from remote_tool.workflows.prepare.prepare import PreparedServer

CONNECTING = "connecting"


def prepare(  # noqa: PLR0913 - one parameter per option
    *,
    targets: Targets,
    force: Force = False,
    relay: Relay = False,
    overwrite: Overwrite = False,
    show_output: ShowOutput = False,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Prepare servers: install the environment, send the project and install packages; skips what is up to date."""
    with connection.console(CONNECTING, show_output=show_output, only_changes=True) as console:
        workspace = targets.find_workspace(console)
        results = workspace.prepare(targets.servers, force=force, relay=relay, overwrite=overwrite, check=False)
    _show_ready(results)
    _show_results(results, console, json=json)


def setup(
    *, targets: Targets, force: Force = False, show_output: ShowOutput = False, connection: ConnectionFlags
) -> None:
    """Install the environment on servers; skips what is up to date."""
    with connection.console(CONNECTING, show_output=show_output) as console:
        results = targets.find_workspace(console).setup(targets.servers, force=force, check=False)
    _show_results(results, console)


def update_packages(
    *, targets: Targets, force: Force = False, show_output: ShowOutput = False, connection: ConnectionFlags
) -> None:
    """Install the packages in requirements.txt, Pipfile, pyproject.toml or environment.yml."""
    with connection.console(CONNECTING, show_output=show_output) as console:
        results = targets.find_workspace(console).update_packages(targets.servers, force=force, check=False)
    _show_results(results, console)


def rsync(
    *, targets: Targets, flags: SyncFlags, adopt: Adopt = False, json: AsJson = False, connection: ConnectionFlags
) -> None:
    """Send changed project files; removes on the server only files that were sent before and no longer exist here."""
    with connection.console(CONNECTING, show_output=flags.show_output) as console:
        workspace = targets.find_workspace(console)
        results = workspace.rsync(targets.servers, **flags.options, adopt=adopt, check=False)
    if flags.dry_run and not json:
        _list_changes("", results)
        if connection.verbose:
            _list_left_out(workspace)
    _show_results(results, console, json=json, dry_run=flags.dry_run)


def data_sync(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Data sets to send; default: all.")] = None,
    *,
    targets: Targets,
    flags: SyncFlags,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Send data sets in configs.yaml to their folders on servers; never removes files there."""
    with connection.console(CONNECTING, show_output=flags.show_output) as console:
        workspace = targets.find_workspace(console)
        answer = workspace.data_sync(tuple(names or ()), targets.servers, **flags.options, check=False)
    if json:
        print_json({"data": [_data_as_json(name, results) for name, results in answer.items()]})
    elif flags.dry_run:
        for name, results in answer.items():
            _list_changes(f"{name}: ", results)
    _show_data_results(answer)


def _data_as_json(name: str, results: Results[PushResult]) -> dict[str, object]:
    servers = [
        {"server": server, "changed": result.changed, "sent": list(result.sent), "bytes": result.bytes}
        for server, result in results.values.items()
    ]
    return {"name": name, "servers": servers, "errors": errors_as_json(results.errors)}


def _show_data_results(answer: Mapping[str, Results[PushResult]]) -> None:
    code = 0
    for name, results in answer.items():
        show_failures(results.errors)
        every = len(results.values) + len(results.errors)
        inform(f"data {name}: {len(results.values)} of {every} servers")
        code = code or _exit_code(results)
    leave_unless_ok(code)


def _list_changes(label: str, results: Results[PushResult]) -> None:
    for server, result in results.values.items():
        for mark, names in (("send", result.sent), ("remove", result.removed)):
            for name in names:
                print_data(f"{server}: {label}{mark} {name}")


def _list_left_out(workspace: Workspace) -> None:
    try:
        left_out = workspace.left_out()
    except SyncError as error:
        inform(str(error))
        return
    for name, rule in left_out:
        print_data(f"not sent: {name}: {rule}")


def _show_results(results: Results[Any], console: Console, *, json: bool = False, dry_run: bool = False) -> None:
    if json:
        print_json(servers_document(results.values, results.errors))
    show_failures(results.errors)
    inform(_summary(results, console.seconds, dry_run=dry_run))
    leave_unless_ok(_exit_code(results))


def _show_ready(results: Results[PreparedServer]) -> None:
    width = max(map(len, results.values), default=0)
    for server, prepared in results.values.items():
        python = f"Python {prepared.python}" if prepared.python else "the Python inside"
        shared = f", shares its folder with {prepared.follows}" if prepared.follows else ""
        inform(f"{server.ljust(width)}  ready  {python}{shared}")


def _summary(results: Results[Any], seconds: float, *, dry_run: bool) -> str:
    servers = counted(len(results.values) + len(results.errors), "server")
    if results.errors:
        return f"{len(results.errors)} of {servers} failed after {seconds:.1f} s"
    if not any(value.changed for value in results.values.values()):
        return f"{servers} already up to date ({seconds:.1f} s)"
    if dry_run:
        return f"nothing was changed ({seconds:.1f} s)"
    return f"done on {servers} in {seconds:.1f} s"


def _exit_code(results: Results[Any]) -> int:
    return SomeServersFailedError(results.errors, list(results.values)).exit_code if results.errors else 0
