"""The values of a sweep's parameters: ``lr=0.1,0.01``, ``seed=1..5``, ``lr=log:1e-5..1e-1``."""

from __future__ import annotations

import csv
import math
import random
import re
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING

from remote_tool.errors import UsageError
from remote_tool.workflows.work.placeholders import WORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# Of one sweep: each becomes a job, whose record is read by every list of jobs.
MOST_COMBINATIONS = 10_000
# A choice may have few values: another draw is tried this many times before the search for more ends.
MOST_TRIES = 1000
LONGEST_NAME = 60
SEEDS = 2**32
# The placeholder for the number of a combination.
NUMBER = "number"
KINDS = "log:1e-5..1e-1, uniform:0..0.5, int:16..512 or choice:adam,sgd"

_FLOAT = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_INTEGERS = re.compile(r"([-+]?\d{1,18})\.\.([-+]?\d{1,18})(?:\.\.(\d{1,18}))?")
_NUMBERS = re.compile(rf"({_FLOAT})\.\.({_FLOAT})")


@dataclass(frozen=True)
class Random:
    """Combinations to draw.

    Attributes:
        count: Their number; 0: none.
        parameters: How each parameter is drawn, such as ``log:1e-5..1e-1``.
        seed: Decides what is drawn; None: chance.
    """

    count: int = 0
    parameters: Mapping[str, str] | None = None
    seed: int | None = None

    @property
    def is_given(self) -> bool:
        """Return whether there is something to draw."""
        return bool(self.count or self.parameters)

    def seeded(self, seed: int | None = None) -> Random:
        """Return the same with a seed: its own, else this one, else a new one."""
        given = seed if self.seed is None else self.seed
        return replace(self, seed=random.randrange(SEEDS) if given is None else given)  # noqa: S311 - not a secret


@dataclass(frozen=True)
class SweepSpec:
    """A command and its parameters: every listed combination with every drawn one and with every one of the grid.

    Attributes:
        command: With placeholders; empty: not given.
        grid: The values of each parameter, as a sequence, or as a text such as ``0.1,0.01`` or ``1..5``.
        random: Combinations to draw.
        combinations: Combinations that are listed one by one.
    """

    command: str = ""
    grid: Mapping[str, Sequence[object] | str] = field(default_factory=dict)
    random: Random = field(default_factory=Random)
    combinations: Sequence[Mapping[str, object]] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether no parameter is given."""
        return not (self.grid or self.random.is_given or self.combinations)

    def made(self) -> tuple[dict[str, str], ...]:
        """Return the combinations, the last parameter of the grid varying fastest.

        Raises:
            UsageError: There are none or too many, or a parameter is invalid.
        """
        grid = {name: _values_of(name, values) for name, values in self.grid.items()}
        listed = [{name: _text_of(name, value) for name, value in each.items()} for each in self.combinations]
        return combine(grid, self.random, listed)


def _values_of(name: str, values: Sequence[object] | str) -> tuple[str, ...]:
    check_name("--grid", name)
    if isinstance(values, str):
        return parse_values("--grid", name, values)
    if len(values) > MOST_COMBINATIONS:
        raise _too_many(len(values))
    return check_values("--grid", name, [_text_of(name, value) for value in values])


def _text_of(name: str, value: object) -> str:
    check_name("combinations", name)
    if isinstance(value, bool | int | float | str):
        return str(value)
    raise UsageError(f"A value of the parameter {name} must be text or a number, found a {type(value).__name__}")


def parse_assignment(option: str, text: str) -> tuple[str, str]:
    """Split ``lr=0.1,0.01`` into a name and the rest.

    Raises:
        UsageError: It has no name, or nothing after it.
    """
    name, equals, rest = text.partition("=")
    if not equals or not rest:
        raise UsageError(f"{option} must be NAME=VALUES, found {text!r:.100}", hint=f"{option} lr=0.1,0.01")
    check_name(option, name)
    return name, rest


def check_name(option: str, name: object) -> None:
    """Refuse the name of a parameter that no placeholder can have.

    Raises:
        UsageError: It is not such a name.
    """
    if not isinstance(name, str) or not WORD.fullmatch(name) or len(name) > LONGEST_NAME:
        raise UsageError(
            f"{option}: {name!r:.100} cannot name a parameter",
            hint=f"a letter or _, then letters, digits, . _ -; at most {LONGEST_NAME}",
        )
    if name == NUMBER:
        raise UsageError(f"{option}: {{{NUMBER}}} is the number of the combination; choose another name")


def parse_values(option: str, name: str, text: str) -> tuple[str, ...]:
    """Read ``0.1,0.01`` or ``1..5``; quotes as in CSV keep a comma: ``"a,b",c``.

    Raises:
        UsageError: A value is empty or given twice, or there are too many.
    """
    try:
        (words,) = csv.reader([text], strict=True, skipinitialspace=True)
    except (csv.Error, ValueError) as error:
        raise UsageError(f"{option} {name}={text!r:.100} cannot be read: {error}") from None
    values: list[str] = []
    for word in words:
        found = _range_of(option, name, word)
        if len(values) + len(found) > MOST_COMBINATIONS:
            raise _too_many(len(values) + len(found))
        values += map(str, found)
    return check_values(option, name, values)


def check_values(option: str, name: str, values: Sequence[str]) -> tuple[str, ...]:
    """Refuse values that are empty, given twice, or not text.

    Raises:
        UsageError: One is.
    """
    if not values or not all(values):
        raise UsageError(f"{option} {name} has an empty value", hint=f"{option} {name}=0.1,0.01")
    seen: set[str] = set()
    for value in values:
        if "\0" in value:
            raise UsageError(f"{option} {name}: a value cannot hold a NUL")
        if value in seen:
            raise UsageError(f"{option} {name} has the value {value!r:.60} twice")
        seen.add(value)
    return tuple(values)


def combine(
    grid: Mapping[str, Sequence[str]], drawn: Random, listed: Sequence[Mapping[str, str]]
) -> tuple[dict[str, str], ...]:
    """Return every combination.

    Raises:
        UsageError: There are none or too many, or a parameter is given twice.
    """
    axes: list[Sequence[Mapping[str, str]]] = [
        *([check_listed(listed)] if listed else []),
        *([draw(drawn)] if drawn.is_given else []),
        *([{name: value} for value in values] for name, values in grid.items()),
    ]
    if not axes:
        raise UsageError("No parameters to sweep over", hint="--grid lr=0.1,0.01, or --random 20 lr=log:1e-5..1e-1")
    names = [name for axis in axes for name in axis[0]]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"The parameter {twice[0]} is given twice")
    total = math.prod(map(len, axes))
    if total > MOST_COMBINATIONS:
        raise _too_many(total)
    return tuple({name: value for part in parts for name, value in part.items()} for parts in product(*axes))


def draw(settings: Random) -> list[dict[str, str]]:
    """Draw different combinations; the same seed and parameters draw the same ones, also as the first of more.

    Raises:
        UsageError: How to draw one is invalid, or there are not so many different ones.
    """
    if settings.count < 1 or not settings.parameters:
        raise UsageError("--random needs a number of combinations and parameters", hint="--random 20 lr=log:1e-5..1e-1")
    if settings.count > MOST_COMBINATIONS:
        raise _too_many(settings.count)
    sources = {
        name: (drawer(name, text), random.Random(f"{settings.seed} {name}"))  # noqa: S311 - not a secret
        for name, text in settings.parameters.items()
    }
    found: dict[tuple[str, ...], None] = {}
    tries = 0
    while len(found) < settings.count:
        values = tuple(make(chance.random()) for make, chance in sources.values())
        tries = tries + 1 if values in found else 0
        if tries > MOST_TRIES:
            raise UsageError(f"--random {settings.count}: only {len(found)} different combinations were found")
        found[values] = None
    return [dict(zip(sources, values, strict=True)) for values in found]


def check_listed(listed: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    """Refuse listed combinations that have different parameters, or are the same.

    Raises:
        UsageError: Two are.
    """
    names = set(listed[0])
    seen: set[tuple[tuple[str, str], ...]] = set()
    for number, each in enumerate(listed, 1):
        if odd := sorted(names ^ set(each)):
            raise UsageError(f"combinations: number {number} and the first differ in the parameter {odd[0]}")
        identity = identity_of(each)
        if identity in seen:
            raise UsageError(f"combinations: number {number} is given twice")
        seen.add(identity)
    return listed


def identity_of(combination: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the names and values in a fixed order, so that they can be compared."""
    return tuple(sorted(combination.items()))


def _range_of(option: str, name: str, word: str) -> Sequence[str] | range:
    match = _INTEGERS.fullmatch(word)
    if match is None:
        if _NUMBERS.fullmatch(word):
            raise UsageError(
                f"{option} {name}={word}: a range has whole numbers, such as 1..5 or 0..100..10",
                hint="list other values: 0.1,0.2,0.5",
            )
        return [word]
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if last < first or not step:
        raise UsageError(f"{option} {name}={word} has no values; write the smaller number first")
    return range(first, last + 1, step)


def drawer(name: str, text: str) -> Callable[[float], str]:
    """Return the function from a number below 1 to a value, for a text such as ``log:1e-5..1e-1``.

    Raises:
        UsageError: It is not such a text.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind == "choice":
        values = parse_values("--random", name, rest)
        return lambda chance: values[int(chance * len(values))]
    match = _NUMBERS.fullmatch(rest)
    if not colon or kind not in {"log", "uniform", "int"} or match is None:
        raise UsageError(f"--random: {name}={text!r:.100} is not a way to draw values", hint=KINDS)
    low, high = float(match[1]), float(match[2])
    if not low < high or math.isinf(high - low) or (kind == "log" and low <= 0):
        least = "from a number above 0 to a larger one" if kind == "log" else "from a number to a larger one"
        raise UsageError(f"--random: {name}={text} must go {least}")
    if kind == "int":
        return _integers(name, text, rest)
    if kind == "log":
        return lambda chance: _rounded(low * (high / low) ** chance, low, high)
    return lambda chance: _rounded(low + (high - low) * chance, low, high)


def _rounded(value: float, low: float, high: float) -> str:
    """Return six digits, unless these are outside the range."""
    text = f"{value:.6g}"
    return text if low <= float(text) <= high else repr(min(max(value, low), high))


def _integers(name: str, text: str, rest: str) -> Callable[[float], str]:
    match = _INTEGERS.fullmatch(rest)
    if match is None or match[3]:
        raise UsageError(f"--random: {name}={text} must go from a whole number to a larger one")
    first, last = int(match[1]), int(match[2])
    return lambda chance: str(first + int(chance * (last - first + 1)))


def _too_many(count: int) -> UsageError:
    return UsageError(
        f"A sweep has at most {MOST_COMBINATIONS:,} combinations, found {count:,}", hint="Fewer values, or --random 100"
    )


def assignments(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Read several ``NAME=VALUES``.

    Raises:
        UsageError: One is invalid, or a name is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, rest = parse_assignment(option, text)
        if name in found:
            raise UsageError(f"The parameter {name} is given twice")
        found[name] = rest
    return found
