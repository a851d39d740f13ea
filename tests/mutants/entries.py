"""The mutants of this folder, as they stand in its files."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]


@dataclass(frozen=True)
class Mutant:
    """A change that takes an answer out of the code, and the tests that have to notice.

    Attributes:
        row: Of docs/reliability.md; None where the answer is to none of its faults.
    """

    row: int | None
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    listed_in: str
    number: int

    @property
    def name(self) -> str:
        """Such as ``supervision.3, row 12``: the third of supervision.toml."""
        return f"{self.listed_in}.{self.number}" + ("" if self.row is None else f", row {self.row}")

    @property
    def functions(self) -> tuple[str, ...]:
        """The tests without what chooses one of their parameters."""
        return tuple(test.partition("[")[0] for test in self.tests)

    def apply_to(self, text: str) -> str:
        """Return the text without the answer."""
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: 'old' is {text.count(self.old)} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def all_mutants() -> list[Mutant]:
    """Return those of every file."""
    return [mutant for path in sorted(FOLDER.glob("*.toml")) for mutant in _read(path)]


def _read(path: Path) -> list[Mutant]:
    entries = tomllib.loads(path.read_text()).get("mutant", [])
    return [
        Mutant(
            row=entry.get("row"),
            file=entry["file"],
            old=entry["old"],
            new=entry["new"],
            tests=tuple(entry["tests"]),
            listed_in=path.stem,
            number=number,
        )
        for number, entry in enumerate(entries, start=1)
    ]
