"""check --exercise over three machines, of which one has a slow cable."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network

pytestmark = pytest.mark.slow


@pytest.mark.row(319)
def test_the_machine_with_the_slow_cable_is_named_and_not_its_neighbours(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    hosts = network.hosts("first", "second", "third")
    workspace = make_workspace(*hosts, environment={"existing": str(Path(sys.prefix))})
    hosts[1].slow("40mbit")
    answer = workspace.check(exercise=True, seconds=60)
    networks = {
        report.name: check for report in answer.servers for check in report.checks if check.name == "all-reduce"
    }
    assert answer.exercise is not None
    assert answer.exercise.ranks == 3
    assert {name: check.status.value for name, check in networks.items()} == {
        "first": "ok",
        "second": "fail",
        "third": "ok",
    }, networks
    assert "Mbit/s with each neighbour, " in networks["second"].value
    assert networks["first"].value.endswith(" bus bandwidth, 3 ranks")
