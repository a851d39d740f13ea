"""helper-sweep and sweep-show, as a user types them."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.described import undescribed
from tests.project import remote_tool

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
