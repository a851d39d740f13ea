"""The differences of two jobs."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import TYPE_CHECKING

from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import escape_controls, one_line
from remote_tool.cli.tables.jobs import readable_duration
from remote_tool.cli.tables.plain import NOTHING, plain_rows

if TYPE_CHECKING:
    from remote_tool.workflows.jobs.compare import FieldDifference, JobDiff

MOST_LINES = 500


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


def _texts(each: FieldDifference) -> list[str]:
    return [_text(each.field, value) for value in each.values]


def _text(field: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return one_line(",".join(map(str, value)))
    return readable_duration(value) if field == "duration" and isinstance(value, int) else one_line(str(value))
