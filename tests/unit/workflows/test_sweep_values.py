"""The values of a sweep's parameters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_tool.errors import UsageError
from remote_tool.workflows.sweep.values import (
    MOST_COMBINATIONS,
    SEEDS,
    Random,
    SweepSpec,
    draw,
    identity_of,
    parse_values,
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,0.01", ("0.1", "0.01")),
        ("1..5", ("1", "2", "3", "4", "5")),
        ("0..100..50,7", ("0", "50", "100", "7")),
        ("-1..1", ("-1", "0", "1")),
        ('"a,b",c d', ("a,b", "c d")),
        ("adam, sgd", ("adam", "sgd")),
        ("../data,a..b", ("../data", "a..b")),
    ],
)
def test_values_are_listed_or_a_range(text: str, values: tuple[str, ...]) -> None:
    assert parse_values("--grid", "x", text) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,,2", "--grid x has an empty value"),
        ("1,2,1", "--grid x has the value '1' twice"),
        ("1..3,2", "--grid x has the value '2' twice"),
        ("5..1", "--grid x=5..1 has no values; write the smaller number first"),
        ("1..5..0", "--grid x=1..5..0 has no values; write the smaller number first"),
        ("0.1..0.5", "--grid x=0.1..0.5: a range has whole numbers, such as 1..5 or 0..100..10"),
        ('"a', "--grid x='\"a' cannot be read: unexpected end of data"),
        ("a\nb", "--grid x='a\\nb' cannot be read"),
        ("1..999999999999", "A sweep has at most 10,000 combinations, found 999,999,999,999"),
    ],
)
def test_invalid_values_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_values("--grid", "x", text)
    assert str(refused.value).startswith(message)


def test_everything_is_combined_with_everything_and_the_last_of_the_grid_varies_fastest() -> None:
    spec = SweepSpec(
        grid={"lr": [0.1, "0.01"], "seed": "1..2"},
        random=Random(2, {"width": "int:1..99"}, seed=1),
        combinations=[{"model": "a", "layers": 4}, {"layers": 8, "model": "b"}],
    )
    made = spec.made()
    assert len(made) == len({identity_of(each) for each in made}) == 16
    assert [(each["lr"], each["seed"]) for each in made[:4]] == [
        ("0.1", "1"),
        ("0.1", "2"),
        ("0.01", "1"),
        ("0.01", "2"),
    ]
    assert [each["model"] for each in made] == ["a"] * 8 + ["b"] * 8
    assert [each["layers"] for each in made] == ["4"] * 8 + ["8"] * 8


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SweepSpec(), "No parameters to sweep over"),
        (SweepSpec(grid={"lr": []}), "--grid lr has an empty value"),
        (SweepSpec(grid={"1lr": [1]}), "--grid: '1lr' cannot name a parameter"),
        (SweepSpec(grid={"number": [1]}), "--grid: {number} is the number of the combination; choose another name"),
        (SweepSpec(grid={"lr": [[1]]}), "A value of the parameter lr must be text or a number, found a list"),
        (SweepSpec(grid={"lr": ["\0"]}), "--grid lr: a value cannot hold a NUL"),
        (SweepSpec(grid={"lr": [1]}, random=Random(1, {"lr": "int:1..2"}, 0)), "The parameter lr is given twice"),
        (SweepSpec(grid={"a": "1..101", "b": "1..100"}), "A sweep has at most 10,000 combinations, found 10,100"),
        (SweepSpec(grid={"a": range(10**9)}), "A sweep has at most 10,000 combinations, found 1,000,000,000"),
        (
            SweepSpec(combinations=[{"a": 1}, {"b": 1}]),
            "combinations: number 2 and the first differ in the parameter a",
        ),
        (SweepSpec(combinations=[{"a": 1}, {"a": "1"}]), "combinations: number 2 is given twice"),
        (SweepSpec(random=Random(5, {}, 0)), "--random needs a number of combinations and parameters"),
        (SweepSpec(random=Random(0, {"a": "int:1..2"}, 0)), "--random needs a number of combinations and parameters"),
        (SweepSpec(random=Random(3, {"a": "int:1..2"}, 0)), "--random 3: only 2 different combinations were found"),
        (SweepSpec(random=Random(1, {"a": "normal:0..1"}, 0)), "--random: a='normal:0..1' is not a way to draw values"),
        (SweepSpec(random=Random(1, {"a": "0..1"}, 0)), "--random: a='0..1' is not a way to draw values"),
        (SweepSpec(random=Random(1, {"a": "log:0..1"}, 0)), "--random: a=log:0..1 must go from a number above 0"),
        (SweepSpec(random=Random(1, {"a": "uniform:1..1"}, 0)), "--random: a=uniform:1..1 must go from a number"),
        (SweepSpec(random=Random(1, {"a": "uniform:1e308..9e999"}, 0)), "--random: a=uniform:1e308..9e999 must go"),
        (SweepSpec(random=Random(1, {"a": "int:1..2.5"}, 0)), "--random: a=int:1..2.5 must go from a whole number"),
    ],
)
def test_invalid_combinations_are_refused_before_there_are_many(spec: SweepSpec, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        spec.made()
    assert str(refused.value).startswith(message)


def test_there_may_be_as_many_combinations_as_the_limit_says() -> None:
    assert len(SweepSpec(grid={"a": f"1..{MOST_COMBINATIONS}"}).made()) == MOST_COMBINATIONS


@given(seed=st.integers(0, 2**32), low=st.floats(1e-300, 1e300), ratio=st.floats(1.001, 1e6), count=st.integers(1, 30))
def test_a_seed_always_draws_the_same_within_the_range_and_more_of_it_begin_with_these(
    seed: int, low: float, ratio: float, count: int
) -> None:
    high = low * ratio
    ways = {"a": f"log:{low!r}..{high!r}", "b": f"uniform:{-high!r}..{low!r}", "c": "int:-3..3", "d": "choice:x,y,z"}
    drawn = draw(Random(count, ways, seed))
    assert drawn == draw(Random(count, ways, seed)) == draw(Random(count + 5, ways, seed))[:count]
    for each in drawn:
        assert low <= float(each["a"]) <= high
        assert -high <= float(each["b"]) <= low
        assert -3 <= int(each["c"]) <= 3
        assert each["d"] in {"x", "y", "z"}


def test_a_draw_on_a_log_scale_has_as_many_values_in_each_decade() -> None:
    drawn = draw(Random(2000, {"lr": "log:1e-5..1e-1"}, seed=3))
    decades = [math.floor(math.log10(float(each["lr"]))) for each in drawn]
    assert all(400 < decades.count(decade) < 600 for decade in (-5, -4, -3, -2))


def test_another_parameter_does_not_change_what_is_drawn_for_the_first() -> None:
    alone = draw(Random(5, {"a": "uniform:0..1"}, seed=9))
    both = draw(Random(5, {"b": "uniform:0..1", "a": "uniform:0..1"}, seed=9))
    assert [each["a"] for each in alone] == [each["a"] for each in both]


def test_without_a_seed_each_request_draws_its_own_and_remembers_it() -> None:
    seeds = {Random(5, {"a": "uniform:0..1"}).seeded().seed for _ in range(20)}
    assert len(seeds) > 1
    assert None not in seeds
    assert Random(seed=4).seeded(5).seed == 4
    assert Random().seeded(5).seed == 5
    assert all(0 <= (seed or 0) < SEEDS for seed in seeds)
