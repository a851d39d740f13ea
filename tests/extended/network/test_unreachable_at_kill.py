"""A stop while one server cannot be reached: the others stop, it is named, and it is made up for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobState
from remote_tool.transport.ssh import login_errors
from remote_tool.workflows.selection import JobSelection
from remote_tool.workflows.start.start import StartRequest
from tests.program import remote_tool

if TYPE_CHECKING:
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost

SWEPT = JobSelection(tags=("sweep",), stopped=True)


def sleepers(host: NetworkHost) -> list[str]:
    return [command for command in host.pids().values() if command == "sleep 1000"]


@pytest.mark.row(104)
@pytest.mark.slow
def test_the_rest_is_stopped_the_unreachable_is_named_and_stopped_when_it_answers(
    network: Network, make_workspace: MakeWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_errors, "CONNECT_SECONDS", 4.0)
    first, second, third = network.hosts("first", "second", "third")
    notices: list[str] = []
    workspace = make_workspace(first, second, third, notices=notices)
    request = StartRequest("trap 'exit 7' TERM; sleep 1000 & wait", tags=("sweep",), sync=False)
    jobs = {job.server: job for job in workspace.start_jobs(request).jobs}
    spared = workspace.start("second", "exec sleep 2000", sync=False)
    second.cut()
    began = time.monotonic()
    answer = workspace.stop_jobs(JobSelection(tags=("sweep",)), grace=60)
    # Neither the grace nor the link was waited for.
    assert time.monotonic() - began < 30
    assert {job.server: job.state for job in answer.jobs} == {
        "first": JobState.KILLED,
        "second": JobState.UNREACHABLE,
        "third": JobState.KILLED,
    }
    assert list(answer.errors) == ["second"]
    assert answer.exit_code == 3
    assert [sleepers(host) for host in (first, second, third)] == [[], ["sleep 1000"], []]
    assert f"second: job {jobs['second'].key} will be stopped when the server answers again" in notices
    # Nobody has to remember it: the next question to the server does it.
    second.mend()
    (stopped,) = (job for job in workspace.list_jobs(SWEPT).jobs if job.server == "second")
    assert (stopped.state, stopped.exit_code) == (JobState.KILLED, 7)
    assert sleepers(second) == []
    assert spared.state is JobState.RUNNING
    spared.kill()


@pytest.mark.row(104)
@pytest.mark.slow
def test_the_program_says_which_server_and_ends_with_three(network: Network, make_workspace: MakeWorkspace) -> None:
    first, second = network.hosts("first", "second")
    workspace = make_workspace(first, second)
    workspace.start_jobs(StartRequest("exec sleep 1000", tags=("sweep",), sync=False))
    second.block_port(22)
    killed = remote_tool("job-kill", "--tag", "sweep", "--yes", cwd=workspace.root)
    assert killed.returncode == 3
    assert f"second: {second.address}:22 did not answer within 15 s" in killed.stderr
    assert sleepers(first) == []
    second.mend()
    listed = remote_tool("job-list", "--stopped", cwd=workspace.root)
    assert listed.returncode == 0
    assert listed.stdout.count("killed") == 2
    assert sleepers(second) == []


@pytest.mark.row(104)
@pytest.mark.slow
def test_a_stop_with_sigkill_is_made_up_for_with_sigkill(
    network: Network, make_workspace: MakeWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_errors, "CONNECT_SECONDS", 4.0)
    host = network.host("first")
    workspace = make_workspace(host)
    job = workspace.start("first", "trap 'echo polite' TERM; while :; do sleep 0.1; done", sync=False)
    host.cut()
    workspace.stop_jobs(JobSelection(jobs=(job.id,)), signal="SIGKILL")
    host.mend()
    assert job.state is JobState.KILLED
    assert job.job.signal == "SIGKILL"
    assert list(job.tail()) == []
