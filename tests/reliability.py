"""Writes which tests show each row into docs/reliability.md: ``python -m tests.reliability``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.marked import all_tests

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = Path(__file__).parents[1] / "docs" / "reliability.md"
ROWS = range(1, 316)
# Stands in the place of tests, with the reason.
CANNOT_APPLY = "cannot apply: "
_LINE = re.compile(r"^\| (\d+) \| (P[012]) \| (.*?) \|(.*)\|$", re.MULTILINE)
_BETWEEN = "<br>"


class Row(NamedTuple):
    """A line of the tables."""

    number: int
    priority: str
    promise: str
    shown_by: str

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that it names, as pytest names them."""
        return tuple(f"tests/{name}" for name in re.findall(r"`([^`]+)`", self.shown_by))

    @property
    def why_not(self) -> str:
        """Why it cannot apply; empty when it does."""
        return self.shown_by.removeprefix(CANNOT_APPLY) if self.shown_by.startswith(CANNOT_APPLY) else ""


def rows_in(text: str) -> list[Row]:
    """Return the lines of the tables."""
    return [
        Row(int(number), priority, promise, tests.strip()) for number, priority, promise, tests in _LINE.findall(text)
    ]


def with_tests(text: str) -> str:
    """Return the page with the tests that the markers name."""
    tests = all_tests().values()

    def filled(match: re.Match[str]) -> str:
        number = int(match[1])
        names = [test.name for test in tests if number in test.rows]
        shown_by = _listed(names) if names else match[4].strip()
        return f"| {match[1]} | {match[2]} | {match[3]} | {shown_by} |" if shown_by else match[0]

    return _LINE.sub(filled, text)


def _listed(names: Iterable[str]) -> str:
    return _BETWEEN.join(f"`{name.removeprefix('tests/')}`" for name in names)


if __name__ == "__main__":
    FILE.write_text(with_tests(FILE.read_text()))
