"""Jobs that wait for GPUs, as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import JobState, Workspace
from remote_tool.workflows.selection import JobSelection
from tests.extended.workflows.jobs.test_jobs import until
from tests.program import remote_tool
from tests.project import kill
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote_tool import Job
    from tests.sshd import TestServer

# Each runs the program several times.
pytestmark = pytest.mark.slow

OF_FIRST = ("--server", "first", "--no-sync", "--gpus", "1")


@pytest.fixture
def busy(project: Path, servers: tuple[TestServer, TestServer]) -> Iterator[Job]:
    """A job that holds the only GPU of the first server."""
    put_nvidia_smi(servers[0].programs, gpu_line(0, load=0, used=1))
    started = remote_tool("job-run", *OF_FIRST, "--name", "holder", "--cmd", "sleep 1000", cwd=project)
    assert started.returncode == 0, started.stderr
    (job,) = Workspace.find(project).list_jobs(JobSelection(last=1)).jobs
    until(lambda: now(project, job).state is JobState.RUNNING)
    yield now(project, job)
    kill(project, job)
    (servers[0].programs / "nvidia-smi").unlink()


def now(project: Path, job: Job) -> Job:
    (found,) = Workspace.find(project).list_jobs(JobSelection(jobs=(job.id,))).jobs
    return found


def queue(project: Path, *words: str) -> dict[str, Any]:
    """Start a job that waits; return it as ``--json`` shows it."""
    started = remote_tool("job-run", *OF_FIRST, *words, "--json", cwd=project)
    assert started.returncode == 0, started.stderr
    (job,) = json.loads(started.stdout)["jobs"]
    return dict(job)


@pytest.mark.usefixtures("busy")
def test_the_queue_is_listed_waited_for_and_left(project: Path) -> None:
    second = queue(project, "--cmd", "true", "--priority", "3")
    assert [second[name] for name in ("gpu_count", "priority", "leased_gpus")] == [1, 3, None]
    key = str(second["key"])
    (job,) = Workspace.find(project).list_jobs(JobSelection(jobs=(key,))).jobs
    until(lambda: now(project, job).state is JobState.QUEUED)
    listed = remote_tool("job-list", "--state", "queued", cwd=project)
    (row,) = [line for line in listed.stdout.splitlines() if line.startswith(key)]
    assert "queued" in row
    assert "1st of 1 for 1 GPU; 1 is leased by" in row
    assert "(holder)" in row
    late = remote_tool("job-wait", key, "--timeout", "1", cwd=project)
    assert (late.returncode, "Still running after 1 s" in late.stderr) == (1, True)
    shown = remote_tool("job-list", cwd=project).stdout
    assert f"{key} " in shown
    assert "GPU-0" in shown
    killed = remote_tool("job-kill", key, cwd=project)
    assert (killed.returncode, "killed" in killed.stdout) == (0, True)
    assert remote_tool("job-list", "--state", "queued", cwd=project).stdout == ""


def test_ctrl_c_ends_a_launch_that_waits_and_nothing_is_started(project: Path, busy: Job) -> None:
    words = ("helper-launch", *OF_FIRST, "--cmd", "true", "--wait")
    before = [job.id for job in Workspace.find(project).list_jobs(JobSelection(stopped=True)).jobs]
    with subprocess.Popen(
        [sys.executable, "-m", "remote_tool", *words], cwd=project, stderr=subprocess.PIPE, text=True
    ) as launching:
        assert launching.stderr is not None
        waiting = next((line for line in launching.stderr if "the launch waits" in line), "")
        launching.send_signal(signal.SIGINT)
        launching.stderr.read()
        assert launching.wait(timeout=300) == 130
    assert waiting == "the launch waits: first: 1 wanted; 0 of 1 free, 1 reserved by jobs\n"
    assert [job.id for job in Workspace.find(project).list_jobs(JobSelection(stopped=True)).jobs] == before
    assert now(project, busy).state is JobState.RUNNING


def test_two_conditions_are_refused(tmp_path: Path) -> None:
    ran = remote_tool("job-run", "--cmd", "true", "--after", "1", "--after-any", "2", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: --after and --after-any cannot be combined")
