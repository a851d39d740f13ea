"""The commands that look after servers themselves: how they are logged in to, and what lies between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from remote_tool.cli.console import Console, inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.json_output import print_json, servers_document
from remote_tool.cli.options import AsJson, Servers, Verbose
from remote_tool.errors import SomeServersFailedError
from remote_tool.workflows.install_keys import KeysRequest, KeyState

if TYPE_CHECKING:
    from remote_tool.workflows.install_keys import KeyOnServer


def keys(
    *,
    server: Servers = None,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Ask for a passphrase for a key that is made.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say who is let in by a key, and change nothing.")] = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Log in by key from now on: make a key if there is none, add it to the servers, and try it."""
    with Console(verbose=verbose, activity="connecting") as console:
        request = KeysRequest(tuple(server or ()), passphrase, dry_run)
        results = console.find_workspace().install_keys(request, check=False)
    if json:
        print_json(servers_document(results.values, results.errors))
    else:
        for name, key in results.values.items():
            print_data(f"{name}: {_told(key)}")
    show_failures(results.errors)
    if results.errors:
        leave_unless_ok(SomeServersFailedError(results.errors, list(results.values)).exit_code)
    inform("nothing was changed" if dry_run else "next: remote-tool prepare")


def _told(key: KeyOnServer) -> str:
    match key.state:
        case KeyState.WORKS:
            return "a key logs in already"
        case KeyState.ADDED:
            return f"added to {key.file}: {key.line}"
        case KeyState.MISSING:
            made = "" if key.line else " (a new one)"
            return f"no key logs in; would add {key.key or 'the key of the ssh agent'}{made}"
