"""Lines of known_hosts files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool.transport.ssh.host_keys.entries import parse
from remote_tool.transport.ssh.host_keys.known_hosts import Verdict
from remote_tool.transport.ssh.host_keys.record import accept

if TYPE_CHECKING:
    from pathlib import Path

KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


@pytest.mark.row(39)
def test_of_two_that_met_a_host_at_the_same_time_one_writes_its_line(tmp_path: Path) -> None:
    (entry,) = parse(b"host " + KEY, tmp_path)[0]
    file = tmp_path / "known_hosts"
    told = [accept(file, "host", entry.key, note="remote-tool:first:host").verdict for _ in range(2)]
    assert told == [Verdict.NEW, Verdict.KNOWN]
    assert file.read_bytes() == b"host " + KEY + b" remote-tool:first:host\n"
