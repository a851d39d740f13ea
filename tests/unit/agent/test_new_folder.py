"""Starts that meet: the first has the folder, and what one that broke off has left is removed."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.jobs import new_folder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.row(30)
def test_the_time_of_the_disk_counts_where_another_machine_may_be_starting_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (".starting-elsewhere", ".starting-long-ago"):
        (tmp_path / name).mkdir()
    past = time.time() - 7200
    os.utime(tmp_path / ".starting-long-ago", (past, past))
    # Of machines with one home, this one's clock is ahead.
    monkeypatch.setattr("time.time", lambda now=time.time: now() + 7200)
    jobs = os.open(tmp_path, os.O_RDONLY)
    try:
        new_folder.remove_abandoned(jobs)
    finally:
        os.close(jobs)
    assert [path.name for path in tmp_path.iterdir()] == [".starting-elsewhere"]


@pytest.mark.row(10)
def test_a_start_that_comes_second_does_not_take_the_place_of_the_first(tmp_path: Path) -> None:
    for name in ("job", ".starting-second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spec.json").write_text(name)
    jobs = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(OSError, match="not empty"):
        new_folder._move_into_place(jobs, ".starting-second", "job")
    os.close(jobs)
    assert (tmp_path / "job" / "spec.json").read_text() == "job"
