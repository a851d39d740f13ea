"""A sync that is relayed between machines of their own: links that are missing, and links that go in the middle."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.below import files_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from remote_tool import Workspace
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost

pytestmark = pytest.mark.slow

LARGE = 3_000_000
PATIENCE = 300.0


@contextmanager
def begin_relay(workspace: Workspace) -> Iterator[subprocess.Popen[bytes]]:
    """Begin a sync, which is killed at the end if it still goes on."""
    words = [sys.executable, "-m", "remote_tool", "rsync", "--relay"]
    program = subprocess.Popen(
        words, cwd=workspace.root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {PATIENCE:.0f} s"
        time.sleep(0.01)


def digests(folder: Path) -> dict[str, str]:
    """Return a hash of each file that was sent."""
    files = {str(path.relative_to(folder)): path for path in files_below(folder)}
    ours = (".remote/", ".remote-scripts/", ".jobs/")
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if not name.startswith(ours)
    }


def state(host: NetworkHost) -> str:
    return (host.home / "project" / ".remote-scripts" / "sync").read_text().split()[0]


def is_idle(host: NetworkHost) -> bool:
    """Whether nothing of us runs there: neither a share nor a fetch may stay."""
    return not [command for command in host.pids().values() if "run_control" in command or "rsync" in command]


def fill(workspace: Workspace) -> dict[str, str]:
    (workspace.root / "sub").mkdir(exist_ok=True)
    (workspace.root / "sub" / "large.bin").write_bytes(os.urandom(LARGE))
    (workspace.root / "small.py").write_text("print(1)\n")
    return digests(workspace.root)


def test_it_goes_between_machines_and_to_one_that_cannot_be_reached_from_the_first_from_here(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    notices: list[str] = []
    hosts = network.hosts("one", "two", "three")
    workspace = make_workspace(*hosts, notices=notices)
    wanted = fill(workspace)
    workspace.rsync(["one"])
    hosts[0].cut_from(hosts[2])
    results = workspace.rsync(relay=True).values
    assert results["two"].relayed >= LARGE
    assert [digests(host.home / "project") for host in hosts] == [wanted] * 3
    assert [state(host) for host in hosts] == ["complete"] * 3
    if not results["three"].relayed:
        assert any(text.startswith("three: the project is sent from here, not fetched from one: ") for text in notices)
    else:
        assert results["three"].relayed_by == "two"
    for host in hosts:
        wait_until(partial(is_idle, host), "the end of what was opened")


@pytest.mark.row(70)
def test_a_cut_in_the_middle_leaves_what_the_next_sync_mends(network: Network, make_workspace: MakeWorkspace) -> None:
    hosts = network.hosts("one", "two", "three")
    workspace = make_workspace(*hosts)
    wanted = fill(workspace)
    workspace.rsync(["one"])
    arriving = [host.home / "project" / ".remote-scripts" / "partial" for host in hosts[1:]]
    for host in hosts[1:]:
        host.slow("2mbit")
    with begin_relay(workspace):
        wait_until(lambda: all(any(folder.glob("relay.*")) for folder in arriving), "files that arrive")
    for host in hosts:
        host.mend()
        wait_until(partial(is_idle, host), "the end of what was opened")
    assert [state(host) for host in hosts] == ["complete", "incomplete", "incomplete"]
    results = workspace.rsync().values
    assert [digests(host.home / "project") for host in hosts] == [wanted] * 3
    assert [state(host) for host in hosts] == ["complete"] * 3
    assert not any(folder.exists() for folder in arriving)
    assert "sub/large.bin" in results["two"].sent


def test_a_source_that_dies_is_done_without(network: Network, make_workspace: MakeWorkspace) -> None:
    hosts = network.hosts("one", "two", "three")
    workspace = make_workspace(*hosts)
    wanted = fill(workspace)
    workspace.rsync(["one"])
    arriving = hosts[1].home / "project" / ".remote-scripts" / "partial"
    hosts[1].slow("8mbit")
    with begin_relay(workspace) as program:
        wait_until(lambda: any(arriving.glob("relay.*")), "files that arrive")
        # As when it is killed: its end is seen by the others at once.
        (share,) = [pid for pid, command in hosts[0].pids().items() if "run_control" in command]
        os.kill(hosts[0].outer_pid(share), signal.SIGKILL)
        _, said = program.communicate(timeout=300)
    assert program.returncode == 0, said
    assert b"is sent from here, not fetched from one: " in said
    assert [digests(host.home / "project") for host in hosts] == [wanted] * 3
