"""bandwidth on networks of which one cable is slow and one way is closed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.figures import record_figure
from tests.program import remote_tool

if TYPE_CHECKING:
    from remote_tool.workflows.servers.bandwidth import BandwidthAnswer
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network


def rates(answer: BandwidthAnswer) -> dict[tuple[str, str], float]:
    """Mbit/s of every direction."""
    return {(link.source, link.target): 1000 * (link.gbit or 0.0) for link in answer.links}


@pytest.mark.slow
def test_a_slow_cable_shows_and_a_closed_way_is_named(network: Network, make_workspace: MakeWorkspace) -> None:
    hosts = _, second, third = network.hosts("first", "second", "third")
    program = shutil.which("iperf3")
    if program is not None:
        assert second.run("mount", "--bind", "/dev/null", program).returncode == 0
    workspace = make_workspace(*hosts)
    third.slow("100mbit")
    answer = workspace.measure_bandwidth(seconds=0.6)
    assert answer.exit_code == 0
    slow = [rate for pair, rate in rates(answer).items() if "third" in pair]
    assert 0 < min(slow) <= max(slow) < min(rate for pair, rate in rates(answer).items() if "third" not in pair)
    record_figure("measured on a cable of 100 Mbit/s, least and most (Mbit/s)", f"{min(slow):.1f}, {max(slow):.1f}")
    methods = {(link.source, link.target): link.method for link in answer.links}
    assert methods["first", "third"] == ("own" if program is None else "iperf3")
    assert methods["first", "second"] == "own"
    assert {link.interface for link in answer.links} == {"eth0"}
    assert answer.slowest is not None
    assert "third" in {answer.slowest.source, answer.slowest.target}
    third.mend()
    second.cut_from(third)
    told = remote_tool("bandwidth", "--seconds", "0.2", cwd=workspace.root)
    assert told.returncode == 3
    assert [line.split() for line in told.stdout.splitlines()][2][-1] == "?"
    assert told.stderr.count("error: ") == 1
    assert "error: second and third: port " in told.stderr
    assert f"{second.address}: no answer in time: a firewall?" in told.stderr
    assert "hint: Let the servers reach each other on all ports" in told.stderr


@pytest.mark.slow
def test_a_server_that_is_away_is_named_and_the_configured_address_is_used(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    hosts = first, second, _ = network.hosts("first", "second", "third")
    for number, host in enumerate((first, second), 1):
        host.add_interface("ib0", f"192.168.7.{number}/24")
    workspace = make_workspace(*hosts)
    text = workspace.config.local.config_file.read_text()
    text = text.replace("  first:\n", "  first:\n    address: 192.168.7.1\n")
    # Nobody listens there.
    workspace.config.local.config_file.write_text("port: 2222".join(text.rsplit("port: 22", 1)))
    answer = type(workspace).find(workspace.root).measure_bandwidth(seconds=0.2)
    assert list(answer.errors) == ["third"]
    assert answer.exit_code == 3
    there, back = answer.links
    assert (there.address, there.interface, there.target_interface) == ("192.168.7.1", "ib0", "ib0")
    assert back.gbit is not None
