"""Many commands at once over one kept login."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh import log_in
from tests.extended.configuration import make_configuration
from tests.extended.transport.test_kept import keep

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh program here")


@pytest.mark.row(199)
async def test_more_commands_than_a_server_lets_in_at_once_all_run_once(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven have the kept login, the others log in; sshd hangs up on the fifth that has not logged in yet."""
    monkeypatch.setattr(log_in, "PAUSES", (0.5,) * 300)
    server = make_server("first", MaxStartups="4")
    config = replace(make_configuration([server], tmp_path / "project"), keep_connections=600)
    await keep(config)

    async def command(number: int) -> None:
        async with HostPool(config) as pool:
            host = await pool.host("first")
            ran = await host.run(f"echo {number} >> $HOME/ran; sleep 0.5; exit {number}", check=False, timeout=300)
            assert ran.exit.status == number

    await asyncio.gather(*(command(number) for number in range(16)))
    assert sorted(map(int, (server.home / "ran").read_text().split())) == list(range(16))
