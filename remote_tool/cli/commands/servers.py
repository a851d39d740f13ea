"""The commands about login to servers, and the network between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import Connection, Targets
from remote_tool.cli.options import AsJson
from remote_tool.cli.output.console import inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.output.json_output import errors_as_json, print_json, servers_document
from remote_tool.cli.tables.bandwidth import matrix, remarks
from remote_tool.cli.tables.gpus import gpus_document, print_gpus
from remote_tool.errors import JobError, SomeServersFailedError

if TYPE_CHECKING:
    from remote_tool.workflows.servers.bandwidth import BandwidthAnswer, MeasuredLink
    from remote_tool.workflows.servers.install_keys import KeyOnServer


def keys(
    *,
    targets: Targets,
    passphrase: Annotated[bool, typer.Option("--passphrase", help="Ask for a passphrase if a key is created.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which servers accept a key, and change nothing.")
    ] = False,
    json: AsJson = False,
    connection: Connection,
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


def bandwidth(
    *,
    targets: Targets,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", help="Measure each direction for N seconds.")
    ] = 2.0,
    json: AsJson = False,
    connection: Connection,
) -> None:
    """Measure network bandwidth between each pair of servers, over the addresses that a launch uses."""
    with connection.console("connecting") as console:
        answer = targets.find_workspace(console).measure_bandwidth(targets.servers, seconds=seconds)
    if json:
        print_json(_bandwidth_document(answer))
    elif answer.links:
        print_data(matrix(answer))
    for text in remarks(answer):
        inform(text)
    show_failures(answer.errors)
    show_failures(_unmeasured(answer))
    leave_unless_ok(answer.exit_code)


def gpus(
    *,
    targets: Targets,
    wait: Annotated[
        int | None, typer.Option("--wait", min=1, metavar="N", help="Wait until a server has N free GPUs.")
    ] = None,
    json: AsJson = False,
    connection: Connection,
) -> None:
    """Show which GPUs are free, leased by jobs, or used by others, and how many jobs wait for some."""
    with connection.console("asking servers" if wait is None else "waiting for GPUs") as console:
        workspace = targets.find_workspace(console)
        if wait is None:
            answer = workspace.list_gpus(targets.servers)
        else:
            answer = workspace.wait_for_gpus(wait, targets.servers)
    if json:
        print_json(gpus_document(answer))
    elif wait is None:
        print_gpus(answer)
    else:
        print_data("\n".join(answer.with_free(wait)))
    show_failures(answer.errors)
    leave_unless_ok(answer.exit_code if wait is None or not answer.with_free(wait) else 0)


def _unmeasured(answer: BandwidthAnswer) -> dict[str, JobError]:
    """Each pair that was not measured, once."""
    from remote_tool.workflows.servers.bandwidth import FIREWALL_HINT  # noqa: PLC0415 - not for --help

    return {
        f"{link.source} and {link.target}": JobError(link.error, hint=FIREWALL_HINT)
        for link in answer.links
        if link.error and answer.servers.index(link.source) < answer.servers.index(link.target)
    }


def _bandwidth_document(answer: BandwidthAnswer) -> dict[str, Any]:
    return {"links": [_link_as_json(link) for link in answer.links], "errors": errors_as_json(answer.errors)}


def _link_as_json(link: MeasuredLink) -> dict[str, Any]:
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
