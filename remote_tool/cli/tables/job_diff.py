"""The differences of two jobs."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import TYPE_CHECKING

from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.jobs import readable_duration
from remote_tool.cli.tables.plain import NOTHING, plain_rows

if TYPE_CHECKING:
    from remote_tool.workflows.jobs.compare import Difference, JobDiff


def print_differences(diff: JobDiff) -> None:
    """Print a row per field; a terminal that is too narrow for them gets both values below each other."""
    titles = [f"JOB {job.key}" for job in diff.jobs]
    rows = [
        {"FIELD": one_line(each.field), **dict(zip(titles, _texts(each), strict=True))} for each in diff.differences
    ]
    text = plain_rows(rows)
    if streams.is_terminal(streams.OUT) and max(map(len, text.splitlines())) > get_terminal_size().columns:
        text = "".join(_block(row) for row in rows)
    streams.write_text(streams.OUT, text)


def _block(row: dict[str, str]) -> str:
    field, *values = row.values()
    titles = [title.removeprefix("JOB ") for title in row][1:]
    width = max(map(len, titles))
    lines = [f"  {title:{width}}  {value or NOTHING}\n" for title, value in zip(titles, values, strict=True)]
    return "".join([f"{field}\n", *lines])


def _texts(each: Difference) -> list[str]:
    return [_text(each.field, value) for value in each.values]


def _text(field: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return one_line(",".join(map(str, value)))
    return readable_duration(value) if field == "duration" and isinstance(value, int) else one_line(str(value))
