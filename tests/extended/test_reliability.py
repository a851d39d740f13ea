"""docs/reliability.md names for every row the tests that show it."""

from __future__ import annotations

import pytest

from tests.marked import all_tests
from tests.reliability import FILE, ROWS, Row, rows_in, with_tests

LINES = rows_in(FILE.read_text())


def test_every_row_stands_there_once_and_in_order() -> None:
    assert [row.number for row in LINES] == list(ROWS)


@pytest.mark.parametrize("row", LINES, ids=lambda row: str(row.number))
def test_what_a_row_names_exists_and_is_marked_with_it(row: Row) -> None:
    tests = all_tests()
    for name in row.tests:
        assert name in tests, f"there is no {name}; python -m tests.reliability"
        assert row.number in tests[name].rows, (
            f"{name} is not marked with row {row.number}; python -m tests.reliability"
        )


@pytest.mark.parametrize("row", LINES, ids=lambda row: str(row.number))
def test_every_row_has_tests_or_the_reason_why_it_cannot_apply(row: Row) -> None:
    assert row.tests or row.why_not


def test_the_page_is_written_from_the_markers() -> None:
    assert FILE.read_text() == with_tests(FILE.read_text()), "make reference"


def test_no_test_is_marked_with_a_row_that_does_not_exist() -> None:
    wrong = {test.name: test.rows for test in all_tests().values() if not test.rows <= set(ROWS)}
    assert wrong == {}


def test_the_last_column_is_what_the_markers_say() -> None:
    page = "| 22 | P0 | It is so. | `gone.py::test_gone` |\n| 999 | P1 | No. | cannot apply: no such thing |\n"
    filled, unchanged = with_tests(page).splitlines()
    assert "`unit/protocol/test_job_folder.py::test_the_first_final_record_stays`" in filled
    assert "gone" not in filled
    assert unchanged == page.splitlines()[1]
    assert rows_in(page)[1].why_not == "no such thing"
