"""Between the nodes of a launch: a link that comes back in time ends nothing, and one that does not ends all."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool.jobs.job import JobSpec, JobState, LaunchWatch, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import ignore
from remote_tool.workflows.selection import JobSelection
from remote_tool.workflows.start.start_specs import start_specs
from tests.extended.agent.conftest import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool import Workspace
    from remote_tool.jobs.job import Job
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost

PORT = 23457
NAMES = ("first", "second")
# A connection that TCP itself is left to mend is tried again after 12.6 seconds without a link, and then after 25.4.
CUT = 14.0
LOST_AFTER = 24.0
# From the loss of a node to the end of the launch.
BOUND = 15.0
# Of a machine that does other things too; without the promise it is a minute.
SLACK = 10.0
# Each ends when its own server has the sign.
UNTIL_SIGN = "until [ -e sign ]; do sleep 0.1; done; exit "


class Watched:
    """A job on each of two servers, whose supervisors watch each other; without torch."""

    def __init__(self, workspace: Workspace, hosts: list[NetworkHost], lost_after: float, *statuses: int) -> None:
        self._workspace = workspace
        self._hosts = hosts
        watch = LaunchWatch(NAMES, hosts[0].address, PORT, "5" * 64, lost_after)
        commands = [UNTIL_SIGN + str(status) for status in statuses or (0, 0)]
        specs = [
            JobSpec(new_job_id(), name, commands[rank], launch_id="l", node_rank=rank, rank_offset=rank, watch=watch)
            for rank, name in enumerate(NAMES)
        ]
        self._ids = tuple(spec.id for spec in specs)
        asyncio.run(self._start(specs))

    async def _start(self, specs: list[JobSpec]) -> None:
        config = self._workspace.config
        async with HostPool(config) as pool:
            context = Context(config, pool, Registry(config.local.jobs), ignore)
            (await start_specs(context, specs)).raise_if_any_failed()

    def give_sign(self, rank: int) -> None:
        (self._hosts[rank].home / "project" / "sign").touch()

    def has_ended(self, rank: int) -> bool:
        return (self._hosts[rank].home / "project" / ".jobs" / self._ids[rank] / "ended.json").exists()

    def jobs(self) -> list[Job]:
        """Both, once they have ended and nothing is left of them."""
        wait_until(lambda: self.has_ended(0) and self.has_ended(1))
        for host in self._hosts:
            wait_until(lambda host=host: not host.pids())  # type: ignore[misc]
        found = {job.id: job for job in self._workspace.list_jobs(JobSelection(stopped=True)).jobs}
        return [found[job_id] for job_id in self._ids]


def pull_the_cable(host: NetworkHost) -> None:
    host.cut()


def lose_what_it_says(host: NetworkHost) -> None:
    host.mute()


@pytest.mark.row(158)
@pytest.mark.slow
@pytest.mark.parametrize("to", [0, 1])
@pytest.mark.parametrize("happens", [pull_the_cable, lose_what_it_says])
def test_a_link_that_is_back_within_lost_after_ends_nothing(
    network: Network, make_workspace: MakeWorkspace, happens: Callable[[NetworkHost], None], to: int
) -> None:
    hosts = network.hosts(*NAMES)
    launch = Watched(make_workspace(*hosts), hosts, LOST_AFTER)
    happens(hosts[to])
    time.sleep(CUT)
    hosts[to].mend()
    # Whoever was not heard of since is lost by now.
    time.sleep(LOST_AFTER - CUT + 2)
    assert not launch.has_ended(0)
    assert not launch.has_ended(1)
    launch.give_sign(0)
    launch.give_sign(1)
    assert [job.state for job in launch.jobs()] == [JobState.SUCCEEDED] * 2


@pytest.mark.row(158, 88)
@pytest.mark.slow
def test_after_a_silence_a_node_that_dies_is_still_missed_at_once(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    hosts = network.hosts(*NAMES)
    launch = Watched(make_workspace(*hosts), hosts, 60)
    hosts[1].cut()
    time.sleep(7)
    hosts[1].mend()
    time.sleep(4)
    began = time.monotonic()
    hosts[1].signal_all(signal.SIGKILL)
    wait_until(lambda: launch.has_ended(0))
    assert time.monotonic() - began < BOUND + SLACK


@pytest.mark.row(158, 88)
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_machine_that_rebooted_is_missed_at_once(network: Network, make_workspace: MakeWorkspace, rank: int) -> None:
    hosts = network.hosts(*NAMES)
    launch = Watched(make_workspace(*hosts), hosts, 60)
    began = time.monotonic()
    hosts[rank].reboot()
    wait_until(lambda: launch.has_ended(1 - rank))
    assert time.monotonic() - began < BOUND + SLACK


@pytest.mark.row(158)
@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 3])
def test_how_a_node_ended_while_its_link_was_away_is_told_when_it_is_back(
    network: Network, make_workspace: MakeWorkspace, status: int
) -> None:
    hosts = network.hosts(*NAMES)
    launch = Watched(make_workspace(*hosts), hosts, 60, 0, status)
    hosts[1].cut()
    launch.give_sign(1)
    wait_until(lambda: launch.has_ended(1))
    time.sleep(CUT)
    assert not launch.has_ended(0)
    hosts[1].mend()
    if not status:
        launch.give_sign(0)
    first, second = launch.jobs()
    assert second.exit_code == status
    assert first.lost_node is None
    assert first.state is (JobState.FAILED if status else JobState.SUCCEEDED)
    assert ("stopped because second (node 1) ended with exit code 3" in first.reason) is bool(status)


@pytest.mark.row(158)
@pytest.mark.slow
def test_why_a_launch_ends_is_told_to_a_node_whose_link_was_away(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    hosts = network.hosts(*NAMES)
    launch = Watched(make_workspace(*hosts), hosts, 60, 3, 0)
    hosts[1].cut()
    time.sleep(6)
    launch.give_sign(0)
    wait_until(lambda: launch.has_ended(0))
    # Longer than the first node stays for those that it can reach.
    time.sleep(CUT)
    hosts[1].mend()
    _, second = launch.jobs()
    assert second.lost_node is None
    assert "stopped because first (node 0) ended with exit code 3" in second.reason
