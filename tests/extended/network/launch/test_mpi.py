"""MPI over machines of their own: each has its own address, and none has an SSH key for another."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.jobs.job import JobState
from remote_tool.launchers.request import LaunchRequest
from remote_tool.workflows.selection import JobSelection
from tests.extended.network.launch.test_launch import has_ended, wait_until
from tests.extended.workflows.launch.test_mpi import MPI, pytestmark  # noqa: F401 - it says where MPI is missing

if TYPE_CHECKING:
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost


def test_three_machines_add_up_and_one_that_loses_its_power_ends_the_rest(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    hosts = network.hosts("first", "second", "third")
    workspace = make_workspace(*hosts)
    (workspace.root / "mpi.py").write_text(MPI)
    jobs = workspace.launch_mpi(LaunchRequest("mpi.py", processes=2)).jobs
    chosen = JobSelection(jobs=tuple(job.id for job in jobs), stopped=True)
    ended = workspace.wait_jobs(chosen, timeout=300).jobs
    workspace.pull_logs(chosen)
    out = (workspace.config.local.job(jobs[0].id) / "job.out").read_text()
    assert {job.state for job in ended} == {JobState.SUCCEEDED}, [job.reason for job in ended]
    assert [line.split()[:2] for line in sorted(out.splitlines())] == [["6", str(rank)] for rank in range(6)]
    for host in hosts:
        shutil.rmtree(host.home / "project" / ".jobs")
    workspace.launch_mpi(LaunchRequest("sleep 600", processes=2, lost_after=5))
    hosts[2].power_off()
    for host in hosts[:2]:
        wait_until(partial(has_ended, host), "the end of the rest", 60)
        wait_until(partial(_is_idle, host), "the end of its processes", 60)


def _is_idle(host: NetworkHost) -> bool:
    return not host.pids()
