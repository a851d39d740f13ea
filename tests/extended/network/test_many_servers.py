"""Many servers at once, one of them slow and one dead, with sshd's and the shell's usual limits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectError

if TYPE_CHECKING:
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network

SERVERS = 24
# Less than the dead one costs.
SLOW_SECONDS = 14


@pytest.mark.slow
def test_a_slow_server_and_a_dead_one_cost_their_own_time_only(network: Network, make_workspace: MakeWorkspace) -> None:
    hosts = network.hosts(*(f"gpu{number}" for number in range(SERVERS)))
    workspace = make_workspace(*hosts)
    slow, dead = hosts[3], hosts[5]
    (slow.home / ".bashrc").write_text(f"sleep {SLOW_SECONDS}\n")
    dead.cut()
    answered: dict[str, float] = {}
    began = time.monotonic()

    def note(server: str, _stream: object, _data: bytes) -> None:
        answered.setdefault(server, time.monotonic() - began)

    results = workspace.run("echo here", on_output=note, check=False)
    assert list(results.errors) == [dead.name]
    assert isinstance(results.errors[dead.name], ConnectError)
    assert len(answered) == SERVERS - 1
    *others, last = sorted(answered, key=lambda server: answered[server])
    assert (last, answered[last] > SLOW_SECONDS) == (slow.name, True)
    assert answered[others[-1]] < SLOW_SECONDS
