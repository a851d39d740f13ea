"""A contest: several ways of doing the same work, in turn, again and again; medians, spread and ratios come of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks import warmth

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BY_HAND = "by hand"
OURS = "remote_tool"
LABML = "labml_remote"
PARALLEL_SSH = "parallel-ssh"


def _nothing() -> None:
    """Leave all as it is."""


@dataclass(frozen=True)
class Contender:
    """One way of doing a work.

    Attributes:
        name: Who does it; ``its memory, MB`` is what else was measured, in a unit of its own.
        run: Does it once, and returns what it cost, in the unit of the work.
        before: Makes the state from which it is done; not measured.
        after: Waits until all of it is over; not measured.
        rounds: In how many rounds it takes part; None: in all.
    """

    name: str
    run: Callable[[], float]
    before: Callable[[], object] = _nothing
    after: Callable[[], object] = _nothing
    rounds: int | None = None


@dataclass(frozen=True)
class Work:
    """What is done.

    Attributes:
        key: What the command line calls it.
        title: What the table calls it.
        contenders: Who does it.
        goal: The largest ratio, or the largest cost, that we want; a sentence says which.
        against: Whose cost is 1.0.
        unit: Of a cost.
        rounds: How often each does it.
    """

    key: str
    title: str
    contenders: tuple[Contender, ...]
    goal: str = ""
    against: str = BY_HAND
    unit: str = "s"
    rounds: int = 7


@dataclass
class Result:
    """What a work cost each contender, in the order of the rounds.

    Attributes:
        work: What was done.
        costs: By name of the contender.
        problems: Why a contender could not do it, by name.
    """

    work: Work
    costs: dict[str, list[float]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        """Return what it cost in the middle."""
        return statistics.median(self.costs[name]) if self.costs.get(name) else None

    def ratio(self, name: str) -> float | None:
        """Return the median cost as a multiple of the one that it is compared with; None in a unit of its own."""
        if ", " in name:
            return None
        own, other = self.median(name), self.median(self.work.against)
        return own / other if own is not None and other else None

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        names = [contender.name for contender in self.work.contenders]
        return {
            "work": self.work.key,
            "title": self.work.title,
            "goal": self.work.goal,
            "against": self.work.against,
            "unit": self.work.unit,
            "contenders": {
                name: {"costs": self.costs[name], "median": self.median(name), "ratio": self.ratio(name)}
                for name in names
                if self.costs.get(name)
            },
            "problems": self.problems,
        }


def hold(work: Work, *, rounds: int | None = None, told: Callable[[str], None] = print) -> Result:
    """Let every contender do it once to warm up, then in turn; each round begins with another one.

    Args:
        work: What is done.
        rounds: Instead of the work's own number.
        told: Hears what happens.
    """
    result = Result(work)
    able = [contender for contender in work.contenders if contender.rounds == 1 or _try(contender, result)]
    for number in range(rounds or work.rounds):
        for contender in _turned(able, number):
            if contender.rounds is not None and number >= contender.rounds:
                continue
            cost = _once(contender)
            result.costs.setdefault(contender.name, []).append(cost)
    for name in result.costs:
        ratio = result.ratio(name)
        shown = f"  {ratio:.2f}" if ratio is not None else ""
        what, _, unit = name.partition(", ")
        told(f"  {what:<14} {result.median(name):.3f} {unit or work.unit}{shown}")
    return result


def _turned(contenders: Sequence[Contender], by: int) -> list[Contender]:
    shift = by % len(contenders) if contenders else 0
    return [*contenders[shift:], *contenders[:shift]]


def _try(contender: Contender, result: Result) -> bool:
    """Do it once without counting; one that cannot do it is told and left out."""
    try:
        _once(contender)
    except Exception as error:
        if contender.name == OURS:
            raise
        result.problems[contender.name] = f"{type(error).__name__}: {error}"
        return False
    return True


def _once(contender: Contender) -> float:
    contender.before()
    warmth.warm()
    try:
        return contender.run()
    finally:
        contender.after()
