"""What the program says when the link goes: its own words, and not those of the libraries under it."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.below import files_below
from tests.program import remote_tool

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost

# A server that is back soon gets its project all the same.
OURS = ("error: ", "hint: ", "first: ", "1 of 1 server ", "1 server ", "done on 1 server ")


@pytest.mark.row(61)
@pytest.mark.slow
def test_a_server_that_reboots_under_a_sync_is_told_in_our_words(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    host = network.host("first")
    workspace = make_workspace(host)
    (workspace.root / "big").write_bytes(os.urandom(8_000_000))
    host.slow("4mbit")
    rebooter = threading.Thread(target=reboot_in_the_middle, args=(host,))
    rebooter.start()
    said = remote_tool("rsync", cwd=workspace.root, timeout=300)
    rebooter.join()
    assert "first: the connection was lost" in said.stderr
    assert [line for line in said.stderr.splitlines() if not line.startswith(OURS)] == []
    assert remote_tool("rsync", cwd=workspace.root).returncode == 0
    assert (host.home / "project" / "big").read_bytes() == (workspace.root / "big").read_bytes()


def reboot_in_the_middle(host: NetworkHost) -> None:
    """Take its power when some of it has come."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if any("big" in path.name and size_of(path) > 300_000 for path in files_below(host.home)):
            break
        time.sleep(0.01)
    host.reboot()


def size_of(path: Path) -> int:
    """Return the size, 0 when it has gone: rsync renames what has come whole."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
