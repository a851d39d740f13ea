"""Machines of their own with one home, as on NFS: found, prepared once, and each job is judged where it runs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, JobState, Workspace
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.agent_client import call
from tests.extended.environments.test_facts import stub
from tests.network_hosts import HOME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost

ALL = JobSelection(stopped=True, hidden=True)


@pytest.fixture
def trio(network: Network) -> list[NetworkHost]:
    """Two machines with one home, which their stat calls NFS, and a third one with its own."""
    first = network.host("first")
    hosts = [first, network.host("second", shares_home_with=first), network.host("third")]
    for host in hosts[:2]:
        call_disks_nfs(host)
    return hosts


def call_disks_nfs(host: NetworkHost) -> None:
    """Have the stat of a machine call every disk NFS."""
    stub(
        host.home / "bin",
        "stat",
        'case " $* " in *" -f "*) /usr/bin/stat "$@" | sed "s/[^ ]*$/nfs/" ;; *) exec /usr/bin/stat "$@" ;; esac',
    )
    host.options["SetEnv"] = f"PATH={HOME}/bin:/usr/local/bin:/usr/bin:/bin"
    host.reload_sshd()


@pytest.fixture
def network_disk() -> Iterator[Path]:
    """A folder that every machine sees; their /tmp are their own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_machines_with_one_home_are_found_and_prepared_once(
    trio: list[NetworkHost], make_workspace: MakeWorkspace
) -> None:
    workspace = make_workspace(*trio)
    assert '{"groups": [["first", "second"]]}' in workspace.config.local.sharing.read_text()
    logs = [log.name for log in workspace.config.local.logs.glob("*.log")]
    assert len([name for name in logs if "rsync" in name]) == 2, "one for the two, one for the third"
    assert len([name for name in logs if "environment" in name]) == 2
    assert not list((trio[0].home / "project" / ".remote-scripts").glob("mark-*"))
    (workspace.root / "new.py").write_text("")
    *pair, third = (len(each.sent) for each in workspace.rsync().values.values())
    assert (sorted(pair), third) == ([0, 1], 1)


@pytest.mark.row(168)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["project", "dev/digits"])
def test_machines_that_share_only_the_projects_folder_are_found_too(
    network: Network, make_workspace: MakeWorkspace, network_disk: Path, name: str
) -> None:
    hosts = network.hosts("first", "second")
    for host in hosts:
        call_disks_nfs(host)
        (host.home / name.partition("/")[0]).symlink_to(network_disk)
    workspace = make_workspace(*hosts, name=name)
    assert '{"groups": [["first", "second"]]}' in workspace.config.local.sharing.read_text()
    assert len([log for log in workspace.config.local.logs.glob("*.log") if "rsync" in log.name]) == 1
    assert workspace.run("python hello.py").values == {"first": 0, "second": 0}
    jobs = [workspace.start(host.name, "exit 3") for host in hosts]
    assert [job.wait(300) for job in jobs] == [JobState.FAILED] * 2
    assert {job.id: job.server for job in workspace.list_jobs(ALL).jobs} == {
        job.id: host.name for job, host in zip(jobs, hosts, strict=True)
    }


@pytest.mark.row(30)
@pytest.mark.slow
def test_a_job_is_judged_and_stopped_where_it_runs_and_found_there_by_another_laptop(
    trio: list[NetworkHost], make_workspace: MakeWorkspace, tmp_path: Path
) -> None:
    workspace = make_workspace(*trio[:2])
    here, there = (workspace.start(name, "sleep 500", sync=False) for name in ("first", "second"))
    short = workspace.start("second", "exit 3", sync=False)
    assert short.wait(60) is JobState.FAILED
    assert {job.id: (job.server, job.state) for job in workspace.list_jobs(ALL).jobs} == {
        here.id: ("first", JobState.RUNNING),
        there.id: ("second", JobState.RUNNING),
        short.id: ("second", JobState.FAILED),
    }
    other = tmp_path / "other" / "project"
    shutil.copytree(workspace.root, other, ignore=shutil.ignore_patterns("jobs", "logs"))
    laptop = Workspace.find(other)
    adopted = {job.id: job.server for job in laptop.list_jobs(ALL).jobs}
    assert adopted == {here.id: "first", there.id: "second", short.id: "second"}
    stopped = laptop.stop_jobs(JobSelection(jobs=(there.id,)), signal="SIGKILL").raise_if_any_failed()
    assert [(job.server, job.state) for job in stopped.jobs] == [("second", JobState.KILLED)]
    assert here.state is JobState.RUNNING
    assert here.kill("SIGKILL") is JobState.KILLED


@pytest.mark.row(30)
@pytest.mark.slow
async def test_a_machine_asked_about_the_job_of_another_one_calls_it_neither_lost_nor_its_own(
    trio: list[NetworkHost], make_workspace: MakeWorkspace
) -> None:
    workspace = make_workspace(*trio[:2])
    job = workspace.start("second", "sleep 500", sync=False)
    async with HostPool(workspace.config) as pool:
        host = await pool.host("first")
        status = await call(host, workspace.config, "status", {"ids": [job.id], "skip": []})
        stop = await call(host, workspace.config, "stop", {"ids": [job.id], "signal": "SIGKILL", "grace": None})
    assert [each["state"] for each in status["jobs"]] == ["elsewhere"]
    assert "cannot be stopped from here" in stop["jobs"][0]["error"]
    assert job.state is JobState.RUNNING
    assert job.kill("SIGKILL") is JobState.KILLED
