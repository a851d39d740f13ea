"""``clean``: shows what remote-tool keeps on servers and here, asks, and removes what is no longer needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import Connection, NamedJobs, Targets
from remote_tool.cli.options import AsJson, Yes
from remote_tool.cli.output.console import inform, leave_unless_ok, show_failures
from remote_tool.cli.output.json_output import errors_as_json, print_json
from remote_tool.cli.output.questions import can_ask, confirm
from remote_tool.cli.tables.jobs import print_items
from remote_tool.config.forms import read_age
from remote_tool.errors import SomeServersFailedError, UsageError
from remote_tool.readable import readable_size
from remote_tool.workflows.clean.request import CleanAnswer, CleanRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from remote_tool.workflows.clean.request import CleanItem
    from remote_tool.workspace import Workspace

NOT_REMOVED = 1
SHOWN_JOBS = 5


def clean(  # noqa: PLR0913 - one parameter per option
    *,
    jobs: NamedJobs,
    targets: Targets,
    older: Annotated[
        str | None,
        typer.Option("--older", metavar="AGE", help="Remove only what ended at least this long ago: 12h, 30d, 8w."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=0, metavar="N", help="Keep the newest N ended jobs of each server.")
    ] = None,
    artifacts: Annotated[
        bool, typer.Option("--artifacts", help="Also remove jobs with local artifacts, and these artifacts.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all files of remote-tool from the given servers.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    yes: Yes = False,
    json: AsJson = False,
    connection: Connection,
) -> None:
    """Remove ended jobs and leftovers on servers and here. Lists them and asks first; never removes your outputs."""
    request = CleanRequest(targets.servers, _read_age(older), keep, jobs.names, artifacts=artifacts, all=everything)
    if everything and not targets.servers and not targets.is_list:
        raise UsageError("--all needs the servers to clean", hint="remote-tool clean --all --server NAME")
    with connection.console("looking for leftovers") as console:
        workspace = targets.find_workspace(console)
        found = workspace.survey(request)
    if not json:
        _show(workspace, found)
    planned = found
    is_confirmed = not dry_run and _is_removable(found) and (yes or (not json and _is_confirmed(found)))
    if is_confirmed:
        with connection.console("removing") as console:
            found = console.rebind(workspace).clean(planned)
        if not json:
            _show_kept(item for item in found.items if item.why not in {each.why for each in planned.items})
            _show_kept_jobs(
                workspace, {job_id: why for job_id, why in found.kept.items() if job_id not in planned.kept}
            )
    _show_outcome(planned, found, json=json, dry_run=dry_run, is_confirmed=is_confirmed)


def _read_age(text: str | None) -> float | None:
    if text is None:
        return None
    age = read_age(text)
    if age is None:
        raise UsageError(f"--older {text!r} is not an age", hint="--older 30d; also 45m, 12h, 8w")
    return age


def _is_removable(found: CleanAnswer) -> bool:
    return found.goes > 0 or bool(found.forgotten)


def _show(workspace: Workspace, found: CleanAnswer) -> None:
    if any(item.count for item in found.items):
        print_items([item for item in found.items if item.count])
    _show_kept(found.items)
    if found.request.all and (data := workspace.config.data):
        inform(f"kept data sets: {', '.join(each.target for each in data.values())}")
    _show_kept_jobs(workspace, found.kept)
    keys = {job.id: job for job in workspace.known_jobs([*found.forgotten])}
    for job_id, why in found.forgotten.items():
        state = keys[job_id].state if job_id in keys else "unknown"
        inform(f"job {keys[job_id].key if job_id in keys else job_id} ({state}) will be forgotten here: {why}")


def _show_kept(items: Iterable[CleanItem]) -> None:
    for item in items:
        if item.why:
            inform(f"{item.server or 'here'}: kept {item.what}: {item.why}")


def _show_kept_jobs(workspace: Workspace, kept: Mapping[str, str]) -> None:
    keys = {job.id: str(job.key) for job in sorted(workspace.known_jobs([*kept]), key=lambda job: job.key)}
    in_order = [*keys, *(job_id for job_id in kept if job_id not in keys)]
    for why in dict.fromkeys(kept.values()):
        own = [keys.get(job_id, job_id) for job_id in in_order if kept[job_id] == why]
        shown = ", ".join(own[:SHOWN_JOBS])
        more = f" and {len(own) - SHOWN_JOBS} more" if len(own) > SHOWN_JOBS else ""
        inform(f"kept job{'s' * (len(own) > 1)} {shown}{more}: {why}")


def _is_confirmed(found: CleanAnswer) -> bool:
    if found.request.jobs:
        count = len(found.forgotten) + sum(map(len, found.removable.values()))
        return can_ask() and confirm("Remove this job?" if count == 1 else "Remove these jobs?")
    return can_ask() and confirm(f"Remove this ({readable_size(found.frees)})?")


def _show_outcome(planned: CleanAnswer, found: CleanAnswer, *, json: bool, dry_run: bool, is_confirmed: bool) -> None:
    removed = is_confirmed and _is_removable(found)
    if json:
        print_json(_document(found, removed=removed))
    elif removed:
        inform(f"removed ({readable_size(found.frees)})")
    elif not _is_removable(planned):
        inform("nothing to remove")
    else:
        inform("nothing was removed" + ("" if dry_run or is_confirmed else "; --yes removes it"))
    show_failures(found.errors)
    if found.errors:
        failed = SomeServersFailedError(found.errors, [name for name in found.servers if name not in found.errors])
        leave_unless_ok(failed.exit_code)
    leave_unless_ok(NOT_REMOVED if _is_removable(planned) and not removed and not dry_run else 0)


def _document(found: CleanAnswer, *, removed: bool) -> dict[str, Any]:
    items = [
        {
            "server": item.server or None,
            "what": item.what,
            "count": item.count,
            "bytes": item.bytes,
            "goes": item.goes,
            "frees": item.frees,
            "reason": item.why,
        }
        for item in found.items
    ]
    kept = [{"job": job_id, "reason": why} for job_id, why in found.kept.items()]
    forgotten = [{"job": job_id, "reason": why} for job_id, why in found.forgotten.items()]
    return {
        "items": items,
        "kept": kept,
        "forgotten": forgotten,
        "removed": removed,
        "errors": errors_as_json(found.errors),
    }
