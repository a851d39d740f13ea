"""What tests/mutants says is possible: each change can be made, and the tests that it names are for its row."""

from __future__ import annotations

import pytest

from tests.marked import all_tests
from tests.mutants.entries import REPOSITORY, Mutant, all_mutants
from tests.mutants.try_mutants import meaning_of
from tests.reliability import FILE, rows_in

TESTS = all_tests()


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_made_and_names_tests_of_its_row(mutant: Mutant) -> None:
    mutant.apply_to((REPOSITORY / mutant.file).read_text())
    assert mutant.functions
    for function in mutant.functions:
        assert function in TESTS, f"there is no {function}"
        marked = TESTS[function].rows
        assert mutant.row is None or mutant.row in marked, f"{function} is not marked with row {mutant.row}"


def test_every_row_of_the_first_priority_has_a_mutant() -> None:
    rows = {row.number for row in rows_in(FILE.read_text()) if row.priority == "P0"}
    assert rows - {mutant.row for mutant in all_mutants()} == set()


@pytest.mark.parametrize(
    ("status", "output", "meaning"),
    [
        (0, ".\n1 passed in 0.1s\n", "green"),
        (0, "s.\n1 passed, 1 skipped in 0.1s\n", "green"),
        (0, "s\n1 skipped in 0.1s\n", "skipped"),
        (1, "F\n1 failed in 0.1s\n", "red"),
        (2, "ImportError\n1 error in 0.1s\n", "broken"),
        (4, "ERROR: not found\n", "broken"),
        (5, "1 deselected in 0.1s\n", "broken"),
    ],
)
def test_only_a_test_that_fails_is_red(status: int, output: str, meaning: str) -> None:
    assert meaning_of(status, output) == meaning
