"""The commands that look after servers themselves: how they are logged in to, and what lies between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool import workflows
from remote_tool.cli.bandwidth_matrix import matrix, remarks
from remote_tool.cli.console import Console, inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.json_output import errors_as_json, print_json, servers_document
from remote_tool.cli.options import AsJson, Hostfile, Hosts, Servers, Targets, Verbose
from remote_tool.errors import JobError, SomeServersFailedError

if TYPE_CHECKING:
    from remote_tool.workflows.bandwidth import BandwidthAnswer, Link
    from remote_tool.workflows.install_keys import KeyOnServer


def keys(  # noqa: PLR0913 - one parameter per option
    *,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Ask for a passphrase for a key that is made.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say who is let in by a key, and change nothing.")] = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Log in by key from now on: make a key if there is none, add it to the servers, and try it."""
    targets = Targets.read(server, hosts, hostfile)
    with Console(verbose=verbose, activity="connecting") as console:
        request = workflows.install_keys.KeysRequest(targets.servers, passphrase, dry_run)
        results = console.find_workspace(targets).install_keys(request, check=False)
    if json:
        print_json(servers_document(results.values, results.errors))
    else:
        for name, key in results.values.items():
            print_data(f"{name}: {_told(key)}")
    show_failures(results.errors)
    if results.errors:
        leave_unless_ok(SomeServersFailedError(results.errors, list(results.values)).exit_code)
    inform("nothing was changed" if dry_run else f"next: remote-tool prepare{targets.words}")


def _told(key: KeyOnServer) -> str:
    states = workflows.install_keys.KeyState
    match key.state:
        case states.WORKS:
            return "a key logs in already"
        case states.ADDED:
            return f"added to {key.file}: {key.line}"
        case states.MISSING:
            made = "" if key.line else " (a new one)"
            return f"no key logs in; would add {key.key or 'the key of the ssh agent'}{made}"


def bandwidth(
    *,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", help="How long each direction is measured.")
    ] = 2.0,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Measure what goes between every two servers, over the addresses that a launch uses."""
    targets = Targets.read(server, hosts, hostfile)
    with Console(verbose=verbose, activity="connecting") as console:
        answer = console.find_workspace(targets).measure_bandwidth(targets.servers, seconds=seconds)
    if json:
        print_json(_bandwidth_document(answer))
    elif answer.links:
        print_data(matrix(answer))
    for text in remarks(answer):
        inform(text)
    show_failures(answer.errors)
    show_failures(_unmeasured(answer))
    leave_unless_ok(answer.exit_code)


def _unmeasured(answer: BandwidthAnswer) -> dict[str, JobError]:
    """Each pair that was not measured, once."""
    return {
        f"{link.source} and {link.target}": JobError(link.error, hint=workflows.bandwidth.FIREWALL_HINT)
        for link in answer.links
        if link.error and answer.servers.index(link.source) < answer.servers.index(link.target)
    }


def _bandwidth_document(answer: BandwidthAnswer) -> dict[str, Any]:
    return {"links": [_link_as_json(link) for link in answer.links], "errors": errors_as_json(answer.errors)}


def _link_as_json(link: Link) -> dict[str, Any]:
    return {
        "from": link.source,
        "to": link.target,
        "gbit_per_second": link.gbit,
        "round_trip_ms": None if link.round_trip is None else link.round_trip * 1000,
        "interface": link.interface or None,
        "to_interface": link.target_interface or None,
        "address": link.address or None,
        "method": link.method or None,
        "error": link.error or None,
    }
