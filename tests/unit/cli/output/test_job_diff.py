"""The table of job-diff: rows in a pipe, both values below each other where rows do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.cli.commands.diff import print_differences
from remote_tool.cli.output import streams
from remote_tool.jobs.job import Job, JobState
from remote_tool.workflows.jobs.compare import FieldDifference, JobDiff, compare_jobs

if TYPE_CHECKING:
    import pytest

FIRST = Job(3, "a", "gpu1", "train.py --lr 0.1", JobState.SUCCEEDED, exit_code=0, status_values=("loss=0.5", "lr=1"))
OTHER = Job(12, "b", "gpu1", "train.py --lr 0.2", JobState.KILLED, signal="SIGTERM", status_values=("loss=0.4", "lr=1"))


def test_only_what_differs_is_listed_and_ids_and_times_never() -> None:
    found = compare_jobs(FIRST, OTHER, 100.0)
    assert [(each.field, *each.values) for each in found] == [
        ("command", "train.py --lr 0.1", "train.py --lr 0.2"),
        ("state", JobState.SUCCEEDED, JobState.KILLED),
        ("exit_code", 0, None),
        ("signal", None, "SIGTERM"),
        ("values.loss", "0.5", "0.4"),
    ]
    assert compare_jobs(FIRST, FIRST, 100.0) == ()


def test_a_pipe_gets_a_row_per_field(capfd: pytest.CaptureFixture[str]) -> None:
    rows = (
        FieldDifference("command", ("a\x1b[31m", "b\r")),
        FieldDifference("git.dirty", (False, True)),
        FieldDifference("variables", (["A", "B"], None)),
        FieldDifference("duration", (95, 7300)),
    )
    print_differences(JobDiff((FIRST, OTHER), differences=rows))
    assert [line.split() for line in capfd.readouterr().out.splitlines()] == [
        ["FIELD", "JOB", "3", "JOB", "12"],
        ["command", "a\\x1b[31m", "b\\x0d"],
        ["git.dirty", "no", "yes"],
        ["variables", "A,B", "-"],
        ["duration", "1m35s", "2h1m"],
    ]


def test_a_narrow_terminal_gets_the_values_below_each_other(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", "40")
    long = "train.py " + "x" * 30
    print_differences(JobDiff((FIRST, OTHER), differences=(FieldDifference("command", (long, None)),)))
    assert capfd.readouterr().out == f"command\n  3   {long}\n  12  -\n"
