"""helper-sweep and sweep-show, as a user types them."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.described import undescribed
from tests.program import remote_tool

if TYPE_CHECKING:
    from pathlib import Path

# Each runs the program several times.
pytestmark = pytest.mark.slow


def sweep(project: Path, *words: str, expected: int = 0) -> dict[str, Any]:
    """Start a sweep and return its document."""
    ran = remote_tool("helper-sweep", *words, "--json", cwd=project)
    assert ran.returncode == expected, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def wait(project: Path, name: str) -> None:
    """Wait until all jobs of a sweep have ended."""
    remote_tool("job-wait", "--tag", f"sweep-{name}", "--timeout", "60", cwd=project)


def test_each_combination_is_a_job_and_the_table_shows_its_parameters_state_and_values(project: Path) -> None:
    command = 'for loss in 9 {lr}5 7; do echo "loss: $loss"; done; test {seed} != 2'
    document = sweep(project, "--cmd", command, "--grid", "lr=0.1,0.01", "--grid", "seed=1..2")
    name = document["sweep"]["name"]
    assert undescribed(document) == set()
    assert (document["sweep"]["combinations"], document["sweep"]["missing"], document["errors"]) == (4, 0, [])
    assert [job["node_rank"] for job in document["jobs"]] == [0, 1, 2, 3]
    assert {job["server"] for job in document["jobs"]} == {"first", "second"}
    assert {job["launch_id"] for job in document["jobs"]} == {document["sweep"]["launch_id"]}
    wait(project, name)

    shown = remote_tool("sweep-show", name, "--metric", "loss", "--rsync", cwd=project)
    assert (shown.returncode, shown.stderr) == (
        0,
        f"to start the 2 that failed or are missing: remote-tool helper-sweep --resume {name}\n",
    )
    heading, *rows = shown.stdout.splitlines()
    assert heading.split("  ")[0] == "NUMBER"
    assert [row.split()[:4] for row in rows] == [
        ["2", "0.01", "1", "succeeded"],
        ["3", "0.01", "2", "failed"],
        ["0", "0.1", "1", "succeeded"],
        ["1", "0.1", "2", "failed"],
    ]
    found = remote_tool("sweep-show", name, "--metric", "loss", "--mode", "max", "--csv", cwd=project)
    table = list(csv.DictReader(io.StringIO(found.stdout)))
    assert {(row["lr"], row["seed"], row["max loss"], row["last loss"]) for row in table} == {
        (lr, seed, "9.0", "7") for lr in ("0.1", "0.01") for seed in ("1", "2")
    }
    as_json = json.loads(remote_tool("sweep-show", "--json", "--sort", "-seed", "--metric", "loss", cwd=project).stdout)
    assert undescribed(as_json) == set()
    combinations = as_json["sweep"]["combinations"]
    assert [each["parameters"]["seed"] for each in combinations] == ["2", "2", "1", "1"]
    assert [each["best"] for each in combinations] == [0.15, 0.015, 0.15, 0.015]


def test_a_dry_run_shows_the_plan_and_starts_nothing(project: Path) -> None:
    words = ("helper-sweep", "--cmd", "hello.py {lr} {{x}}", "--grid", "lr=1..3", "--tag", "dry", "--dry-run")
    shown = remote_tool(*words, cwd=project)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "3 combinations on 2 servers: first 2, second 1",
        "first: combination 0",
        "  python hello.py 1 {x}",
        "second: combination 1",
        "  python hello.py 2 {x}",
        "first: combination 2",
        "  python hello.py 3 {x}",
    ]
    planned = json.loads(remote_tool(*words, "--json", cwd=project).stdout)
    assert [each["server"] for each in planned["combinations"]] == ["first", "second", "first"]
    assert json.loads(remote_tool("job-list", "--stopped", "--tag", "dry", "--json", cwd=project).stdout)["jobs"] == []


def test_a_file_and_options_are_combined_and_the_seed_draws_the_same_again(project: Path, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("cmd: echo {lr} {seed} {opt}\ngrid: {seed: 1..2}\n")
    words = ("helper-sweep", "--file", str(file), "--random", "2", "lr=log:1e-5..1e-1", "opt=choice:a,b", "--dry-run")

    def drawn(*more: str) -> list[dict[str, str]]:
        planned = json.loads(remote_tool(*words, *more, "--json", cwd=project).stdout)
        return [each["parameters"] for each in planned["combinations"]]

    first = drawn("--random-seed", "7")
    assert first == drawn("--random-seed", "7")
    assert len(first) == 4
    assert len({each["lr"] for each in first}) == 2
    assert drawn("--random-seed", "8") != first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--cmd is empty"),
        (("--cmd", "x"), "No parameters to sweep over"),
        (("--cmd", "x {a}", "--grid", "a"), "--grid must be NAME=VALUES, found 'a'"),
        (("--cmd", "x {a}", "--grid", "a="), "--grid must be NAME=VALUES, found 'a='"),
        (("--cmd", "x {a}", "--grid", "a=1", "--grid", "a=2"), "The parameter a is given twice"),
        (("--cmd", "x", "--grid", "a=1"), "--cmd does not use the parameter a"),
        (("--cmd", "x {a} {b}", "--grid", "a=1"), "--cmd: {b} is not a parameter of the sweep; it has {a}, {number}"),
        (("--cmd", "x {a}", "a=int:1..5"), "'a=int:1..5' needs --random N"),
        (("--cmd", "x {a}", "--random", "5"), "--random needs a number of combinations and parameters"),
        (("--cmd", "x {a}", "--random", "5", "a=1..5"), "--random: a='1..5' is not a way to draw values"),
        (("--cmd", "x {a}", "--grid", "a=1..20000"), "A sweep has at most 10,000 combinations, found 20,000"),
        (("--cmd", "x {a}", "--grid", "a=1", "--gpus", "2", "--per-server", "2"), "--gpus and --per-server cannot be"),
        (
            ("--cmd", "x {a}", "--grid", "a=1", "--gpus", "1", "--devices", "0"),
            "--gpus and --devices cannot be combined",
        ),
        (
            ("--resume", "x", "--tag", "y"),
            "--resume keeps the options of the start, so it cannot be combined with --tag",
        ),
        (
            ("--resume", "x", "--gpus", "2"),
            "--resume keeps the options of the start, so it cannot be combined with --gpus",
        ),
        (
            ("--resume", "x", "--dry-run"),
            "--resume keeps the options of the start, so it cannot be combined with --dry-run",
        ),
        (("--resume", "000000"), "No sweep '000000' was started here"),
        (("--file", "none.yaml"), "none.yaml: No such file or directory"),
    ],
)
def test_invalid_options_are_refused_and_named(project: Path, words: tuple[str, ...], message: str) -> None:
    refused = remote_tool("helper-sweep", *words, cwd=project)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: {message}"), refused.stderr


def test_what_is_given_both_here_and_in_the_file_is_refused(project: Path, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("cmd: x {a} {b}\ngrid: {a: 1}\nrandom: {count: 2, parameters: {b: 'int:1..9'}}\n")
    for words, option in (
        (("--cmd", "x"), "--cmd"),
        (("--grid", "a=1"), "--grid a"),
        (("--random", "5", "c=int:1..9"), "--random"),
    ):
        refused = remote_tool("helper-sweep", "--file", str(file), *words, cwd=project)
        assert refused.stderr.startswith(f"error: {option} is given here and in {file}")


def test_sweep_show_refuses_what_is_not_there(project: Path) -> None:
    sweep(project, "--cmd", "echo {n}", "--grid", "n=1")
    for words, message in (
        (("000000",), "No sweep '000000' was started here; the last are "),
        (("--sort", "other"), "--sort 'other' is not a column"),
        (("--mode", "best"), "--mode must be min or max, found 'best'"),
        (("--metric", " "), "--metric must be a name of at most 80 characters, found ' '"),
        (("--csv", "--json"), "--csv and --json cannot be combined"),
    ):
        refused = remote_tool("sweep-show", *words, cwd=project)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"error: {message}"), refused.stderr
