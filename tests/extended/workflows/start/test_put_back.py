"""The ids of jobs that are put back."""

from __future__ import annotations

from remote_tool import Job, JobState
from remote_tool.jobs.job import new_job_id
from remote_tool.jobs.records import JOB_ID
from remote_tool.workflows.start.put_back import id_when_put_back


def test_laptops_that_saw_a_lost_job_created_at_different_times_give_its_successor_one_id() -> None:
    job_id = new_job_id()
    found = {
        id_when_put_back(
            Job(key=1, id=job_id, server="first", command="true", state=JobState.LOST, created_at=created_at)
        )
        for created_at in (1.8e9 + 0.99, 1.8e9 + 1.01)
    }
    assert len(found) == 1
    assert JOB_ID.fullmatch(found.pop())
