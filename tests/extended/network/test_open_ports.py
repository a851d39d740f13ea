"""What of ours listens, seen from the other machines on the network."""

from __future__ import annotations

import ast
import asyncio
import ipaddress
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from remote_tool.jobs.job import JobSpec, LaunchWatch, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import ignore
from remote_tool.workflows.selection import JobSelection
from remote_tool.workflows.start.start_specs import start_specs
from tests.extended.agent.conftest import wait_until

if TYPE_CHECKING:
    from remote_tool import Workspace
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost

PACKAGE = Path(__file__).parents[3] / "remote_tool"
LISTENING = "0A"
PORT = 23456


class Listener(NamedTuple):
    """A TCP socket that waits for connections."""

    address: str
    port: int


def listeners(host: NetworkHost) -> set[Listener]:
    """Return every listening socket of a host but sshd's."""
    found = set()
    for line in host.run("cat", "/proc/net/tcp", "/proc/net/tcp6").stdout.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == LISTENING:
            raw, _, port = fields[1].partition(":")
            # The kernel writes each 32-bit word as this machine's number.
            words = struct.pack(f"={len(raw) // 8}I", *(int(raw[i : i + 8], 16) for i in range(0, len(raw), 8)))
            found.add(Listener(str(ipaddress.ip_address(words)), int(port, 16)))
    return {each for each in found if each.port != host.port}


def start_watched(workspace: Workspace, address: str) -> tuple[str, ...]:
    """Start a job on each of two servers, whose supervisors watch each other at an address; without torch."""
    watch = LaunchWatch(("first", "second"), address, PORT, "5" * 64)
    specs = [
        JobSpec(
            new_job_id(), name, "exec sleep 1000", launch_id="watched", node_rank=rank, rank_offset=rank, watch=watch
        )
        for rank, name in enumerate(watch.servers)
    ]

    async def work() -> None:
        async with HostPool(workspace.config) as pool:
            context = Context(workspace.config, pool, Registry(workspace.config.local.jobs), ignore)
            (await start_specs(context, specs)).raise_if_any_failed()

    asyncio.run(work())
    return tuple(spec.id for spec in specs)


@pytest.mark.row(105)
@pytest.mark.slow
def test_a_launch_listens_on_the_address_where_its_nodes_meet_and_nowhere_else(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    first, second, stranger = network.hosts("first", "second", "stranger")
    for number, host in enumerate((first, second), 1):
        host.add_interface("ib0", f"192.168.7.{number}/24")
    workspace = make_workspace(first, second)
    jobs = start_watched(workspace, "192.168.7.1")
    assert listeners(first) == {Listener("192.168.7.1", PORT)}
    assert listeners(second) == set()
    for address in (first.address, first.address6):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, PORT), timeout=30)
        assert stranger.run("bash", "-c", f"exec 3<> /dev/tcp/{address}/{PORT}").returncode != 0
    workspace.stop_jobs(JobSelection(jobs=jobs), signal="SIGKILL")
    # The answer comes when the job has ended; its supervisor closes what it had just after that.
    wait_until(lambda: listeners(first) == set())


@pytest.mark.row(105)
@pytest.mark.slow
def test_a_job_without_other_nodes_opens_no_port(network: Network, make_workspace: MakeWorkspace) -> None:
    host = network.host("first")
    workspace = make_workspace(host)
    job = workspace.start("first", "exec sleep 1000", sync=False)
    assert listeners(host) == set()
    job.kill()


@pytest.mark.row(105)
def test_nothing_of_ours_unpickles() -> None:
    loaders = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "torch"}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not loaders & {name.partition(".")[0] for name in names}, file
