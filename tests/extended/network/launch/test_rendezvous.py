"""Where the nodes of a launch meet, on networks as people have them."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import JobError
from remote_tool.launchers.request import LaunchRequest
from remote_tool.workflows.jobs.follow import FollowOptions
from remote_tool.workflows.selection import JobSelection
from tests.figures import record_figure
from tests.project import write_configuration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool import Workspace
    from remote_tool.launchers.plan import LaunchPlan
    from remote_tool.workflows.jobs.follow import Chunk
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost

TOGETHER = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("sum", int(value), os.environ["GLOO_SOCKET_IFNAME"], flush=True)
print("rank", dist.get_rank(), flush=True)
dist.destroy_process_group()
"""
# Debian's own, and a machine that does not know its own name at all.
NAMES_ITSELF, KNOWS_NO_NAME = "127.0.0.1 localhost\n127.0.1.1 {name}\n", "127.0.0.1 localhost\n"
FIREWALL_BOUND = 15.0
# Of a machine that does other things too; the system gives up after two minutes.
SLACK = 10.0


@pytest.fixture
def trainer(make_workspace: MakeWorkspace) -> Callable[..., Workspace]:
    def make(*hosts: NetworkHost) -> Workspace:
        workspace = make_workspace(*hosts)
        (workspace.root / "together.py").write_text(TOGETHER)
        return workspace

    return make


def train(workspace: Workspace, *requests: LaunchRequest) -> list[str]:
    """Launch, and return the words of all ranks, sorted."""
    jobs = [job.id for request in requests for job in workspace.launch(request).jobs]
    shown: list[Chunk] = []
    answer = workspace.follow_jobs(JobSelection(jobs=tuple(jobs), stopped=True), shown.append)
    assert answer.exit_code == 0, b"".join(chunk.data for chunk in shown).decode()
    said: dict[tuple[str, str], bytes] = defaultdict(bytes)
    for chunk in shown:
        if chunk.stream.startswith("ranks"):
            said[chunk.job.id, chunk.stream] += chunk.data
    lines = [line.decode() for text in said.values() for line in text.splitlines()]
    return sorted(line for line in lines if line.startswith("sum"))


def plan(workspace: Workspace, **changes: object) -> LaunchPlan:
    return workspace.plan_torch(LaunchRequest("together.py", **changes))  # type: ignore[arg-type]


def add_docker_bridge(host: NetworkHost) -> None:
    """Docker gives every machine the same address."""
    for words in ("link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up"):
        assert host.run("ip", *words.split()).returncode == 0


@pytest.mark.row(90, 92)
@pytest.mark.slow
@pytest.mark.parametrize("etc_hosts", [NAMES_ITSELF, KNOWS_NO_NAME], ids=["own name is loopback", "no own name"])
def test_host_names_that_lead_nowhere_do_not_matter(
    network: Network, trainer: Callable[..., Workspace], etc_hosts: str
) -> None:
    """Also not to the elastic rendezvous, which asks for them; and a bridge like Docker's is not taken for the way."""
    hosts = network.hosts("first", "second")
    for host in hosts:
        (host.folder / "hosts").write_text(etc_hosts.format(name=host.name))
        add_docker_bridge(host)
    workspace = trainer(*hosts)
    assert plan(workspace).rendezvous.address == hosts[0].address
    elastic = LaunchRequest("together.py", servers=("second", "first"), max_restarts=1)
    # The static rendezvous asks for no names, so once is enough.
    static = [LaunchRequest("together.py", servers=("first", "second"))] if etc_hosts == KNOWS_NO_NAME else []
    assert train(workspace, elastic, *static) == ["sum 2 eth0"] * (2 + 2 * len(static))


@pytest.mark.row(90, 91, 92)
@pytest.mark.slow
def test_a_cluster_network_that_the_laptop_does_not_know_is_found(
    network: Network, trainer: Callable[..., Workspace]
) -> None:
    first, second = network.hosts("first", "second")
    # They reach each other on their own network only.
    first.cut_from(second)
    for number, host in enumerate((first, second), 1):
        add_docker_bridge(host)
        host.add_interface("ib0", f"192.168.7.{number}/24")
    workspace = trainer(first, second)
    began = time.monotonic()
    found = plan(workspace)
    assert time.monotonic() - began < FIREWALL_BOUND + SLACK
    assert found.rendezvous.address == "192.168.7.1"
    assert {server: route.interface for server, route in found.rendezvous.routes.items()} == {
        "first": "ib0",
        "second": "ib0",
    }
    assert train(workspace, LaunchRequest("together.py")) == ["sum 2 ib0"] * 2


@pytest.mark.row(91)
@pytest.mark.slow
def test_the_configured_address_is_the_one_that_is_used(network: Network, trainer: Callable[..., Workspace]) -> None:
    first, second = network.hosts("first", "second")
    for number, host in enumerate((first, second), 1):
        host.add_interface("ib0", f"192.168.7.{number}/24")
    workspace = trainer(first, second)
    assert plan(workspace).rendezvous.address == first.address
    text = workspace.config.local.config_file.read_text()
    workspace.config.local.config_file.write_text(text.replace("  first:\n", "  first:\n    address: 192.168.7.1\n"))
    chosen = plan(type(workspace).find(workspace.root))
    assert chosen.rendezvous.address == "192.168.7.1"
    assert chosen.rendezvous.routes["second"].interface == "ib0"


@pytest.mark.row(50, 91)
@pytest.mark.slow
def test_nodes_behind_a_jump_host_meet_by_themselves(
    network: Network, trainer: Callable[..., Workspace], own_home: Path
) -> None:
    jump, first, second = network.hosts("jump", "first", "second")
    for host in (first, second):
        host.cut_from_laptop()
    (own_home / ".ssh").mkdir()
    (own_home / ".ssh" / "config").write_text(
        f"Host jump\nHostName {jump.address}\nUser root\nIdentityFile {jump.key}\n"
        f"Host {first.address} {second.address}\nProxyJump jump\n"
    )
    workspace = trainer(first, second)
    found = plan(workspace).rendezvous
    assert found.address == first.address
    assert found.routes["second"].local_address == second.address


@pytest.mark.row(94)
@pytest.mark.slow
def test_a_firewall_between_the_nodes_is_named_before_anything_starts(
    network: Network, trainer: Callable[..., Workspace]
) -> None:
    first, second, third = network.hosts("first", "second", "third")
    workspace = trainer(first, second, third)
    third.cut_from(first)
    began = time.monotonic()
    with pytest.raises(JobError, match=rf"^third cannot reach first at .*{first.address}:\d+") as raised:
        workspace.launch(LaunchRequest("together.py"))
    seconds = time.monotonic() - began
    assert seconds < FIREWALL_BOUND + SLACK
    record_figure("a firewall between nodes is named (s)", seconds)
    assert "address" in raised.value.hint
    third.mend()
    # SSH goes through, and the ports of a launch do not.
    first.block_port("1024-65535")
    with pytest.raises(JobError, match=r"^second, third cannot reach first at ") as raised:
        workspace.launch(LaunchRequest("together.py"))
    assert "open the port" in raised.value.hint
    assert workspace.list_jobs(JobSelection(stopped=True)).jobs == ()


@pytest.mark.row(95)
@pytest.mark.slow
def test_nodes_meet_where_they_have_nothing_but_ipv6(network: Network, trainer: Callable[..., Workspace]) -> None:
    first, second = network.hosts("first", "second")
    first.cut_from(second)
    for number, host in enumerate((first, second), 1):
        host.run("sysctl", "-w", "net.ipv6.conf.default.accept_dad=0")
        host.add_interface("ib0", f"fd77::{number}/64")
    workspace = trainer(first, second)
    found = plan(workspace)
    assert found.rendezvous.address == "fd77::1"
    static, elastic = LaunchRequest("together.py"), LaunchRequest("together.py", max_restarts=1)
    assert train(workspace, static, elastic) == ["sum 2 ib0"] * 4


@pytest.mark.row(95)
@pytest.mark.slow
def test_a_server_is_configured_by_its_ipv6_address(network: Network, make_workspace: MakeWorkspace) -> None:
    host = network.host("first")
    workspace = make_workspace(host)
    text = workspace.config.local.config_file.read_text()
    workspace.config.local.config_file.write_text(text.replace(host.address, host.address6))
    six = type(workspace).find(workspace.root)
    (workspace.root / "new.txt").write_text("new")
    six.rsync()
    assert (host.home / "project" / "new.txt").read_text() == "new"
    assert six.run("true", ["first"]).values == {"first": 0}
    assert f"[{host.address6}]" in workspace.config.local.known_hosts.read_text() or host.address6 in (
        workspace.config.local.known_hosts.read_text()
    )


@pytest.mark.row(96)
@pytest.mark.slow
def test_nodes_may_have_different_numbers_of_gpus(network: Network, trainer: Callable[..., Workspace]) -> None:
    first, second = network.hosts("first", "second")
    for host, devices in ((first, "0,1"), (second, "0")):
        host.options["SetEnv"] = f"CUDA_VISIBLE_DEVICES={devices}"
        host.reload_sshd()
    workspace = trainer(first, second)
    assert train(workspace, LaunchRequest("together.py", processes="auto")) == ["sum 3 eth0"] * 3
    # The ranks count through all nodes, for those who follow one of them too.
    for rank in range(3):
        shown: list[Chunk] = []
        workspace.follow_jobs(JobSelection(servers=("first",), stopped=True), shown.append, FollowOptions(rank=rank))
        assert b"rank %d\n" % rank in b"".join(chunk.data for chunk in shown if chunk.stream.endswith("/out"))


@pytest.mark.row(98)
@pytest.mark.slow
def test_one_machine_by_two_addresses_is_refused(network: Network, trainer: Callable[..., Workspace]) -> None:
    first, second = network.hosts("first", "second")
    workspace = trainer(first, second)
    text = workspace.config.local.config_file.read_text()
    workspace.config.local.config_file.write_text(text.replace(second.address, first.address6))
    with pytest.raises(JobError, match="first and second are the same machine"):
        plan(type(workspace).find(workspace.root))
    write_configuration(workspace.root, [first, second])
    plan(type(workspace).find(workspace.root))
