"""``job-kill --orphans``: shows the processes that jobs left behind, asks, and ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, leave_unless_ok, show_failures
from remote_tool.cli.output.json_output import orphans_document, print_json
from remote_tool.cli.output.questions import can_ask, confirm
from remote_tool.cli.tables.jobs import print_orphans
from remote_tool.errors import SomeServersFailedError
from remote_tool.jobs.job import DEFAULT_GRACE
from remote_tool.readable import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.cli.groups import Connection, Targets
    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.jobs.orphans import OrphansAnswer

NOT_ENDED = 1


def end_orphans(
    targets: Targets, connection: Connection, *, signal: str, grace: float | None, yes: bool, json: bool
) -> None:
    """Show orphans, and end them if the user confirms. Exits with 1 when some are left."""
    with connection.console("looking for orphans") as console:
        workspace = targets.find_workspace(console)
        found = workspace.find_orphans(targets.servers)
    if found.strays and not json:
        print_orphans(found.strays, streams.OUT)
    is_confirmed = bool(found.strays) and (yes or (not json and can_ask() and _confirm(len(found.strays))))
    errors: Mapping[str, RemoteToolError] = {}
    if is_confirmed:
        seconds = DEFAULT_GRACE if grace is None else grace
        with connection.console("ending orphans") as console:
            errors = console.rebind(workspace).end_orphans(found, signal=signal, grace=seconds)
    _show_outcome(found, errors, ended=is_confirmed, json=json)


def _show_outcome(found: OrphansAnswer, errors: Mapping[str, RemoteToolError], *, ended: bool, json: bool) -> None:
    all_errors = {**found.errors, **errors}
    if json:
        print_json(orphans_document(found, all_errors, ended=ended))
    elif ended:
        count = sum(orphan.server not in errors for orphan in found.strays)
        inform(f"ended {counted(count, 'process')}" + ("" if all_errors else "; no orphans left"))
    elif found.strays:
        inform("nothing was ended; --yes ends them")
    else:
        inform("no orphans")
    show_failures(all_errors)
    if all_errors:
        leave_unless_ok(
            SomeServersFailedError(all_errors, [name for name in found.places if name not in errors]).exit_code
        )
    leave_unless_ok(NOT_ENDED if found.strays and not ended else 0)


def _confirm(count: int) -> bool:
    return confirm(f"End {counted(count, 'process')}?")
