"""A key of a host is written once into known_hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool.transport.ssh.host_keys.entries import HostKey
from remote_tool.transport.ssh.host_keys.known_hosts import Verdict
from remote_tool.transport.ssh.host_keys.record import accept

if TYPE_CHECKING:
    from pathlib import Path

KIND = b"ssh-ed25519"
KEY, OTHER = (
    HostKey("ssh-ed25519", len(KIND).to_bytes(4, "big") + KIND + (32).to_bytes(4, "big") + bytes([number] * 32))
    for number in (1, 2)
)


@pytest.mark.row(39)
@pytest.mark.parametrize("note", ["", "remote-tool:first:host"])
def test_a_new_key_that_another_program_has_written_meanwhile_is_not_written_again(tmp_path: Path, note: str) -> None:
    file = tmp_path / "known_hosts"
    told = [accept(file, "host", KEY, note=note).verdict for _ in range(3)]
    assert told == [Verdict.NEW, Verdict.KNOWN, Verdict.KNOWN]
    assert accept(file, "host", OTHER, note=note).verdict is Verdict.CHANGED
    assert file.read_text() == f"host {KEY.text} {note}".rstrip() + "\n"
