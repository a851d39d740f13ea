"""The command clean: list the files of remote-tool on servers and here, ask, and remove the superfluous ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import ConnectionFlags, NamedJobs, Targets
from remote_tool.cli.options import AsJson, Yes
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, leave_unless_ok, show_failures
from remote_tool.cli.output.json_output import errors_as_json, print_json
from remote_tool.cli.output.questions import can_ask, confirm
from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.plain import plain_rows
from remote_tool.config.forms import read_age
from remote_tool.config.servers import HERE
from remote_tool.errors import SomeServersFailedError, UsageError
from remote_tool.readable import readable_size
from remote_tool.workflows.clean.request import CleanAnswer, CleanRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    connection: ConnectionFlags,
) -> None:
    """Remove ended jobs and leftovers on servers and here. Lists them and asks first; never removes your outputs."""
    request = CleanRequest(targets.servers, _read_age(older), keep, jobs.names, artifacts=artifacts, all=everything)
    if everything and not targets.servers and not targets.is_list:
        raise UsageError(
            "--all removes all that a server has, so name it", hint="remote-tool clean --all --server NAME"
        )
    with connection.console("looking for leftovers") as console:
        workspace = targets.find_workspace(console)
        found = workspace.survey(request)
    if not json:
        _show(workspace, found)
    is_confirmed = not dry_run and _is_removable(found) and (yes or (not json and _is_confirmed(found)))
    cleaned = found
    if is_confirmed:
        with connection.console("removing") as console:
            cleaned = console.rebind(workspace).clean(found)
        if not json:
            known = {each.why for each in found.items}
            _show_kept((item for item in cleaned.items if item.why not in known), _ours(workspace))
            _show_kept_jobs(
                workspace, {job_id: why for job_id, why in cleaned.kept.items() if job_id not in found.kept}
            )
    _show_outcome(found, cleaned, json=json, dry_run=dry_run, is_confirmed=is_confirmed)


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
        print_items([item for item in found.items if item.count], _ours(workspace))
    _show_kept(found.items, _ours(workspace))
    if found.request.all and (data := workspace.config.data):
        inform(f"kept data sets: {', '.join(each.target for each in data.values())}")
    _show_kept_jobs(workspace, found.kept)
    jobs = {job.id: job for job in workspace.known_jobs([*found.forgotten])}
    for job_id, why in found.forgotten.items():
        state = jobs[job_id].state if job_id in jobs else "unknown"
        inform(f"job {jobs[job_id].key if job_id in jobs else job_id} ({state}) will be forgotten here: {why}")


def _ours(workspace: Workspace) -> str:
    """Return what the project's files on this machine are called, which may be a server of that name as well."""
    return ".remote" if HERE in workspace.config.servers else HERE


def print_items(items: Sequence[CleanItem], ours: str) -> None:
    """Print a row for each kind of file, with the number and size of those to remove and to keep."""
    streams.write_text(streams.OUT, plain_rows([_row(item, ours) for item in items]))


def _row(item: CleanItem, ours: str) -> dict[str, str]:
    return {
        "WHERE": one_line(item.server) or ours,
        "WHAT": one_line(item.what),
        "REMOVE": _number_and_size(item.goes, item.frees),
        "KEEP": _number_and_size(item.count - item.goes, item.bytes - item.frees),
    }


def _number_and_size(number: int, size: int) -> str:
    return f"{number} ({readable_size(max(0, size))})" if number > 0 else ""


def _show_kept(items: Iterable[CleanItem], ours: str) -> None:
    for item in items:
        if item.why:
            inform(f"{item.server or ours}: kept {item.what}: {item.why}")


def _show_kept_jobs(workspace: Workspace, kept: Mapping[str, str]) -> None:
    keys = {job.id: str(job.key) for job in sorted(workspace.known_jobs([*kept]), key=lambda job: job.key)}
    in_order = [*keys, *(job_id for job_id in kept if job_id not in keys)]
    for why in dict.fromkeys(kept.values()):
        names = [keys.get(job_id, job_id) for job_id in in_order if kept[job_id] == why]
        shown = ", ".join(names[:SHOWN_JOBS])
        more = f" and {len(names) - SHOWN_JOBS} more" if len(names) > SHOWN_JOBS else ""
        inform(f"kept job{'s' * (len(names) > 1)} {shown}{more}: {why}")


def _is_confirmed(found: CleanAnswer) -> bool:
    if found.request.jobs:
        count = len(found.forgotten) + sum(map(len, found.removable.values()))
        return can_ask() and confirm("Remove this job?" if count == 1 else "Remove these jobs?")
    return can_ask() and confirm(f"Remove this ({readable_size(found.frees)})?")


def _show_outcome(found: CleanAnswer, cleaned: CleanAnswer, *, json: bool, dry_run: bool, is_confirmed: bool) -> None:
    removed = is_confirmed and _is_removable(cleaned)
    if json:
        print_json(_document(cleaned, removed=removed))
    elif removed:
        inform(f"removed ({readable_size(cleaned.frees)})")
    elif not _is_removable(found):
        inform("nothing to remove")
    else:
        inform("nothing was removed" + ("" if dry_run or is_confirmed else "; --yes removes it"))
    show_failures(cleaned.errors)
    if cleaned.errors:
        failed = SomeServersFailedError(
            cleaned.errors, [name for name in cleaned.servers if name not in cleaned.errors]
        )
        leave_unless_ok(failed.exit_code)
    leave_unless_ok(NOT_REMOVED if _is_removable(found) and not removed and not dry_run else 0)


def _document(cleaned: CleanAnswer, *, removed: bool) -> dict[str, Any]:
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
        for item in cleaned.items
    ]
    kept = [{"job": job_id, "reason": why} for job_id, why in cleaned.kept.items()]
    forgotten = [{"job": job_id, "reason": why} for job_id, why in cleaned.forgotten.items()]
    return {
        "items": items,
        "kept": kept,
        "forgotten": forgotten,
        "removed": removed,
        "errors": errors_as_json(cleaned.errors),
    }
