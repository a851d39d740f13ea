"""Of several starts of one job, the first that has its folder in place stays."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.jobs import new_folder

if TYPE_CHECKING:
    from pathlib import Path


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
