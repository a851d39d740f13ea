"""The commands connections and disconnect."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from remote_tool.cli.groups import ConnectionFlags, Targets
from remote_tool.cli.options import AsJson
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, print_data
from remote_tool.cli.output.json_output import print_json
from remote_tool.cli.tables.jobs import as_minute, readable_moment
from remote_tool.jobs.job import as_iso

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.workflows.servers.kept_logins import KeptLogin


def connections(*, targets: Targets, json: AsJson = False, connection: ConnectionFlags) -> None:
    """List the logins that are kept open for later commands (see keep_connections in configs.yaml)."""
    with connection.console() as console:
        kept = targets.find_workspace(console).list_connections(targets.servers)
    _show(kept, "", json=json)
    if not kept and not json:
        inform("no login is kept")


def disconnect(*, targets: Targets, json: AsJson = False, connection: ConnectionFlags) -> None:
    """Close the logins that are kept open; a command that is using one loses its connection."""
    with connection.console() as console:
        kept = targets.find_workspace(console).disconnect(targets.servers)
    _show(kept, "closed: ", json=json)
    if not kept and not json:
        inform("no login was kept")


def _show(kept: Sequence[KeptLogin], prefix: str, *, json: bool) -> None:
    if json:
        print_json({"connections": [_as_json(login) for login in kept], "errors": []})
        return
    show_since = readable_moment if streams.is_terminal(streams.OUT) else as_minute
    for login in kept:
        state = f"{login.sessions} in use" if login.pid is not None else "no answer"
        destination = f"{login.username}@{login.address}"
        print_data(f"{login.server}: {prefix}{destination}, since {show_since(login.since)}, {state}")


def _as_json(login: KeptLogin) -> dict[str, Any]:
    return {**asdict(login), "since": as_iso(login.since)}
