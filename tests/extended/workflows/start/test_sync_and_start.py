"""A job never starts on half a project, and says what to do; one that begins with a sync mends it itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from remote_tool.errors import JobError, SyncError
from remote_tool.jobs.job import JobState
from remote_tool.workflows.start.start import StartRequest
from tests.extended.workflows.prepare.servers import scripts_of
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
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
    assert "is incomplete: its last sync" in error.message
    assert error.hint == "remote-tool rsync"
    assert [job.state for job in refused.jobs if job.server == "first"] == [JobState.FAILED]
    assert "second" not in refused.errors, "the other server has the whole project"

    answer = workspace.start_jobs(StartRequest("true", servers=("first",)))
    assert answer.errors == {}
    assert state.read_text().startswith("complete ")
    spec = shared_servers[0].home / "project" / ".jobs" / answer.jobs[0].id / "spec.json"
    assert state.read_text() == f"complete {json.loads(spec.read_text())['snapshot']}\n"


@pytest.mark.row(70, 146)
def test_no_job_starts_where_a_file_was_changed_on_both_sides(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    here, there = workspace.config.local.root / "epochs.csv", shared_servers[0].home / "project" / "epochs.csv"
    here.write_text("step,loss\n")
    workspace.rsync()
    there.write_text("step,loss\n1,0.5\n")
    answer = workspace.start_jobs(StartRequest("true", servers=("first",)), check=False)
    assert answer.errors == {}, "only the server's has changed"
    assert [text for server, text in answer.warnings if server == "first" and "epochs.csv" in text]
    here.write_text("mine, and longer\n")
    refused = workspace.start_jobs(StartRequest("true"), check=False)
    assert set(refused.errors) == {"first"}
    assert isinstance(refused.errors["first"], SyncError)
    assert "epochs.csv" in refused.errors["first"].message
    assert [job.server for job in refused.jobs] == ["second"]
    assert there.read_text() == "step,loss\n1,0.5\n"
    without = workspace.start_jobs(StartRequest("true", servers=("first",), sync=False), check=False)
    assert "is incomplete: its last sync" in str(without.errors["first"])
    answer = workspace.start_jobs(StartRequest("true", servers=("first",), overwrite=True))
    assert answer.errors == {}
    assert there.read_text() == "mine, and longer\n"


@pytest.mark.slow
def test_a_project_may_lie_in_a_folder_below_the_home(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("first")
    workspace = Workspace.find(make_project(tmp_path / "project", [server], name="dev/digits", artifacts=["out/*"]))
    workspace.prepare()
    (workspace.root / "hello.py").rename(workspace.root / "moved.py")
    job = workspace.start("first", "pwd; mkdir out; echo 1 > out/one")
    assert (list(job.tail()), [path.name for path in job.pull()]) == ([f"{server.home}/dev/digits"], ["one"])
    assert {path.name for path in (server.home / "dev" / "digits").iterdir()} == {
        *(".jobs", ".remote-scripts", "moved.py", "out")
    }
    assert [path.name for path in server.home.iterdir() if path.name != ".cache"] == ["dev"]
    assert not any(each.changed for each in workspace.prepare().values.values())
