"""A sync over a kept login: the kernel passes on rsync's data, and every end of it is told as over an own login."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectionLostError
from remote_tool.transport.kept.connection import find_kept
from remote_tool.transport.kept.master import pid_of_master
from remote_tool.transport.pool import HostPool
from tests.extended.transport.channels import until
from tests.extended.transport.sync.test_push import Desk
from tests.extended.transport.sync.test_transfer import have_rsync_killed, programs, push_of, signal_all
from tests.extended.transport.test_kept import keep, link

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.transport.sync.push import Progress
    from tests.sshd import TestServer

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh program here")
SIZE = 24_000_000
MIDDLE = SIZE // 4


@pytest.fixture
async def desk(config: Config, server: TestServer) -> Desk:
    """A project with one large file, and a kept login."""
    await keep(config)
    (config.local.root / "big.bin").write_bytes(os.urandom(1_000_000) * (SIZE // 1_000_000))
    return Desk(config, server)


@pytest.fixture
def spliced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes of each call of the real ``splice``."""
    if not hasattr(os, "splice"):
        pytest.skip("this system has no splice")
    real, counts = os.splice, []

    def splice(source: int, pipe: int, size: int, *, flags: int) -> int:
        counts.append(real(source, pipe, size, flags=flags))
        return counts[-1]

    monkeypatch.setattr(os, "splice", splice)
    return counts


@pytest.mark.row(244)
async def test_the_kernel_passes_on_the_data_of_a_sync(desk: Desk, spliced: list[int]) -> None:
    result = await desk.sync()
    assert (desk.copy / "big.bin").read_bytes() == (desk.project / "big.bin").read_bytes()
    assert sum(spliced) > SIZE
    assert sum(spliced) <= result.bytes
    assert (await desk.sync()).sent == ()


@pytest.mark.row(244)
@pytest.mark.parametrize("refusal", [None, OSError(22, "Invalid argument")], ids=["missing", "refused"])
async def test_where_the_kernel_passes_on_nothing_the_data_is_copied(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, refusal: OSError | None
) -> None:
    def refuse(*_words: int, **_options: int) -> int:
        assert refusal is not None
        raise refusal

    monkeypatch.setattr(os, "splice", refuse, raising=False)
    if refusal is None:
        monkeypatch.delattr(os, "splice")
    await desk.sync()
    assert (desk.copy / "big.bin").read_bytes() == (desk.project / "big.bin").read_bytes()


@pytest.mark.row(244)
async def test_a_master_that_is_killed_in_the_middle_of_a_sync_is_a_lost_connection(desk: Desk) -> None:
    found = find_kept(desk.config, "first")
    assert found is not None
    pid = await pid_of_master(found.record.socket, 20)
    assert pid is not None

    def kill(progress: Progress) -> None:
        if progress.bytes > MIDDLE:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async with HostPool(desk.config) as pool:
        with pytest.raises(ConnectionLostError):
            await push_of(desk, await pool.host("first"), kill)
    assert await until(lambda: not programs(desk.project))
    await desk.sync()
    assert (desk.copy / "big.bin").read_bytes() == (desk.project / "big.bin").read_bytes()


@pytest.mark.row(244)
async def test_an_rsync_that_is_killed_on_the_server_fails_the_sync(desk: Desk, spliced: list[int]) -> None:
    await have_rsync_killed(desk)
    assert sum(spliced) > 8_000_000
    await desk.sync()
    assert (desk.copy / "big.bin").read_bytes() == (desk.project / "big.bin").read_bytes()


@pytest.mark.row(244)
async def test_a_sync_to_a_server_that_stopped_reading_can_be_interrupted(desk: Desk, spliced: list[int]) -> None:
    def stop(progress: Progress) -> None:
        if progress.bytes > MIDDLE:
            signal_all(programs(desk.server.home), signal.SIGSTOP)

    stopped: list[int] = []
    async with HostPool(desk.config) as pool:
        syncing = asyncio.create_task(push_of(desk, await pool.host("first"), stop))
        assert await until(lambda: sum(spliced) > MIDDLE)
        stopped += programs(desk.server.home)
        syncing.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(300):
                await syncing
        assert await until(lambda: not programs(desk.project))
    signal_all(stopped, signal.SIGCONT)


@pytest.mark.row(245)
async def test_a_kept_login_encrypts_as_the_login_before_it_did(config: Config) -> None:
    """Left alone, ssh chooses another one."""
    async with HostPool(config) as pool:
        cipher = link(await pool.host("first")).raw.get_extra_info("send_cipher")
    place, _ = await keep(config)
    assert cipher == "aes128-gcm@openssh.com"
    assert f'Ciphers "{cipher}"' in place.config.read_text().splitlines()
