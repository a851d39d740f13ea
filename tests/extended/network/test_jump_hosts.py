"""Servers that only a jump host reaches, and one that only the second of two reaches."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectError, ConnectionLostError, HostKeyError
from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh import login_errors, ssh_config
from tests.sshd import make_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.config.model import Config
    from tests.extended.configuration import Configuration
    from tests.network_hosts import Network, NetworkHost

NAMES = ("outer", "inner", "far")
INTERVAL = 0.5
# Of a machine that does other things too; without keepalive it would be minutes.
SLACK = 10.0


@pytest.fixture
def chain(network: Network) -> list[NetworkHost]:
    """Three hosts, each reached from the one before only."""
    outer, inner, far = network.hosts(*NAMES)
    inner.cut_from_laptop()
    far.cut_from_laptop()
    outer.cut_from(far)
    return [outer, inner, far]


@pytest.fixture
def through(own_home: Path, configuration: Configuration, tmp_path: Path) -> Callable[..., Config]:
    """A function that configures the last of some hosts, to be reached through the others."""

    def configure(*way: NetworkHost) -> Config:
        *jumps, last = way
        lines = [
            f"Host {host.name}\nHostName {host.address}\nUser {host.username}\nIdentityFile {host.key}\n"
            for host in way
        ]
        (own_home / ".ssh").mkdir(exist_ok=True)
        names = ",".join(jump.name for jump in jumps)
        (own_home / ".ssh" / "config").write_text("".join(lines) + f"Host {last.name}\nProxyJump {names}\n")
        config = configuration([last], tmp_path / "project")
        return replace(config, servers={last.name: replace(config.servers[last.name], hostname=last.name, port=None)})

    return configure


@pytest.mark.row(50)
@pytest.mark.parametrize("hops", [1, 2])
async def test_a_server_behind_jump_hosts_is_reached_and_every_key_is_kept(
    chain: list[NetworkHost], through: Callable[..., Config], hops: int
) -> None:
    way = chain[: hops + 1]
    config = through(*way)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.open_connection(way[-1].address, 22)
    async with HostPool(config) as pool:
        assert (await (await pool.host(way[-1].name)).run("hostname")).stdout == f"{way[-1].name}\n".encode()
    keys = config.local.known_hosts.read_text()
    for host in way:
        assert (host.folder / "host_key.pub").read_text().split()[1] in keys


@pytest.mark.row(38, 50, 116)
@pytest.mark.parametrize("changed", [0, 1, 2], ids=NAMES)
async def test_a_changed_key_anywhere_on_the_way_is_refused_by_name(
    chain: list[NetworkHost], through: Callable[..., Config], changed: int
) -> None:
    config = through(*chain)
    async with HostPool(config) as pool:
        await pool.host("far")
    host = chain[changed]
    for file in ("host_key", "host_key.pub"):
        (host.folder / file).unlink()
    make_key(host.folder / "host_key")
    host.reload_sshd()
    title = "far" if host.name == "far" else f"jump host {host.name}"
    async with HostPool(config) as pool:
        with pytest.raises(HostKeyError, match=f"The host key of {title} .* has changed"):
            await pool.host("far")
    assert "Accepted" not in host.log().rpartition("Server listening")[2]


@pytest.mark.row(50)
@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1], ids=NAMES[:2])
async def test_a_jump_host_that_is_off_is_named(
    chain: list[NetworkHost], through: Callable[..., Config], dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_errors, "CONNECT_SECONDS", 4.0)
    config = through(*chain)
    chain[dead].power_off()
    began = time.monotonic()
    async with HostPool(config) as pool:
        with pytest.raises(ConnectError, match=f"jump host {chain[dead].name}") as raised:
            await pool.host("far")
    assert raised.value.server == "far"
    assert time.monotonic() - began < 4.0 * 2 + SLACK
    chain[dead].power_on()
    async with HostPool(config) as pool:
        await pool.host("far")


@pytest.mark.row(50, 36)
@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1], ids=NAMES[:2])
@pytest.mark.parametrize("how", ["reboot", "cut", "kill sessions"])
async def test_a_jump_host_that_dies_in_the_middle_is_an_error_in_time_and_gone_through_again(
    chain: list[NetworkHost], through: Callable[..., Config], dead: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_config, "KEEPALIVE_SECONDS", INTERVAL)
    host = chain[dead]
    async with HostPool(through(*chain)) as pool, asyncio.timeout(300):
        far = await pool.host("far")
        async with far.open("echo begun; sleep 1000") as channel:
            assert await channel.read() == b"begun\n"
            {"reboot": host.reboot, "cut": host.cut, "kill sessions": host.drop_connections}[how]()
            began = time.monotonic()
            with pytest.raises(ConnectionLostError):
                await channel.wait()
            assert time.monotonic() - began < INTERVAL * (ssh_config.KEEPALIVE_COUNT + 1) + SLACK
        host.mend()
        # A busy machine may be silent.
        monkeypatch.setattr(ssh_config, "KEEPALIVE_SECONDS", 15)
        if dead or how == "reboot":
            # Mending put the far ones on the laptop's own wire.
            chain[1].cut_from_laptop()
        assert (await (await pool.host("far")).run("hostname")).stdout == b"far\n"
