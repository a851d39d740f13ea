"""A contest: several ways of doing the same work, in turn, again and again; medians, spread and ratios come of it."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks import warmth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BY_HAND = "by hand"
OURS = "remote_tool"
LABML = "labml_remote"
PARALLEL_SSH = "parallel-ssh"
MEMORY = "its memory, MB"
# A work that takes long is measured less often, but never less than this.
LEAST_ROUNDS = 3
PATIENCE = 15.0


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
        rounds: In how many rounds it takes part; None: in all. One that takes part in one does not warm up.
    """

    name: str
    run: Callable[[], float]
    before: Callable[[], object] = _nothing
    after: Callable[[], object] = _nothing
    rounds: int | None = None


@dataclass(frozen=True)
class Goal:
    """What something may cost at most.

    Attributes:
        limit: A multiple of another's cost, or a cost.
        unit: Of the cost; empty: it is a multiple.
        of: Whose cost.
        against: Whose cost is 1.0; None: that of the work's own rival.
        why: The reason, found by profiling, where it is missed.
    """

    limit: float
    unit: str = ""
    of: str = OURS
    against: str | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """What the table says of it."""
        what = "" if self.of == OURS else f"{self.of.partition(', ')[0]} "
        bound = f"{self.limit:g} {self.unit}" if self.unit else f"{self.limit:.2f}"
        return f"{what}≤ {bound}" + (f" of {self.against}" if self.against else "")

    def judge(self, value: float | None) -> dict[str, Any]:
        """Say whether a cost or a multiple meets it; None when it was not measured."""
        # As the page shows it.
        met = None if value is None else round(value, 2) <= self.limit
        return {"goal": self.text, "value": value, "met": met, "why": self.why if met is False else ""}


@dataclass(frozen=True)
class Work:
    """What is done.

    Attributes:
        key: What the command line calls it.
        title: What the table calls it.
        contenders: Who does it.
        goals: What it may cost at most.
        against: Whose cost is 1.0.
        unit: Of a cost.
        rounds: How often each does it, where that takes no longer than our patience.
        warms_up: Whether each does it once before, which does not count.
    """

    key: str
    title: str
    contenders: tuple[Contender, ...]
    goals: tuple[Goal, ...] = ()
    against: str = BY_HAND
    unit: str = "s"
    rounds: int = 7
    warms_up: bool = True


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
        return None if ", " in name else self._multiple(name, self.work.against)

    def _multiple(self, name: str, of: str) -> float | None:
        own, other = self.median(name), self.median(of)
        return own / other if own is not None and other else None

    def judged(self) -> list[dict[str, Any]]:
        """Return each goal of the work, what was measured, and whether that meets it."""
        return [goal.judge(self._value(goal)) for goal in self.work.goals]

    def _value(self, goal: Goal) -> float | None:
        if goal.unit:
            return self.median(goal.of)
        return self._multiple(goal.of, goal.against or self.work.against)

    def lines(self) -> Iterator[str]:
        """Return what is shown of each contender."""
        for name in self.costs:
            ratio = self.ratio(name)
            what, _, unit = name.partition(", ")
            shown = f"  {ratio:.2f}" if ratio is not None else ""
            yield f"  {what:<14} {self.median(name):.3f} {unit or self.work.unit}{shown}"
        for name, problem in self.problems.items():
            yield f"  {name:<14} left out: {problem}"

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        names = [contender.name for contender in self.work.contenders]
        return {
            "work": self.work.key,
            "title": self.work.title,
            "goals": self.judged(),
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
        rounds: Instead of the work's own number, however long that takes.
        told: Hears what happens.
    """
    result = Result(work)
    for contender in work.contenders:
        if work.warms_up and contender.rounds != 1:
            _try(contender, result)
    begin = time.monotonic()
    for number in range(rounds or work.rounds):
        if rounds is None and number >= LEAST_ROUNDS and time.monotonic() - begin > PATIENCE:
            break
        _play(result, number)
    for line in result.lines():
        told(line)
    return result


def _play(result: Result, number: int) -> None:
    for contender in _turned(result.work.contenders, number):
        if contender.rounds is None or number < contender.rounds:
            cost = _try(contender, result)
            if cost is not None:
                result.costs.setdefault(contender.name, []).append(cost)


def _turned(contenders: Sequence[Contender], by: int) -> list[Contender]:
    shift = by % len(contenders)
    return [*contenders[shift:], *contenders[:shift]]


def _try(contender: Contender, result: Result) -> float | None:
    """Return what it costs; one that cannot do it is told and left out from then on, but we may not fail."""
    if contender.name in result.problems:
        return None
    try:
        contender.before()
        warmth.warm()
        try:
            return contender.run()
        finally:
            contender.after()
    except Exception as error:
        if contender.name == OURS:
            raise
        result.problems[contender.name] = f"{type(error).__name__}: {error}"
        return None
