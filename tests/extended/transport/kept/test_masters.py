"""Masters that are killed or stopped, and programs that are none."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectionLostError, RemoteToolError
from remote_tool.transport.host import MEBIBYTE
from remote_tool.transport.kept import connection as kept_connection
from remote_tool.transport.kept.connection import find_kept
from remote_tool.transport.kept.listing import end_kept
from remote_tool.transport.kept.master import pid_of_master
from remote_tool.transport.kept.mux import LONGEST_PACKET, Message
from remote_tool.transport.pool import HostPool
from tests.extended.transport.channels import read_some, read_to_end, until
from tests.extended.transport.test_kept import keep, kept, kept_host, link
from tests.processes import is_running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from remote_tool.config.model import Config
    from tests.sshd import TestServer

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh program here")


@pytest.mark.parametrize(
    ("how", "check_seconds"), [(signal.SIGKILL, 600.0), (signal.SIGSTOP, 0.1)], ids=["killed", "stopped"]
)
@pytest.mark.row(195)
@pytest.mark.picked_case("stopped")
async def test_output_that_a_killed_master_still_had_is_missed(
    config: Config, monkeypatch: pytest.MonkeyPatch, how: signal.Signals, check_seconds: float
) -> None:
    """The exit status overtakes output that nobody has read yet; a stopped master will not pass it on either."""
    monkeypatch.setattr(kept_connection, "CHECK_SECONDS", check_seconds)
    monkeypatch.setattr(kept_connection, "LONGEST_SILENCE", 5.0)
    async with kept_host(config) as host, host.open(f"head -c {5 * MEBIBYTE + MEBIBYTE // 2} /dev/zero") as channel:
        assert await until(lambda: channel._exit is not None)  # type: ignore[attr-defined]
        pid = await pid_of_master(link(host)._record.socket, 20)
        assert pid is not None
        os.kill(pid, how)
        try:
            with pytest.raises(ConnectionLostError):
                await read_to_end(channel)
            with pytest.raises(ConnectionLostError):
                await channel.wait()
        finally:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.row(195)
async def test_another_session_continues_while_one_is_not_read(config: Config) -> None:
    """As when a command is suspended (Ctrl-Z) in the middle of its output."""
    async with kept_host(config) as host, host.open("cat /dev/zero") as full:
        await read_some(full, b"\0")
        link(host)._sessions.copy().pop().pause_reading()
        async with asyncio.timeout(300):
            for _ in range(3):
                assert (await host.run("head -c 3000000 /dev/zero")).stdout == bytes(3_000_000)


@pytest.mark.row(198)
async def test_a_master_that_was_replaced_is_ended_too(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_connection, "ANSWER_SECONDS", 1.0)
    place, record = await keep(config)
    pid = await pid_of_master(record.socket, 20)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        async with HostPool(config) as pool:
            assert (await (await pool.host("first")).run("echo in")).stdout == b"in\n"
        second = await kept(config)
        assert second.socket != record.socket
        assert await until(second.socket.exists)
        assert await end_kept(place, second)
        assert await until(lambda: not is_running(pid))
        assert not record.socket.exists()
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


# Programs at the socket that are no masters


def packet(*numbers: int, rest: bytes = b"") -> bytes:
    body = b"".join(number.to_bytes(4) for number in numbers) + rest
    return len(body).to_bytes(4) + body


HELLO = packet(Message.HELLO, 4)
OPENED = packet(Message.SESSION_OPENED, 1, 1)
REFUSED = packet(0x80000003, 1, rest=b"\0\0\0\2no")


@asynccontextmanager
async def saying(path: Path, said: bytes, *, hangs_up: bool = False) -> AsyncIterator[None]:
    """Listen at a socket, and say the same to everybody."""
    answering = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            writer.write(said)
            await writer.drain()
            if hangs_up:  # once it was asked
                await reader.readexactly(len(HELLO))
                question = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                await reader.readexactly(3 if question.startswith(Message.NEW_SESSION.to_bytes(4)) else 0)
            else:
                await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    path.unlink(missing_ok=True)
    async with await asyncio.start_unix_server(answer, path):
        path.chmod(0o600)
        yield
        await asyncio.gather(*filter(None, answering))


@pytest.mark.row(196)
async def test_a_greeting_with_extensions_is_a_masters(runtime: Path) -> None:
    """PROTOCOL.mux lets the greeting end with names and values."""
    said = packet(Message.HELLO, 4, rest=b"\0\0\0\4info\0\0\0\x010") + packet(Message.ALIVE, 1, 0x1234)
    async with saying(runtime / "socket", said):
        assert await pid_of_master(runtime / "socket", 20) == 0x1234


@pytest.mark.row(196)
async def test_garbage_at_the_socket_causes_a_login_and_runs_nothing(
    config: Config, server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_connection, "ANSWER_SECONDS", 1.0)
    place, record = await keep(config)
    text = place.record.read_bytes()
    await end_kept(place, record)
    nonsense = [
        *(
            b"",
            HELLO,
            HELLO[:7],
            HELLO + OPENED[:-1],
            HELLO + REFUSED,
            packet(Message.HELLO, 5) + OPENED,
            packet(Message.HELLO),
        ),
        *(b"\xff" * 64, HELLO + (LONGEST_PACKET + 1).to_bytes(4), HELLO + b"\0" * 64, HELLO + HELLO * 10_000),
    ]
    for number, said in enumerate(nonsense):
        async with saying(record.socket, said, hangs_up=bool(number % 2)):
            place.record.write_bytes(text)
            place.record.chmod(0o600)
            assert find_kept(config, "first") is not None
            # Nothing else is to be kept meanwhile.
            turn = place.start_lock()
            assert turn is not None
            async with HostPool(config) as pool:
                host = await pool.host("first")
                async with asyncio.timeout(300):
                    await host.run(f"echo {number} >> $HOME/ran")
                assert link(host).own_login is not None
            os.close(turn)
    assert (server.home / "ran").read_text().split() == [str(number) for number in range(len(nonsense))]


@pytest.mark.row(184)
async def test_a_master_that_confirms_its_end_too_late_was_there(config: Config) -> None:
    """As on a busy machine, where it has ended before its processes are listed."""
    place, record = await keep(config)
    await end_kept(place, record)
    async with saying(record.socket, HELLO):
        assert await end_kept(place, record)


@pytest.mark.row(196)
async def test_a_session_without_our_mark_is_never_a_result(config: Config) -> None:
    place, record = await keep(config)
    text = place.record.read_bytes()
    await end_kept(place, record)
    place.record.write_bytes(text)
    place.record.chmod(0o600)
    async with (
        saying(record.socket, HELLO + OPENED + packet(Message.EXIT, 1, 0), hangs_up=True),
        HostPool(config) as pool,
    ):
        host = await pool.host("first")
        with pytest.raises(RemoteToolError):
            await host.run("true")
