"""Jobs that job-rerun leaves to the commands which started them."""

from __future__ import annotations

from typing import Any

import pytest

from remote_tool.jobs.job import EXERCISE_COMMAND, JUPYTER_MARK, Job, JobState, own_start
from remote_tool.workflows.exercise.program import SOURCE


@pytest.mark.parametrize(
    ("command", "facts", "again"),
    [
        ("true", {"tags": ("fan-out-3f9c2a",), "launch_id": "20261130-3f9c2a"}, "helper-fan-out --resume 3f9c2a"),
        (f"{JUPYTER_MARK}python -m jupyterlab", {}, "jupyter --server gpu1"),
        ("shell --keep night", {"terminal": "shell"}, "shell --server gpu1 --keep NAME"),
        (EXERCISE_COMMAND, {"launch_id": "20261130-3f9c2a"}, "check --exercise"),
        ("htop", {"terminal": "command"}, None),
        ("true", {"tags": ("fan-out-of-mine",)}, None),
        ("true", {"tags": ("sweep-3f9c2a",), "launch_id": "20261130-3f9c2a"}, None),
    ],
)
def test_the_command_that_starts_a_job_again(command: str, facts: dict[str, Any], again: str | None) -> None:
    job: dict[str, Any] = {"tags": (), **facts}
    special = own_start(Job(1, "id", "gpu1", command, JobState.FAILED, **job))
    assert (special and special[1]) == again


def test_the_exercise_is_the_program_in_its_variable() -> None:
    assert f'python -c "${SOURCE}"' == EXERCISE_COMMAND
