"""Figures that tests measure, shown together at the end of the run: counts, bounds, the longest waits."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_FILE = "TESTS_FIGURES_FILE"
_MOST_SHOWN = 8
_CASE = "a case that held"


def record_figure(name: str, value: object) -> None:
    """Note a figure for the table at the end; one name may come many times, from any process of the run."""
    _append(name, value)


def record_case(name: str) -> None:
    """Note one case of a sweep that held; the table says how many did."""
    _append(name, _CASE)


def _append(name: str, value: object) -> None:
    file = os.environ.get(_FILE)
    if file is None:
        return
    line = json.dumps([name, value], default=str).encode() + b"\n"
    # One write to a file opened for appending is whole, also with other workers at it.
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def open_figures(config: pytest.Config) -> None:
    """Make the file that all workers of this run append to."""
    if not hasattr(config, "workerinput"):
        descriptor, os.environ[_FILE] = tempfile.mkstemp(prefix="figures-", suffix=".jsonl")
        os.close(descriptor)


def close_figures(config: pytest.Config) -> None:
    """Remove the file."""
    if not hasattr(config, "workerinput"):
        Path(os.environ.pop(_FILE)).unlink(missing_ok=True)


def show_figures(reporter: pytest.TerminalReporter) -> None:
    """Print every figure; where one has many values, how many and between what they lie."""
    found: dict[str, list[object]] = {}
    for line in Path(os.environ[_FILE]).read_text().splitlines():
        name, value = json.loads(line)
        found.setdefault(name, []).append(value)
    if not found:
        return
    reporter.section("figures")
    width = max(map(len, found))
    for name, values in sorted(found.items()):
        reporter.line(f"{name:<{width}}  {_summary(values)}")


def _summary(values: list[object]) -> str:
    if all(value == _CASE for value in values):
        return f"{len(values)} cases held"
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(values) <= _MOST_SHOWN or len(numbers) < len(values):
        return ", ".join(_text(value) for value in values)
    ordered = sorted(numbers)
    middle = ordered[len(ordered) // 2]
    return f"{len(values)} values, {_text(ordered[0])} .. {_text(ordered[-1])}, half below {_text(middle)}"


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
