"""Read the file of a sweep: its command, and the values of its parameters."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from remote_tool.config.document import LARGEST_FILE, ConfigNode, Problems, read_document
from remote_tool.config.forms import Validator
from remote_tool.errors import ConfigError, UsageError
from remote_tool.readable import readable_size
from remote_tool.workflows.sweep.values import (
    Random,
    SweepSpec,
    check_listed,
    check_name,
    check_values,
    drawer,
    parse_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS = ("cmd", "grid", "random", "combinations")
OF_RANDOM = ("count", "seed", "parameters")
EXAMPLE = "grid: {lr: [0.1, 0.01], seed: 1..5}"
_TEXT = Validator("text", lambda text: "\0" not in text)
_VALUE = Validator("a value", lambda text: "\0" not in text)
_COUNT = Validator("a whole number from 1", lambda text: text.isascii() and text.isdigit() and 0 < int(text) < 10**9)
_SEED = Validator("a whole number", lambda text: text.isascii() and text.isdigit() and int(text) < 2**63)


def load_sweep_file(file: Path) -> SweepSpec:
    """Read a file.

    Raises:
        ConfigError: It cannot be read or is invalid; every problem is listed with its line.
    """
    try:
        with file.open("rb") as stream:
            text = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint=f"ls -l {file}") from error
    problems = Problems(str(file))
    if len(text) > LARGEST_FILE:
        problems.add(f"larger than {readable_size(LARGEST_FILE)}")
    top = None if problems else read_document(text, problems)
    found = SweepSpec() if top is None else _read(top)
    if problems:
        raise ConfigError(problems.sentences())
    return found


def _read(top: ConfigNode) -> SweepSpec:
    values = top.entries(KEYS)
    return SweepSpec(
        values["cmd"].text(_TEXT) or "" if "cmd" in values else "",
        _read_grid(values["grid"]) if "grid" in values else {},
        _read_random(values["random"]) if "random" in values else Random(),
        _read_combinations(values["combinations"]) if "combinations" in values else (),
    )


def _read_grid(place: ConfigNode) -> dict[str, tuple[str, ...]]:
    grid = {}
    for name, found in place.pairs():
        with _problem_of(found):
            check_name("grid", name)
            grid[name] = _read_values(found, name)
    return grid


def _read_values(place: ConfigNode, name: str) -> tuple[str, ...]:
    """Read a list of values, or a text such as ``1..5``; empty after a problem."""
    if not place.is_list:
        text = place.text(_VALUE)
        return () if text is None else parse_values("grid", name, text)
    values = [each.text(_VALUE) for each in place.items("a list of values")]
    known = [value for value in values if value is not None]
    return () if not known or len(known) < len(values) else check_values("grid", name, known)


def _read_random(place: ConfigNode) -> Random:
    values = place.entries(OF_RANDOM)
    if missing := [key for key in ("count", "parameters") if key not in values]:
        if place.is_mapping:
            place.refuse(f"{missing[0]} is required, such as {{count: 20, parameters: {{lr: log:1e-5..1e-1}}}}")
        return Random()
    count = values["count"].text(_COUNT)
    seed = values["seed"].text(_SEED) if "seed" in values else None
    parameters = {}
    for name, found in values["parameters"].pairs():
        text = found.text(_VALUE)
        with _problem_of(found):
            check_name("random", name)
            if text is not None:
                drawer(name, text)
                parameters[name] = text
    return Random(int(count or 0), parameters, None if seed is None else int(seed))


def _read_combinations(place: ConfigNode) -> tuple[dict[str, str], ...]:
    found = []
    for each in place.items("a list of mappings, such as [{lr: 0.1, layers: 4}, {lr: 0.01, layers: 8}]"):
        if not each.is_mapping:
            each.must_be("a mapping, such as {lr: 0.1, layers: 4}")
            continue
        values = {}
        for name, value in each.pairs():
            with _problem_of(value):
                check_name("combinations", name)
                values[name] = value.text(_VALUE) or ""
        found.append(values)
    if found and not place.problems:
        with _problem_of(place):
            check_listed(found)
    return tuple(found)


@contextmanager
def _problem_of(place: ConfigNode) -> Iterator[None]:
    """Add the problem of a value to the problems of the file."""
    try:
        yield
    except UsageError as error:
        place.refuse(error.message)
