"""The table of a sweep, for people, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Any

from remote_tool.cli.output.json_output import errors_as_json, job_as_json
from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.jobs import readable_duration
from remote_tool.cli.tables.plain import plain_rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remote_tool.workflows.sweep.results import SweepResults, SweepRow

LONGEST_CELL, USUAL_CELL, SHORTEST_CELL = 40, 12, 6
LAST = "LAST "


def sweep_table(results: SweepResults, width: float = math.inf) -> tuple[str, int]:
    """Return the table for people, and the number of columns that were left out to fit a width."""
    rows = [_cells(results, row) for row in results.rows]
    if _width(rows) <= width:
        return plain_rows(rows), 0
    rows = [{name: value for name, value in row.items() if any(each[name] for each in rows)} for row in rows]
    rows = _narrowed(rows, width, USUAL_CELL)
    # The parameters, the state and the metric stay longest.
    metric = f"{LAST}{results.metric or 'loss'}"
    last = [name for name in rows[0] if name.startswith(LAST) and name != metric]
    left_out = 0
    for name in (*reversed(last), "DURATION", "SERVER", "JOB", metric):
        # The last value stays beside the best one, at the price of shorter cells.
        narrowed = _narrowed(rows, width, SHORTEST_CELL) if name == metric else rows
        if _width(narrowed) > width and name in rows[0]:
            rows = [{each: value for each, value in row.items() if each != name} for row in rows]
            left_out += 1
    return plain_rows(_narrowed(rows, width, SHORTEST_CELL)), left_out


def _narrowed(rows: Sequence[dict[str, str]], width: float, shortest: int) -> list[dict[str, str]]:
    """Cut the longest cells until the rows fit, but not below a number of characters."""
    longest = LONGEST_CELL
    while _width(rows) > width and longest > shortest:
        longest -= 1
        rows = [
            {name: value if name == "STATE" else _cut(value, longest) for name, value in row.items()} for row in rows
        ]
    return list(rows)


def _width(rows: Sequence[dict[str, str]]) -> int:
    return max(map(len, plain_rows(rows).splitlines()))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _cells(results: SweepResults, row: SweepRow) -> dict[str, str]:
    job, duration = row.job, row.duration
    cells = {
        "NUMBER": str(row.number),
        "STATE": row.state,
        "SERVER": "" if job is None else job.server,
        "JOB": "" if job is None else str(job.key),
        "DURATION": "" if duration is None else readable_duration(duration),
    }
    if results.metric:
        cells[f"{results.mode.upper()} {results.metric}"] = "" if row.best is None else f"{row.best:g}"
    # A command may print its own parameters, which have columns already.
    names = sorted(results.value_names, key=lambda name: name != results.metric)
    cells |= {f"{LAST}{name}": row.values.get(name, "") for name in names if name not in row.parameters}
    parameters = {_heading(name, cells): value for name, value in row.parameters.items()}
    number = cells.pop("NUMBER")
    shown = {"NUMBER": number, **parameters, **cells}
    return {one_line(name): one_line(value)[:LONGEST_CELL] for name, value in shown.items()}


def _heading(name: str, taken: dict[str, Any]) -> str:
    """Return the heading of a parameter, with its braces where another column has the name."""
    return f"{{{name}}}" if name in taken else name


def sweep_csv(results: SweepResults) -> str:
    """Return the rows as CSV; last values are in columns such as ``last loss``."""
    text = io.StringIO()
    rows = [_values(results, row) for row in results.rows]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _values(results: SweepResults, row: SweepRow) -> dict[str, object]:
    job, duration = row.job, row.duration
    rest: dict[str, object] = {
        "state": row.state,
        "exit_code": "" if job is None or job.exit_code is None else job.exit_code,
        "server": "" if job is None else job.server,
        "job": "" if job is None else job.key,
        "duration_seconds": "" if duration is None else round(duration, 3),
    }
    if results.metric:
        rest[f"{results.mode} {results.metric}"] = "" if row.best is None else row.best
    rest |= {f"last {name}": row.values.get(name, "") for name in results.value_names}
    return {"number": row.number, **{_heading(name, rest): value for name, value in row.parameters.items()}, **rest}


def sweep_document(results: SweepResults, jobs_folder: Path) -> dict[str, Any]:
    """Return the document of ``sweep-show``."""
    return {
        "sweep": {
            "launch_id": results.launch_id,
            "name": results.name,
            "command": results.command,
            "metric": results.metric or None,
            "mode": results.mode if results.metric else None,
            "combinations": [
                {
                    "number": row.number,
                    "parameters": dict(row.parameters),
                    "state": row.state,
                    "duration": row.duration,
                    "values": dict(row.values),
                    "best": row.best,
                    "job": None if row.job is None else job_as_json(row.job, jobs_folder),
                }
                for row in results.rows
            ],
        },
        "errors": errors_as_json(results.errors),
    }
