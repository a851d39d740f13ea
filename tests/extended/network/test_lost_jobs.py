"""Jobs on servers that lose their cable or their power, share a home, or have a clock of their own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobState
from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh import ssh_config
from remote_tool.workflows.agent_client import call
from remote_tool.workflows.selection import JobSelection
from tests.network_hosts import fake_time_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from typing import Any

    from remote_tool import RunningJob, Workspace
    from remote_tool.workflows.jobs.follow import Chunk
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost

LAST_PID = "/proc/sys/kernel/ns_last_pid"


def until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait for what must come true; fail when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def begin(workspace: Workspace, server: str, command: str) -> RunningJob:
    return workspace.start(server, command, sync=False)


def only(job: RunningJob) -> JobSelection:
    return JobSelection(jobs=(job.id,), stopped=True)


def folder_of(host: NetworkHost, job: RunningJob) -> Path:
    return host.home / "project" / ".jobs" / job.id


def record_of(host: NetworkHost, job: RunningJob, name: str) -> dict[str, Any]:
    return dict(json.loads((folder_of(host, job) / f"{name}.json").read_text()))


def count_from(host: NetworkHost, pid: int) -> None:
    """Let new processes have higher pids than this."""
    host.run("sh", "-c", f"echo {pid} > {LAST_PID}")


def occupy(host: NetworkHost, pids: Iterable[int]) -> set[int]:
    """Start innocent processes that have these pids, which are free; return those that came to be."""
    # Whatever starts them must not sit on such a pid itself.
    count_from(host, 30000)
    each = "exec setsid sleep 1000 > /dev/null 2>&1 &"
    host.run("sh", "-c", "\n".join(f"echo {pid - 1} > {LAST_PID}; {each}" for pid in pids))
    until(lambda: not any(command.startswith(("sh", "setsid")) for command in host.pids().values()))
    return {pid for pid, command in host.pids().items() if command == "sleep 1000"}


@pytest.mark.picked
@pytest.mark.row(5)
@pytest.mark.slow
def test_a_job_whose_server_rebooted_is_lost_and_nobody_who_got_its_pid_is_signalled(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    host = network.host("first")
    workspace = make_workspace(host)
    job = begin(workspace, "first", "sleep 500")
    old = set(host.pids())
    host.reboot()
    count_from(host, 20000)
    innocent = occupy(host, old)
    assert innocent >= {record_of(host, job, "started")["pid"]}
    assert job.state is JobState.LOST
    assert job.job.reason == "the server rebooted"
    assert (job.job.exit_code, job.job.signal) == (None, None)
    answer = workspace.stop_jobs(only(job), grace=0)
    assert answer.jobs[0].state is JobState.LOST
    assert not (folder_of(host, job) / "ended.json").exists()
    assert innocent <= set(host.pids())


@pytest.mark.row(5)
@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_whoever_follows_a_job_hears_of_the_reboot(network: Network, make_workspace: MakeWorkspace) -> None:
    host = network.host("first")
    workspace = make_workspace(host)
    job = begin(workspace, "first", "echo begun; sleep 500")
    shown: list[bytes] = []

    def show(chunk: Chunk) -> None:
        shown.append(chunk.data)

    following = threading.Thread(target=lambda: workspace.follow_jobs(only(job), show), daemon=True)
    following.start()
    until(lambda: shown)
    host.power_off()
    host.power_on()
    following.join(60)
    assert not following.is_alive()
    assert b"".join(shown) == b"begun\n"
    assert [each.reason for each in workspace.select_local(only(job))] == ["the server rebooted"]


@pytest.mark.row(14)
@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_job_goes_on_while_the_cable_is_out(network: Network, make_workspace: MakeWorkspace) -> None:
    host = network.host("first")
    workspace = make_workspace(host)
    job = begin(workspace, "first", "for i in $(seq 100); do echo line $i; sleep 0.05; done; echo pid $$")
    pid = record_of(host, job, "started")["pid"]
    shown: list[bytes] = []
    begun = threading.Event()

    def show(chunk: Chunk) -> None:
        shown.append(chunk.data)
        begun.set()

    def pull() -> None:
        begun.wait(300)
        host.cut()
        # The connection is given up here and there, and the job ends in the dark.
        host.drop_connections()
        until((folder_of(host, job) / "ended.json").exists)
        host.mend()

    puller = threading.Thread(target=pull)
    puller.start()
    answer = workspace.follow_jobs(only(job), show)
    puller.join()
    assert answer.jobs[0].state is JobState.SUCCEEDED
    assert b"".join(shown) == b"".join(b"line %d\n" % number for number in range(1, 101)) + b"pid %d\n" % pid


@pytest.mark.row(14)
@pytest.mark.slow
def test_a_job_goes_on_when_every_session_of_its_user_is_killed(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    host = network.host("first")
    workspace = make_workspace(host)
    job = begin(workspace, "first", "sleep 500")
    record = record_of(host, job, "started")
    host.drop_connections()
    assert job.state is JobState.RUNNING
    assert {record["pid"], record["supervisor"]["pid"]} <= set(host.pids())
    assert job.kill() is JobState.KILLED
    assert not any("sleep 500" in command for command in host.pids().values())


@pytest.mark.row(30)
@pytest.mark.slow
def test_servers_that_share_a_home_do_not_judge_each_others_jobs(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    first = network.host("first")
    second = network.host("second", shares_home_with=first)
    count_from(second, 20000)
    workspace = make_workspace(first, second)
    jobs = [begin(workspace, name, "sleep 500") for name in ("first", "second")]
    # The same pids mean others there.
    innocent = occupy(second, first.pids())
    assert innocent >= {record_of(first, jobs[0], "started")["pid"]}
    seen = workspace.list_jobs()
    assert {job.id: (job.server, job.state) for job in seen.jobs} == {
        jobs[0].id: ("first", JobState.RUNNING),
        jobs[1].id: ("second", JobState.RUNNING),
    }
    refusal = ask(workspace, "second", "stop", {"ids": [jobs[0].id], "signal": "SIGKILL", "grace": 0})["jobs"][0]
    assert refusal["error"] == "it cannot be stopped from here: it runs on another machine or container: first"
    assert set(second.pids()) >= innocent
    assert not (folder_of(first, jobs[0]) / "ended.json").exists()
    # Each is ended where it is.
    workspace.stop_jobs(JobSelection(jobs=tuple(job.id for job in jobs)))
    until(lambda: not any("sleep 500" in command for command in (first.pids() | second.pids()).values()))
    assert innocent <= set(second.pids())


@pytest.mark.row(30)
@pytest.mark.slow
def test_a_name_that_leads_to_several_machines_with_one_home_makes_no_job_lost(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    """As the login nodes of a cluster do."""
    first = network.host("first")
    other = network.host("other", shares_home_with=first)
    workspace = make_workspace(first)
    job = begin(workspace, "first", "echo done; sleep 500")
    text = workspace.config.local.config_file.read_text()
    workspace.config.local.config_file.write_text(text.replace(first.address, other.address))
    astray = type(workspace).find(workspace.root)
    (seen,) = astray.list_jobs(only(job)).jobs
    assert seen.state is JobState.UNREACHABLE
    assert seen.reason == "last seen running; it runs on another machine or container: first"
    assert "it cannot be stopped from here" in str(astray.stop_jobs(only(job)).errors["first"])
    workspace.config.local.config_file.write_text(text)
    assert job.state is JobState.RUNNING
    job.kill()


@pytest.mark.row(31)
@pytest.mark.slow
@pytest.mark.skipif(fake_time_library() is None, reason="needs libfaketime")
@pytest.mark.parametrize("seconds", [-7200, 7200])
def test_a_wrong_clock_is_told_and_changes_no_duration(
    network: Network, make_workspace: MakeWorkspace, seconds: int
) -> None:
    host = network.host("first")
    notices: list[str] = []
    workspace = make_workspace(host, notices=notices)
    host.skew_clock(seconds)
    job = begin(workspace, "first", "sleep 1; date +%s")
    # It jumps while the job runs, back and forth.
    host.skew_clock(-2 * seconds)
    assert job.wait(300) is JobState.SUCCEEDED
    assert int(next(iter(job.tail()))) == pytest.approx(time.time() - 2 * seconds, abs=60)
    # A jump would make it hours.
    assert 0.9 < record_of(host, job, "ended")["duration"] < 60
    way = "behind" if seconds < 0 else "ahead of"
    assert any(notice == f"first: its clock is 2 h {way} this computer's" for notice in notices), notices
    later = begin(workspace, "first", "true")
    later.wait(300)
    # Jobs are in the order in which they were asked for, whatever the server's clock said.
    assert [each.id for each in workspace.list_jobs(JobSelection(stopped=True)).jobs] == [job.id, later.id]


@pytest.mark.row(31)
@pytest.mark.slow
@pytest.mark.skipif(fake_time_library() is None, reason="needs libfaketime")
def test_a_clock_that_is_a_little_off_is_nothing_to_tell(network: Network, make_workspace: MakeWorkspace) -> None:
    host = network.host("first")
    notices: list[str] = []
    workspace = make_workspace(host, notices=notices)
    host.skew_clock(-30)
    begin(workspace, "first", "true").wait(300)
    assert not [notice for notice in notices if "clock" in notice]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepalive thirty times as fast."""
    monkeypatch.setattr(ssh_config, "KEEPALIVE_SECONDS", 0.5)


def ask(workspace: Workspace, server: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
    """Ask a server's supervisor directly."""

    async def work() -> dict[str, Any]:
        async with HostPool(workspace.config) as pool:
            return await call(await pool.host(server), workspace.config, operation, request)

    return asyncio.run(work())
