"""What a user sees whose project's folder is removed or renamed on the server while a job runs in it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from tests.processes import processes_of
from tests.program import remote_tool
from tests.project import make_project, start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

NEXT = "remote-tool prepare --server first, then job-kill"


@pytest.mark.slow
@pytest.mark.row(135)
@pytest.mark.parametrize("command", ["--job 1", "--tag gone", "--server first", "--orphans --yes"])
@pytest.mark.parametrize("is_renamed", [True, False], ids=["renamed", "removed"])
def test_a_job_whose_project_is_gone_is_ended_by_the_commands_that_the_message_names(
    make_server: MakeServer, tmp_path: Path, command: str, *, is_renamed: bool
) -> None:
    server = make_server()
    root = make_project(tmp_path / "project", [server])
    Workspace.find(root).prepare()
    job = start(root, "echo up; exec sleep 600", "gone")
    if is_renamed:
        (server.home / "project").rename(server.home / "away")
    else:
        shutil.rmtree(server.home / "project")
    refused = remote_tool("job-kill", *command.split(), cwd=root)
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    assert "first is not prepared, so " in refused.stderr
    assert NEXT in " ".join(refused.stderr.split())
    assert processes_of(job.id)
    assert remote_tool("prepare", "--server", "first", cwd=root).returncode == 0
    ended = remote_tool("job-kill", *command.split(), cwd=root)
    assert ended.returncode == 0, ended.stderr
    assert processes_of(job.id) == []
    (listed,) = json.loads(remote_tool("job-list", "--stopped", "--json", cwd=root).stdout)["jobs"]
    assert listed["state"] == "lost"
