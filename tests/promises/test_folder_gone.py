"""What a user sees whose project's folder is removed or renamed on the server while a job runs in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from tests.processes import is_running, processes_of
from tests.program import remote_tool
from tests.project import make_project, start
from tests.promises.conftest import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.promises.conftest import Desk

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
    # Until then, its shell needs the job's folder.
    until((server.home / "project" / ".jobs" / job.id / "job.out").read_bytes, "it runs")
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


@pytest.mark.row(135)
def test_a_job_whose_folder_was_replaced_by_a_copy_of_it_is_lost_and_can_be_ended(desk: Desk) -> None:
    desk.does("job-run", "--no-sync", "--cmd", "touch up; exec sleep 600")
    until((desk.there() / "up").exists, "it runs")
    job_id = str(desk.job(1)["id"])
    folder = desk.there() / ".jobs" / job_id
    away = folder.rename(desk.there() / "away")
    shutil.copytree(away, folder, symlinks=True)
    shutil.rmtree(away)
    assert desk.job(1)["state"] == "lost"
    assert processes_of(job_id)
    desk.does("job-kill", "1")
    assert processes_of(job_id) == []


@pytest.mark.row(135)
def test_a_job_without_its_folder_that_ignores_sigterm_is_killed_whole_after_the_grace(desk: Desk) -> None:
    # One process that nothing connects with the job once its supervisor has gone.
    command = "trap '' TERM; env -i setsid sleep 600 & echo $! > new; mv new cleared; while :; do sleep 0.05; done"
    # The grace of a launch is 45 seconds.
    desk.does("helper-launch", "--no-sync", "--cmd", command)
    until((desk.there() / "cleared").exists, "it has started a process")
    cleared, job_id = int((desk.there() / "cleared").read_text()), str(desk.job(1)["id"])
    shutil.rmtree(desk.there() / ".jobs" / job_id)
    begin = time.monotonic()
    desk.does("job-kill", "1", "--grace", "0.3")
    assert time.monotonic() - begin < 30
    is_left = is_running(cleared)
    if is_left:
        os.kill(cleared, signal.SIGKILL)
    assert (is_left, processes_of(job_id)) == (False, [])
