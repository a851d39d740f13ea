"""--nice on real servers: the command and its children have it, whatever starts them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import JobSelection, LaunchRequest, StartRequest, Workspace
from remote_tool.errors import UsageError
from remote_tool.workflows.fan_out.request import FanOutRequest
from tests.program import remote_tool

if TYPE_CHECKING:
    from pathlib import Path

# Its own niceness, and that of a child of a child.
SHOW = "nice; sh -c 'sh -c nice'"


@pytest.fixture
def workspace(shared_project: Path) -> Workspace:
    (shared_project / "nice.py").write_text('import os; os.write(1, b"%d\\n" % os.nice(0))\n')
    return Workspace.find(shared_project)


def printed(workspace: Workspace, *ids: str) -> list[str]:
    """Return what jobs print, once they have ended."""
    selection = JobSelection(jobs=ids, stopped=True)
    assert workspace.wait_jobs(selection, timeout=300).exit_code == 0
    workspace.pull_logs(selection)
    outputs = [workspace.config.local.job(each) / "job.out" for each in ids]
    return [line for file in outputs if file.exists() for line in file.read_text().split()]


def test_a_job_and_its_children_run_with_the_niceness_that_is_given(workspace: Workspace) -> None:
    jobs = workspace.start_jobs(
        StartRequest(SHOW, ("first",), sync=False, nice=7), StartRequest(SHOW, ("first",), sync=False)
    ).jobs
    nice, usual = ([int(each) for each in printed(workspace, job.id)] for job in jobs)
    assert nice == [usual[0] + 7] * 2
    assert [job.nice for job in jobs] == [7, None]


def test_another_checkout_is_told_it_by_the_server(workspace: Workspace) -> None:
    running = workspace.start("first", "sleep 1000", sync=False, nice=2)
    (workspace.config.local.job(running.job.id) / "job.yaml").unlink()
    assert {job.id: job.nice for job in workspace.list_jobs().jobs}[running.job.id] == 2
    workspace.stop_jobs(JobSelection(jobs=(running.job.id,)))


def test_every_job_of_a_fan_out_has_it_and_a_resumed_one_too(workspace: Workspace) -> None:
    request = FanOutRequest("nice; test -e again-{shard} || (touch again-{shard}; false)", total=2, nice=5, retries=0)
    first = workspace.fan_out(request, check=False)
    again = workspace.resume_fan_out(first.launch_id[-6:], check=False)
    assert {job.nice for job in (*first.jobs, *again.jobs)} == {5}
    assert set(printed(workspace, *(job.id for job in again.jobs if job.exit_code == 0))) == {"5"}


def test_the_command_line_gives_it_and_shows_it(workspace: Workspace) -> None:
    done = remote_tool("job-run", "--server", "first", "--nice", "3", "--json", "--", "true", cwd=workspace.root)
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["nice"] == 3


COMMANDS = {
    "job-run": ["--cmd", "true"],
    "helper-torch-launch": ["--cmd", "nice.py"],
    "helper-launch": ["--cmd", "true"],
    "helper-mpi-launch": ["--cmd", "true"],
    "helper-ray-launch": ["--cmd", "true"],
    "helper-fan-out": ["--cmd", "true", "--total", "2"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("nice", ["20", "-1", "high", "1.5"])
def test_another_number_is_refused_before_anything_is_asked(workspace: Workspace, command: str, nice: str) -> None:
    done = remote_tool(command, *COMMANDS[command], "--nice", nice, cwd=workspace.root)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --nice must be a whole number")
    assert nice in done.stderr.splitlines()[0]


@pytest.mark.parametrize("nice", [20, -1, True, 1.5, "3"])
@pytest.mark.parametrize("kind", [StartRequest, LaunchRequest])
def test_the_api_refuses_it_too(kind: Any, nice: object) -> None:
    with pytest.raises(UsageError, match="--nice must be a whole number from 0 to 19, found"):
        kind("true", nice=nice)


@pytest.mark.slow
def test_the_ranks_of_a_launch_have_it(workspace: Workspace) -> None:
    answer = workspace.launch(LaunchRequest("nice; sh -c nice", launcher="shell", nice=4))
    assert printed(workspace, *(job.id for job in answer.jobs)) == ["4"] * 4
    if shutil.which("mpiexec.hydra"):
        mpi = workspace.launch_mpi(LaunchRequest("nice.py", processes=2, nice=6))
        assert printed(workspace, *(job.id for job in mpi.jobs)) == ["6"] * 4
