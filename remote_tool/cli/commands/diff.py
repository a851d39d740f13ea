"""The command job-diff."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.following import show_problems
from remote_tool.cli.groups import ConnectionFlags
from remote_tool.cli.options import AsJson, complete
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, leave_unless_ok
from remote_tool.cli.output.json_output import jobs_document, print_json
from remote_tool.cli.output.sanitize import escape_controls, one_line
from remote_tool.cli.tables.jobs import readable_duration
from remote_tool.cli.tables.plain import NOTHING, plain_rows

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.workflows.jobs.compare import FieldDifference, JobDiff

MOST_LINES = 500
JobKey = Annotated[str, typer.Argument(metavar="KEY", help="Job by key or id.", autocompletion=complete("job"))]


def job_diff(key: JobKey, other: JobKey, *, json: AsJson = False, connection: ConnectionFlags) -> None:
    """Compare two jobs: how they were started, how they ended, and the last values in their output."""
    with connection.console("asking servers") as console:
        workspace = console.find_workspace()
        answer = workspace.diff(key, other, check=False)
    if json:
        print_json(_document(answer, workspace.config.local.jobs))
    else:
        print_differences(answer)
        if not answer.differences and not answer.code.text:
            inform("no differences")
        for note in answer.code.notes if answer.code.source or _may_differ(answer) else ():
            inform(f"code: {note}")
    show_problems(answer)
    leave_unless_ok(answer.exit_code)


def _document(diff: JobDiff, jobs_folder: Path) -> dict[str, Any]:
    differences = [{"field": each.field, "values": list(each.values)} for each in diff.differences]
    document = jobs_document(diff.jobs, diff.errors, jobs_folder)
    code = {"source": diff.code.source, "diff": diff.code.text, "notes": list(diff.code.notes)}
    return {"jobs": document["jobs"], "differences": differences, "code": code, "errors": document["errors"]}


def _may_differ(diff: JobDiff) -> bool:
    """Return whether the records of two jobs show that their code may differ."""
    one, other = diff.jobs
    return (one.copy, one.git_commit) != (other.copy, other.git_commit) or bool(one.git_dirty or other.git_dirty)


def print_differences(diff: JobDiff) -> None:
    """Print a row per field, and below them the code; a narrow terminal gets both values below each other."""
    # The code itself says more than the names of its copies.
    differences = [each for each in diff.differences if each.field != "copy" or not diff.code.source]
    titles = [f"JOB {job.key}" for job in diff.jobs]
    rows = [{"FIELD": one_line(each.field), **dict(zip(titles, _texts(each), strict=True))} for each in differences]
    text = plain_rows(rows) if rows else ""
    if rows and streams.is_terminal(streams.OUT) and max(map(len, text.splitlines())) > get_terminal_size().columns:
        text = "".join(_block(row) for row in rows)
    code = escape_controls(diff.code.text).removesuffix("\n").split("\n") if diff.code.text else []
    if len(code) > MOST_LINES:
        code[MOST_LINES:] = [f"and {len(code) - MOST_LINES} more lines; --json has all"]
    streams.write_text(streams.OUT, text + "".join(f"{line}\n" for line in ([""] * bool(text and code)) + code))


def _block(row: dict[str, str]) -> str:
    field, *values = row.values()
    titles = [title.removeprefix("JOB ") for title in row][1:]
    width = max(map(len, titles))
    lines = [f"  {title:{width}}  {value or NOTHING}\n" for title, value in zip(titles, values, strict=True)]
    return "".join([f"{field}\n", *lines])


def _texts(difference: FieldDifference) -> list[str]:
    return [_text(difference.field, value) for value in difference.values]


def _text(field: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return one_line(",".join(map(str, value)))
    return readable_duration(value) if field == "duration" and isinstance(value, int) else one_line(str(value))
