"""The command ssh-config."""

from __future__ import annotations

from typing import Annotated

import typer

from remote_tool.cli.groups import ConnectionFlags, Targets
from remote_tool.cli.output.console import inform, leave_unless_ok, print_data, show_failures
from remote_tool.errors import SomeServersFailedError, UsageError


def ssh_config(
    *,
    targets: Targets,
    install: Annotated[
        bool, typer.Option("--install", help="Write them into ~/.ssh/remote-tool/, included by ~/.ssh/config.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what --install has written.")] = False,
    connection: ConnectionFlags,
) -> None:
    """Print Host blocks with which ssh, scp, and editors reach each server by its name.

    They have the address, user, port, key, and jump hosts that remote-tool uses, and its file of known host keys.
    """
    from remote_tool.workflows.servers.ssh_config import installed_file  # noqa: PLC0415 - not for --help

    if remove:
        if install or targets.words:
            raise UsageError("--remove takes no other option: it removes the whole file of this project")
        _remove(connection)
        return
    with connection.console() as console:
        workspace = targets.find_workspace(console)
        make = workspace.install_ssh_config if install else workspace.ssh_config
        results = make(targets.servers, check=False)
    if install and results.values:
        names = ", ".join(results.values)
        inform(f"wrote {installed_file(workspace.config)}: {names}")
    for text in () if install else results.values.values():
        print_data(text.rstrip("\n"))
    show_failures(results.errors)
    if results.errors:
        leave_unless_ok(SomeServersFailedError(results.errors, list(results.values)).exit_code)


def _remove(connection: ConnectionFlags) -> None:
    from remote_tool.workflows.servers.ssh_config import installed_file  # noqa: PLC0415 - not for --help

    with connection.console() as console:
        workspace = console.find_workspace()
        was_there = workspace.remove_ssh_config()
    file = installed_file(workspace.config)
    inform(f"removed {file}" if was_there else f"there is no {file}")
