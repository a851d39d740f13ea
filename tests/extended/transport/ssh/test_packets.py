"""What goes over the wire beside what we send."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh
import pytest

from remote_tool.transport.pool import HostPool
from tests.extended.configuration import make_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

IGNORE, CHANNEL_DATA = 2, 94


@pytest.mark.parametrize(
    ("cipher", "has_fillers"), [("", False), ("aes256-gcm@openssh.com", False), ("aes256-cbc", True)]
)
async def test_an_empty_packet_goes_before_others_only_where_the_cipher_needs_it(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cipher: str, *, has_fillers: bool
) -> None:
    sent: list[int] = []
    original = asyncssh.SSHClientConnection.send_packet

    def send_packet(self: asyncssh.SSHClientConnection, pkttype: int, *args: bytes, **options: object) -> None:
        sent.append(pkttype)
        original(self, pkttype, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncssh.SSHClientConnection, "send_packet", send_packet)
    if cipher:
        file = tmp_path / "home" / ".ssh" / "config"
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        file.parent.mkdir(parents=True, mode=0o700)
        file.write_text(f"Host *\nCiphers {cipher}\n")
    config = make_configuration([make_server(Ciphers="+aes256-cbc")], tmp_path / "project")
    async with HostPool(config) as pool:
        host = await pool.host("first")
        sent.clear()
        assert (await host.run("cat", stdin=b"x" * 1_000_000)).stdout == b"x" * 1_000_000
    assert sent.count(CHANNEL_DATA) > 1
    assert (IGNORE in sent) == has_fillers
