"""``job-kill --strays``: shows the processes that jobs have left, asks, and ends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.cli import streams
from remote_tool.cli.console import Console, can_ask, confirm, inform, leave_unless_ok, show_failures
from remote_tool.cli.json_output import print_json, strays_document
from remote_tool.cli.tables import print_strays
from remote_tool.errors import SomeServersFailedError
from remote_tool.jobs.job import DEFAULT_GRACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.cli.options import Targets
    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.strays import StraysAnswer

NOT_ENDED = 1


@dataclass(frozen=True)
class StrayRequest:
    """What the user wants of strays.

    Attributes:
        targets: On which servers.
        signal: The first one.
        grace: Seconds until SIGKILL; None: 10.
        yes: Whether they are ended without a question.
        json: Whether one document is printed.
    """

    targets: Targets
    signal: str
    grace: float | None
    yes: bool
    json: bool


def end_strays(request: StrayRequest, *, verbose: int) -> None:
    """Show strays; end them when the user says so. Ends with 1 when some are left."""
    with Console(verbose=verbose, activity="looking for strays") as console:
        workspace = console.find_workspace(request.targets)
        found = workspace.find_strays(request.targets.servers)
    if not request.json:
        _show(found, streams.OUT)
    wanted = bool(found.strays) and (request.yes or (not request.json and _is_wanted(found)))
    errors: Mapping[str, RemoteToolError] = {}
    if wanted:
        grace = DEFAULT_GRACE if request.grace is None else request.grace
        with Console(verbose=verbose, activity="ending strays") as console:
            errors = console.rebind(workspace).end_strays(found, signal=request.signal, grace=grace)
    _tell(request, found, errors, ended=wanted)


def _tell(request: StrayRequest, found: StraysAnswer, errors: Mapping[str, RemoteToolError], *, ended: bool) -> None:
    all_errors = {**found.errors, **errors}
    if request.json:
        print_json(strays_document(found, all_errors, ended=ended))
    elif ended:
        gone = [stray for stray in found.strays if stray.server not in errors]
        inform(f"ended {len(gone)} {_word(len(gone))}; a look at the servers finds none left")
    elif found.strays:
        inform("nothing was ended; --yes ends them")
    show_failures(all_errors)
    if all_errors:
        leave_unless_ok(
            SomeServersFailedError(all_errors, [name for name in found.places if name not in errors]).exit_code
        )
    leave_unless_ok(NOT_ENDED if found.strays and not ended else 0)


def _show(found: StraysAnswer, descriptor: int) -> None:
    if found.strays:
        print_strays(found.strays, descriptor)
    else:
        inform("no strays")


def _is_wanted(found: StraysAnswer) -> bool:
    count = len(found.strays)
    return can_ask() and confirm(f"End {count} {_word(count)}?")


def _word(count: int) -> str:
    return "process" if count == 1 else "processes"
