"""A job never starts on half a project, and says what to do; one that begins with a sync mends it itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import JobError
from remote_tool.jobs.job import JobState
from remote_tool.workflows.start_jobs import StartRequest
from tests.workflows.servers import scripts_of

if TYPE_CHECKING:
    from remote_tool import Workspace
    from tests.sshd import TestServer


@pytest.mark.row(70)
def test_a_start_without_sync_is_refused_after_a_sync_that_failed(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    state = scripts_of(shared_servers[0]) / "sync"
    state.write_text("incomplete 0123\n")
    refused = workspace.start_jobs(StartRequest("true", sync=False), check=False)
    error = refused.errors["first"]
    assert isinstance(error, JobError)
    assert "is not whole" in error.message
    assert error.hint == "remote-tool rsync"
    assert [job.state for job in refused.jobs if job.server == "first"] == [JobState.FAILED]
    assert "second" not in refused.errors, "the other server has the whole project"

    answer = workspace.start_jobs(StartRequest("true", servers=("first",)))
    assert answer.errors == {}
    assert state.read_text().startswith("complete ")
    spec = shared_servers[0].home / "project" / ".jobs" / answer.jobs[0].id / "spec.json"
    assert state.read_text() == f"complete {json.loads(spec.read_text())['snapshot']}\n"
