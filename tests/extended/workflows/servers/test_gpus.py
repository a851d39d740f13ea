"""Who has which GPU of real servers: nobody, a job with a lease, or a process without one."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import JobSelection, JobState, StartRequest, Workspace
from remote_tool.errors import UsageError
from remote_tool.workflows.servers.gpus import INTERVAL, parse_gpus
from tests.extended.workflows.jobs.test_jobs import until
from tests.program import remote_tool
from tests.project import make_project
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.sshd import TestServer

IDLE = {"load": 0, "used": 4}


def prepared(make_server: MakeServer, root: Path, *names: str) -> tuple[Workspace, list[TestServer]]:
    """Make servers that are prepared."""
    servers = [make_server(name) for name in names]
    workspace = Workspace.find(make_project(root, servers))
    workspace.prepare()
    return workspace, servers


@pytest.mark.slow
@pytest.mark.row(290)
def test_gpus_are_free_leased_or_used(make_server: MakeServer, tmp_path: Path) -> None:
    workspace, (first,) = prepared(make_server, tmp_path / "project", "first")
    lines = [gpu_line(0, **IDLE), gpu_line(1, **IDLE), gpu_line(2, load=0, used=900), gpu_line(3, **IDLE)]
    put_nvidia_smi(first.programs, *lines, processes=f"GPU-3, {os.getpid()}, 300\n")
    (job,) = workspace.start_jobs(StartRequest("exec sleep 600", ("first",), gpus=1, name="digits")).jobs
    deadline = time.monotonic() + 300
    while workspace.list_jobs(JobSelection((job.id,))).jobs[0].state is not JobState.RUNNING:
        assert time.monotonic() < deadline, "it does not run"
    (waiting,) = workspace.start_jobs(StartRequest("exec sleep 600", ("first",), gpus=4)).jobs
    answer = workspace.list_gpus()
    found = answer.servers["first"]
    assert [gpu.state for gpu in found.gpus] == ["leased", "free", "used", "used"]
    lease = found.gpus[0].lease
    assert lease is not None
    assert (lease.user, lease.job, lease.name) == (first.username, job.id, "digits")
    assert [(each.pid, each.user) for each in found.gpus[3].processes] == [(os.getpid(), first.username)]
    assert [(each.job, each.gpus) for each in found.queue] == [(waiting.id, 4)]
    assert (answer.exit_code, answer.with_free(1), found.free) == (0, [], 1)
    table = remote_tool("gpus", cwd=workspace.root)
    assert [line.split()[:5] for line in table.stdout.splitlines()] == [
        ["SERVER", "GPU", "STATE", "USER", "JOB"],
        ["first", "0", "leased", first.username, "digits"],
        ["first", "1", "free", "-", "-"],
        ["first", "2", "used", "unseen", "-"],
        ["first", "3", "used", first.username, f"pid={os.getpid()}"],
    ]
    assert (table.returncode, table.stderr) == (0, "first: 1 job in the queue\n")
    document = json.loads(remote_tool("gpus", "--json", cwd=workspace.root).stdout)
    assert document["servers"][0]["gpus"][0]["lease"]["job"] == job.id
    workspace.stop_jobs(JobSelection(jobs=(waiting.id, job.id)), signal="SIGKILL")


@pytest.mark.slow
@pytest.mark.row(290)
def test_a_server_that_cannot_say_is_unknown_and_never_free(make_server: MakeServer, tmp_path: Path) -> None:
    workspace, (broken, gone) = prepared(make_server, tmp_path / "project", "broken", "gone")
    put_nvidia_smi(broken.programs, "Failed to initialize NVML: Driver/library version mismatch")
    gone.stop()
    answer = workspace.list_gpus()
    problem = "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"
    assert (answer.servers["broken"].problem, answer.servers["broken"].free) == (problem, 0)
    assert (list(answer.errors), answer.exit_code) == (["gone"], 3)
    shown = remote_tool("gpus", "--server", "broken", cwd=workspace.root)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", f"broken: its GPUs are unknown: {problem}\n")


@pytest.mark.slow
def test_waiting_ends_when_a_server_has_enough(make_server: MakeServer, tmp_path: Path) -> None:
    workspace, (first, second) = prepared(make_server, tmp_path / "project", "first", "second")
    put_nvidia_smi(first.programs, gpu_line(0, **IDLE), gpu_line(1))
    put_nvidia_smi(second.programs, gpu_line(0), gpu_line(1))
    answers: list[list[str]] = []
    waiter = threading.Thread(target=lambda: answers.append(workspace.wait_for_gpus(2).with_free(2)), daemon=True)
    waiter.start()
    until((second.programs / "asked").exists)
    (second.programs / "gpus").write_text(f"{gpu_line(0, **IDLE)}\n{gpu_line(1, **IDLE)}\n")
    waiter.join(60 + INTERVAL)
    assert answers == [["second"]]
    waited = remote_tool("gpus", "--wait", "2", cwd=workspace.root)
    assert (waited.returncode, waited.stdout) == (0, "second\n")


def test_more_than_any_server_has_are_not_waited_for(make_server: MakeServer, tmp_path: Path) -> None:
    workspace, (first,) = prepared(make_server, tmp_path / "project", "first")
    put_nvidia_smi(first.programs, gpu_line(0), gpu_line(1))
    with pytest.raises(UsageError, match="No server has 3 GPUs; the most that one has is 2"):
        workspace.wait_for_gpus(3)


def test_what_a_server_says_need_not_be_of_the_right_type(workspace: Workspace) -> None:
    hostile: dict[str, Any] = {
        "gpus": [7, {"index": "x", "uuid": 3, "state": ["free"], "lease": "me", "processes": {}}, {"state": "free"}],
        "queue": {"job": 1},
        "problem": 5,
        "note": [],
        "ignored": 3,
    }
    server = next(iter(workspace.config.servers))
    found = parse_gpus(hostile, workspace.config, server)
    assert [gpu.state for gpu in found.gpus] == ["used", "free"]
    assert (found.queue, found.problem, found.notes) == ((), "", ())
