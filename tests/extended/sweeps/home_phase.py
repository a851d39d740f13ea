"""What a supervisor does at the end of a job in a copy, and a clean before it removes one."""

from __future__ import annotations

from remote_tool.agent.frozen import copies, guests, home
from remote_tool.agent.requests import Folders


def bring(folders: list[str], name: str, job_id: str) -> int:
    """Bring home the output of a job."""
    project = Folders(*folders)
    copy = copies.copy_of(project, name)
    assert copy is not None
    return len(home.bring(copy, guests.ProjectJobs(project.jobs), job_id).stuck)


def bring_whole(folders: list[str], name: str) -> int:
    """Bring home everything, as the copy is going to be removed."""
    project = Folders(*folders)
    copy = copies.copy_of(project, name)
    assert copy is not None
    return int(bool(home.bring_whole(copy, project)))
