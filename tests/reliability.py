"""Writes which tests show each row into docs/reliability.md: ``python -m tests.reliability``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.marked import all_tests

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = Path(__file__).parents[1] / "docs" / "reliability.md"
_LINE = re.compile(r"^\| (\d+) \| (P[012]) \| (.*?) \|(.*)\|$", re.MULTILINE)
_BETWEEN = "<br>"


class Row(NamedTuple):
    """A line of the tables."""

    number: int
    priority: str


def rows_in(text: str) -> list[Row]:
    """Return the lines of the tables."""
    return [Row(int(number), priority) for number, priority, _promise, _tests in _LINE.findall(text)]


def with_tests(text: str) -> str:
    """Return the page with the tests that the markers name; a row that has lost its last one shows none."""
    tests = all_tests().values()

    def filled(match: re.Match[str]) -> str:
        number = int(match[1])
        names = [test.name for test in tests if number in test.rows]
        return f"| {match[1]} | {match[2]} | {match[3]} | {_listed(names)} |"

    return _LINE.sub(filled, text)


def _listed(names: Iterable[str]) -> str:
    return _BETWEEN.join(f"`{name.removeprefix('tests/')}`" for name in names)


if __name__ == "__main__":
    FILE.write_text(with_tests(FILE.read_text()))
