"""Runs one case for each fault, several at a time, and counts those that went wrong."""

from __future__ import annotations

import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from tests.figures import record_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .injection import Fault

# Most of a case is waiting for processes.
AT_ONCE = 4
_ENOUGH = 4

Case = TypeVar("Case")


def sweep(name: str, faults: Sequence[Fault], run: Callable[[Fault], bool]) -> None:
    """Run each fault; ``run`` tells whether it came, and raises when something is wrong after it."""

    def came(fault: Fault) -> None:
        assert run(fault), "it never came"

    assert faults
    wrong = run_all(faults, came)
    record_figure(f"sweep of {name}: cases", len(faults))
    record_figure(f"sweep of {name}: failures", len(wrong))
    assert not wrong, f"{len(wrong)} of {len(faults)} cases\n" + "\n".join(wrong)


def run_all(cases: Sequence[Case], run: Callable[[Case], object]) -> list[str]:
    """Run all cases, several at a time; returns what went wrong. After a few failures the rest is left out."""
    wrong: list[str] = []

    def attempt(case: Case) -> None:
        if len(wrong) < _ENOUGH:
            try:
                run(case)
            except Exception:  # noqa: BLE001 - what went wrong is told with the case that it went wrong in
                wrong.append(f"{case}: {traceback.format_exc()}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(attempt, cases))
    return wrong
