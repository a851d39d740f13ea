"""The file of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool.config.document import LARGEST_FILE
from remote_tool.errors import ConfigError
from remote_tool.workflows.sweep.file import load_sweep_file
from remote_tool.workflows.sweep.values import Random, SweepSpec

if TYPE_CHECKING:
    from pathlib import Path


def test_values_are_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "cmd: train.py --lr {lr}\n"
        "grid:\n  lr: [1e-3, 0.10, no]\n  seed: 1..3\n  one: 5\n"
        "random:\n  count: 20\n  seed: 7\n  parameters: {wd: 'log:1e-5..1e-1'}\n"
        "combinations:\n- {model: a, layers: 4}\n- {model: b, layers: 8}\n"
    )
    assert load_sweep_file(file) == SweepSpec(
        command="train.py --lr {lr}",
        grid={"lr": ("1e-3", "0.10", "no"), "seed": ("1", "2", "3"), "one": ("5",)},
        random=Random(20, {"wd": "log:1e-5..1e-1"}, 7),
        combinations=({"model": "a", "layers": "4"}, {"model": "b", "layers": "8"}),
    )


def test_an_empty_file_has_no_parameters(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("")
    assert load_sweep_file(file).is_empty


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("grdi: {}", ":1: grdi: unknown key; did you mean grid?"),
        ("- 1", ":1: must be a mapping (key: value), found a list"),
        ("grid: 5", ":1: grid: must be a mapping (key: value), found '5'"),
        ("grid:\n  lr: [1, 1]", ":2: grid.lr: grid lr has the value '1' twice"),
        ("grid:\n  lr: []", ":2: grid.lr: must be a list of values, found an empty list"),
        ("grid:\n  lr: [1, [2]]", ":2: grid.lr[1]: must be a value, found a list"),
        ("grid:\n  lr: 5..1", ":2: grid.lr: grid lr=5..1 has no values; write the smaller number first"),
        ("grid:\n  l r: 1", ":2: grid.'l r': grid: 'l r' cannot name a parameter"),
        ("grid:\n  lr: 1\n  lr: 2", ":3: grid.lr: duplicate key, first set on line 2"),
        ("random:\n  count: 5", ":1: random: parameters is required, such as"),
        (
            "random: {count: x, parameters: {a: 'int:1..2'}}",
            ":1: random.count: must be a whole number from 1, found 'x'",
        ),
        ("random: {count: 5, seed: -1, parameters: {a: 'int:1..2'}}", ":1: random.seed: must be a whole number"),
        (
            "random:\n  count: 5\n  parameters:\n    a: gauss:1..2",
            ":4: random.parameters.a: --random: a='gauss:1..2' is not a way to draw values",
        ),
        ("combinations: [1]", ":1: combinations[0]: must be a mapping, such as {lr: 0.1, layers: 4}, found '1'"),
        ("combinations: [{a: 1}, {b: 1}]", ":1: combinations: combinations: number 2 and the first differ"),
        ("grid: {a: !!python/name:os 1}", ":1: tags (!...) are not allowed"),
        ("grid:\n\tlr: 1", ":2: tabs are not allowed here; indent with spaces"),
        ("grid: {a", ": not valid YAML"),
    ],
)
def test_a_problem_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_sweep_file(file)
    (found,) = refused.value.problems
    assert found.startswith(str(file))
    assert problem in found


def test_a_missing_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none: No such file or directory"):
        load_sweep_file(tmp_path / "none")
    huge = tmp_path / "huge"
    huge.write_bytes(b"#" * (LARGEST_FILE + 1))
    with pytest.raises(ConfigError, match="huge: larger than 1"):
        load_sweep_file(huge)
