"""The command forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import ConnectionFlags
from remote_tool.cli.options import AsJson, JobName, Servers
from remote_tool.cli.output.console import leave_unless_ok, print_data, show_failures
from remote_tool.cli.output.json_output import print_json
from remote_tool.errors import SomeServersFailedError

if TYPE_CHECKING:
    from remote_tool.workflows.forward.session import Opened


def forward(
    forwards: Annotated[list[str] | None, typer.Argument(metavar="[ADDRESS:]PORT[:HOST:PORT]", hidden=True)] = None,
    *,
    server: Servers = None,
    job: JobName = "",
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Listen on the servers and connect to this machine, like ssh -R.")
    ] = False,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Forward ports of this machine to servers until Ctrl-C; reconnect when a connection is lost.

    6006 forwards port 6006 here to port 6006 of each server; 8888:localhost:6006 and 8888:/path/to.sock are as in
    ssh -L. Only programs on this machine can connect, unless an address comes first: 0.0.0.0:8888:localhost:6006.
    With --job and no port, every port that the job listens on is forwarded.
    """
    from remote_tool.workflows.forward.forward import ForwardRequest, Listener  # noqa: PLC0415 - not for --help

    request = ForwardRequest(tuple(forwards or ()), tuple(server or ()), job, reverse)
    opened: list[Opened] = []

    def show(each: Opened) -> None:
        opened.append(each)
        if not json:
            print_data(_described(each))

    def show_document() -> None:
        if json:
            print_json({"forwards": [_as_json(each) for each in opened], "errors": []})

    with connection.console() as console:
        listener = Listener(show, show_document)
        results = console.find_workspace().forward(request, listener, check=False)
    show_failures(results.errors)
    if results.errors:
        leave_unless_ok(SomeServersFailedError(results.errors, list(results.values)).exit_code)


def _described(opened: Opened) -> str:
    if opened.reverse:
        return f"{opened.listen} on {opened.server} -> {opened.target}"
    text = f"{opened.listen} -> {opened.target} on {opened.server}"
    if opened.requested_port in {0, opened.listen.port}:
        return text
    state = f"goes to {opened.taken_by}" if opened.taken_by else "is not free"
    return f"{text} (port {opened.requested_port} here {state})"


def _as_json(opened: Opened) -> dict[str, Any]:
    return {
        "server": opened.server,
        "reverse": opened.reverse,
        "listen": str(opened.listen),
        "port": opened.listen.port or None,
        "target": str(opened.target),
    }
