"""The command keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from remote_tool.cli.groups import ConnectionFlags, Targets
from remote_tool.cli.options import AsJson
from remote_tool.cli.output.console import inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.output.json_output import print_json, servers_document
from remote_tool.errors import SomeServersFailedError

if TYPE_CHECKING:
    from remote_tool.workflows.servers.install_keys import KeyOnServer


def keys(
    *,
    targets: Targets,
    passphrase: Annotated[bool, typer.Option("--passphrase", help="Ask for a passphrase if a key is created.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which servers accept a key, and change nothing.")
    ] = False,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Set up key-based login: create a key if there is none, add it to the servers, and test it."""
    from remote_tool.workflows.servers.install_keys import KeysRequest  # noqa: PLC0415 - not for --help

    with connection.console("connecting") as console:
        request = KeysRequest(targets.servers, passphrase, dry_run)
        results = targets.find_workspace(console).install_keys(request, check=False)
    if json:
        print_json(servers_document(results.values, results.errors))
    else:
        for name, key in results.values.items():
            print_data(f"{name}: {_described(key)}")
    show_failures(results.errors)
    if results.errors:
        leave_unless_ok(SomeServersFailedError(results.errors, list(results.values)).exit_code)
    inform("nothing was changed" if dry_run else f"next: remote-tool prepare{targets.words}")


def _described(key: KeyOnServer) -> str:
    from remote_tool.workflows.servers.install_keys import KeyState  # noqa: PLC0415 - not for --help

    match key.state:
        case KeyState.WORKS:
            return "key-based login already works"
        case KeyState.ADDED:
            return f"added to {key.file}: {key.line}"
        case KeyState.MISSING:
            new = "" if key.line else " (new)"
            return f"no key works; would add {key.key or 'the key of the SSH agent'}{new}"
