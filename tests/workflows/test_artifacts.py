"""Files that a job writes come home: those that are wanted, whole, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, StartRequest, Workspace
from remote_tool.errors import UsageError
from remote_tool.supervisor.artifact_patterns import ArtifactPattern
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import TestServer


@pytest.mark.usefixtures("shared_project")
def test_a_job_carries_which_files_come_home_to_another_laptop(
    shared_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    own = ("out/*.onnx", ArtifactPattern("checkpoints/*.pt", 2))
    here = Workspace.find(make_project(tmp_path / "here", shared_servers, artifacts=["metrics.json"]))
    jobs = here.start_jobs(StartRequest("true", ("first", "second"), sync=False, artifacts=own)).jobs
    patterns = (ArtifactPattern("metrics.json"), ArtifactPattern("out/*.onnx"), ArtifactPattern("checkpoints/*.pt", 2))
    assert [job.artifacts for job in jobs] == [patterns] * 2
    there = Workspace.find(make_project(tmp_path / "there", shared_servers))
    there.list_jobs()
    adopted = there.select_local(JobSelection(jobs=tuple(job.id for job in jobs)))
    assert [job.artifacts for job in adopted] == [patterns] * 2


@pytest.mark.parametrize("glob", ["../x", "/etc/passwd", "~/x", "", "a\nb", "./"])
def test_a_glob_that_leaves_the_project_is_refused(glob: str) -> None:
    with pytest.raises(UsageError, match="must be a glob inside the project"):
        StartRequest("true", artifacts=(glob,))
