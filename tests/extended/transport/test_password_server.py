"""The server that tests with passwords use leaves nothing behind either."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectionLostError
from remote_tool.transport.pool import HostPool
from tests.extended.agent.conftest import wait_until
from tests.extended.configuration import make_configuration
from tests.extended.transport.password_server import PasswordServer, password_server, trust

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def endless_command(door: PasswordServer, folder: Path) -> AsyncIterator[tuple[HostPool, Path]]:
    """Run what does not end by itself; yields its connection and its entry in /proc."""
    config = replace(make_configuration([], folder), servers={"first": door.server(password=door.password)})
    async with HostPool(config, confirm=trust) as pool:
        host = await pool.host("first")
        command = asyncio.create_task(host.run(f"echo $$ > '{folder}/pid'; tail -f /dev/null; true"))
        pid = folder / "pid"
        await asyncio.to_thread(wait_until, lambda: pid.exists() and pid.read_text())
        yield pool, Path("/proc") / pid.read_text().strip()
        with pytest.raises(ConnectionLostError):
            await command


async def test_a_shell_ends_with_its_connection(tmp_path: Path) -> None:
    async with password_server(PasswordServer()) as door, endless_command(door, tmp_path) as (pool, process):
        assert process.exists()
        await pool.close()
        await asyncio.to_thread(wait_until, lambda: not process.exists())


async def test_a_shell_ends_with_its_server(tmp_path: Path) -> None:
    serving = password_server(PasswordServer())
    async with endless_command(await serving.__aenter__(), tmp_path) as (_, process):
        assert process.exists()
        await serving.__aexit__(None, None, None)
        assert not process.exists()
