"""Links that go silent: noticed within a bound, an error of their own kind, and never a result."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectError, ConnectionLostError, HostKeyError, LoginError
from remote_tool.transport.pool import HostPool, on_every
from remote_tool.transport.ssh import login_errors, ssh_config
from remote_tool.transport.ssh.connection import Connection
from tests.figures import record_figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.host import Host
    from tests.extended.configuration import Configuration
    from tests.network_hosts import Network, NetworkHost

# A thirtieth of the real one.
REAL_INTERVAL = ssh_config.KEEPALIVE_SECONDS
INTERVAL = REAL_INTERVAL / 30
# asyncssh asks when nothing came for an interval, and gives up when the answer to the last question is due.
INTERVALS = ssh_config.KEEPALIVE_COUNT + 1
# Of a machine that does other things too; without keepalive it would be minutes.
SLACK = 10.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepalive thirty times as fast."""
    monkeypatch.setattr(ssh_config, "KEEPALIVE_SECONDS", INTERVAL)


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the rest of a test, in which a busy machine may be silent."""
    monkeypatch.setattr(ssh_config, "KEEPALIVE_SECONDS", REAL_INTERVAL)


async def silent(host: Host, begun: Callable[[], None]) -> None:
    """A command that says one thing, then nothing."""
    async with host.open("echo begun; sleep 1000") as channel:
        assert await channel.read() == b"begun\n"
        begun()
        await channel.wait()


async def talking(host: Host, begun: Callable[[], None]) -> None:
    """A command that never stops."""
    async with host.open("while :; do echo line; sleep 0.01; done") as channel:
        await channel.read()
        begun()
        while await channel.read():
            pass


async def listening(host: Host, begun: Callable[[], None]) -> None:
    """A command that takes what we send."""
    async with host.open("cat > /dev/null") as channel:
        await channel.write(bytes(1000))
        begun()
        while True:
            await channel.write(bytes(100_000))
            await asyncio.sleep(0.01)


async def to_its_end(host: Host, begun: Callable[[], None]) -> None:
    """A command whose result somebody waits for."""

    async def tell() -> None:
        while not (await host.run("[ -e begun ]", check=False)).ok:  # noqa: ASYNC110 - the server tells nobody else
            await asyncio.sleep(0.05)
        begun()

    telling = asyncio.create_task(tell())
    result = await host.run("touch begun; echo half; sleep 1000", check=False)
    pytest.fail(f"a lost link is no result: {result}, {telling}")


@pytest.mark.row(36, 43)
@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("use", [silent, talking, listening, to_its_end], ids=lambda use: use.__name__)
@pytest.mark.parametrize("fault", ["cut", "drop"])
async def test_a_link_that_goes_silent_in_the_middle_is_an_error_in_time(
    network: Network,
    configuration: Configuration,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[..., object],
    fault: str,
) -> None:
    host = network.host("far")
    moments: list[float] = []

    def begun() -> None:
        moments.append(time.monotonic())
        if fault == "cut":
            host.cut()
        else:
            host.drop(100)

    async with HostPool(configuration([host], tmp_path / "project")) as pool, asyncio.timeout(300):
        far = await pool.host("far")
        with pytest.raises(ConnectionLostError, match="the connection was lost"):
            await use(far, begun)  # type: ignore[misc]
        waited = time.monotonic() - moments[0]
        assert waited < INTERVALS * INTERVAL + SLACK
        record_figure(
            "link silent until the error (s, scaled to a keepalive of 15 s)", waited / INTERVAL * REAL_INTERVAL
        )
        host.mend()
        be_patient(monkeypatch)
        assert (await (await pool.host("far")).run("echo again")).stdout == b"again\n"


@pytest.mark.row(43)
async def test_a_slow_link_that_loses_packets_is_not_taken_for_a_dead_one(
    network: Network, configuration: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TCP waits 0.2 s or more until it sends a lost packet again, and twice as long after each further loss. With a
    # keepalive of 0.5 s, 1 link in 360 was silent for too long; with 2 s, two more losses in a row are needed.
    monkeypatch.setattr(ssh_config, "KEEPALIVE_SECONDS", 2)
    host = network.host("far")
    host.slow("4mbit")
    host.drop(5)
    async with HostPool(configuration([host], tmp_path / "project")) as pool, asyncio.timeout(300):
        far = await pool.host("far")
        result = await far.run("head -c 300000 /dev/zero; sleep 5; echo end")
        assert result.stdout == bytes(300_000) + b"end\n"


@pytest.mark.row(36)
@pytest.mark.usefixtures("impatient")
async def test_a_server_that_lost_its_power_in_the_middle_is_told_from_a_result(
    network: Network, configuration: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = network.host("far")
    async with HostPool(configuration([host], tmp_path / "project")) as pool, asyncio.timeout(300):
        far = await pool.host("far")
        running = asyncio.create_task(to_its_end(far, host.reboot))
        with pytest.raises(ConnectionLostError):
            await running
        be_patient(monkeypatch)
        assert (await (await pool.host("far")).run("echo again")).stdout == b"again\n"


@pytest.mark.row(43, 120)
@pytest.mark.slow
async def test_servers_that_cannot_be_reached_are_told_in_time_and_hold_up_no_other(
    network: Network, configuration: Configuration, tmp_path: Path
) -> None:
    """With the real bounds: this is how long a user waits."""
    off, cut, blocked, near = network.hosts("off", "cut", "blocked", "near")
    off.power_off()
    cut.cut()
    blocked.block_port(22)
    told: dict[str, float] = {}
    began = time.monotonic()

    async def ask(name: str) -> None:
        try:
            await (await pool.host(name)).run("true")
        finally:
            told[name] = time.monotonic() - began

    async with HostPool(configuration([off, cut, blocked, near], tmp_path / "project")) as pool:
        results = await on_every(["off", "cut", "blocked", "near"], ask)
    assert set(results.errors) == {"off", "cut", "blocked"}
    for error in results.errors.values():
        assert type(error) is ConnectError
        assert "did not answer within 15 s" in str(error)
    assert told.pop("near") < min(told.values())
    assert max(told.values()) < login_errors.CONNECT_SECONDS + SLACK
    record_figure("server unreachable until the error (s)", max(told.values()))


@pytest.mark.row(43, 44)
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["before the banner", "in the login"])
async def test_a_login_into_silence_is_given_up(
    network: Network, configuration: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(login_errors, "LOGIN_SECONDS", 2.0)
    monkeypatch.setattr(login_errors, "CONNECT_SECONDS", 1.0)
    host = network.host("far")
    cut_after(host, "connection_made" if stage == "before the banner" else "validate_host_public_key", monkeypatch)
    async with HostPool(configuration([host], tmp_path / "project")) as pool, asyncio.timeout(300):
        began = time.monotonic()
        with pytest.raises(ConnectError) as raised:
            await pool.host("far")
        assert not isinstance(raised.value, LoginError | HostKeyError)
        assert time.monotonic() - began < 3 + SLACK
        host.mend()
        monkeypatch.undo()
        assert (await (await pool.host("far")).run("echo again")).stdout == b"again\n"


def cut_after(host: NetworkHost, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pull the cable the next time that the SSH library gets to this step."""
    original = getattr(Connection, step)

    def then_cut(connection: Connection, *arguments: object) -> object:
        host.cut()
        return original(connection, *arguments)

    monkeypatch.setattr(Connection, step, then_cut)
