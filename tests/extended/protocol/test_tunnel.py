"""Streams over one channel: whole, in order, and none of them delays another."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.protocol import tunnel as tunnels
from remote_tool.protocol.framing import FrameReader
from remote_tool.protocol.tunnel import REFUSED, WINDOW, StreamResetError, Tunnel, connect
from tests.sshd import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

NONCE = "0123456789abcdef"
PATIENCE = 300.0


class Pair:
    """Two sides of a tunnel in one loop; the second connects to ports, the first accepts connections."""

    def __init__(self) -> None:
        self.near = Tunnel(NONCE, is_first=True, write=self._to_far, connect=self._refuse)
        self.far = Tunnel(NONCE, is_first=False, write=self._to_near, connect=lambda port: connect("localhost", port))
        self.errors: list[BaseException] = []
        self.port = 0
        self.target: int | str = 0
        self._readers = {side: FrameReader(NONCE) for side in ("near", "far")}

    async def _to_far(self, data: bytes) -> None:
        self._pass("far", data)

    async def _to_near(self, data: bytes) -> None:
        self._pass("near", data)

    async def _refuse(self, _target: Any) -> Any:
        raise ConnectionRefusedError

    def _pass(self, side: str, data: bytes) -> None:
        for frame in self._readers[side].feed(data):
            getattr(self, side).take(frame.header, frame.body)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.near.carry((reader, writer), self.target)
        except (StreamResetError, OSError) as error:
            self.errors.append(error)


@asynccontextmanager
async def tunnel_to(serve: Any) -> AsyncIterator[Pair]:
    """Serve a program behind a tunnel; ``port`` is where it is reached."""
    pair = Pair()
    there = await asyncio.start_server(serve, "127.0.0.1", 0)
    here = await asyncio.start_server(pair.carry, "127.0.0.1", 0)
    pair.target, pair.port = there.sockets[0].getsockname()[1], here.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(PATIENCE):
            yield pair
    finally:
        there.close()
        here.close()
        await pair.near.close()
        await pair.far.close()


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - many things change it
        await asyncio.sleep(0.01)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer only after the other side has said that it is done."""
    data = await reader.read(-1)
    writer.write(data)
    writer.close()


@pytest.mark.row(212)
async def test_bytes_come_whole_in_both_directions_and_half_an_end_is_passed_on() -> None:
    data = os.urandom(5 * WINDOW + 1)
    async with tunnel_to(echo) as pair:
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.port)
        writer.write(data)
        writer.write_eof()
        assert await reader.read(-1) == data
        writer.close()
        await until(lambda: not pair.near._streams and not pair.far._streams)
    assert pair.errors == []


@pytest.mark.row(212)
async def test_a_stream_that_nobody_reads_holds_a_window_and_delays_no_other() -> None:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        if await reader.read(1) == b"?":
            writer.write(b"!")
        else:
            with suppress(ConnectionError):
                while True:
                    writer.write(bytes(65536))
                    await writer.drain()
                    sent += 65536
        writer.close()

    async with tunnel_to(pour) as pair:
        _, stalled = await asyncio.open_connection("127.0.0.1", pair.port, limit=1024)
        stalled.write(b"x")
        # No more arrives once the window is used up.
        await until(lambda: any(not stream._window for stream in pair.far._streams.values()))
        assert sum(stream._undelivered for stream in pair.near._streams.values()) <= WINDOW
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.port)
            writer.write(b"?")
            assert await reader.read(1) == b"!"
            writer.close()
        stalled.transport.abort()
        await until(lambda: not pair.near._streams and not pair.far._streams)


@pytest.mark.row(212)
async def test_a_connection_that_is_refused_there_is_reset_here() -> None:
    async with tunnel_to(echo) as pair:
        pair.target = free_port()
        reader, _writer = await asyncio.open_connection("127.0.0.1", pair.port)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        await until(lambda: pair.errors)
    assert str(pair.errors[0]) == REFUSED


async def test_a_name_that_cannot_be_looked_up_is_reset_here() -> None:
    async with tunnel_to(echo) as pair:
        pair.far._connect = lambda name: connect(name, 80)
        pair.target = "a..b"
        reader, _writer = await asyncio.open_connection("127.0.0.1", pair.port)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        await until(lambda: pair.errors)
    assert str(pair.errors[0])


@pytest.mark.row(212)
async def test_a_reset_is_passed_on_in_both_directions() -> None:
    arrived: list[asyncio.StreamWriter] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(writer)
        with suppress(ConnectionResetError):
            await reader.read(-1)
            return
        ended.set()

    async with tunnel_to(serve) as pair:
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.port)
        await until(lambda: arrived)
        tunnels.reset(arrived[0])
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        ended.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.port)
        await until(lambda: len(arrived) == 2)
        tunnels.reset(writer)
        await ended.wait()
        await until(lambda: not pair.near._streams and not pair.far._streams)


@pytest.mark.row(213)
async def test_the_end_of_the_tunnel_resets_every_connection() -> None:
    async with tunnel_to(echo) as pair:
        streams = [await asyncio.open_connection("127.0.0.1", pair.port) for _ in range(3)]
        await until(lambda: len(pair.far._streams) == 3)
        await pair.near.close()
        for reader, _ in streams:
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        await pair.far.close()
        assert not pair.far._streams


@pytest.mark.row(257)
async def test_a_target_that_does_not_answer_delays_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnels, "CONNECT_SECONDS", 10 * PATIENCE)
    asked = asyncio.Event()

    async def silent(_target: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async with tunnel_to(echo) as pair:
        pair.far._connect = silent
        reader, _writer = await asyncio.open_connection("127.0.0.1", pair.port)
        await asked.wait()
        await pair.far.close()
        assert not pair.far._streams
        await pair.near.close()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)


async def test_a_side_that_ignores_the_window_or_talks_of_unknown_streams_harms_only_its_stream() -> None:
    async with tunnel_to(echo) as pair:
        reader, _writer = await asyncio.open_connection("127.0.0.1", pair.port)
        await until(lambda: pair.near._streams)
        (number,) = pair.near._streams
        for strange in (
            {"data": 99},
            {"end": "x"},
            {"more": number, "bytes": -1},
            {"more": number, "bytes": 2**40},
            {},
        ):
            pair.near.take(strange, b"x")
        for _ in range(WINDOW // 65536 + 1):
            pair.near.take({"data": number}, bytes(65536))
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
        await until(lambda: pair.errors)
    assert "window" in str(pair.errors[0])


async def test_localhost_is_either_loopback_address() -> None:
    try:
        listener = await asyncio.start_server(echo, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    port = listener.sockets[0].getsockname()[1]
    reader, writer = await connect("localhost", port)
    writer.write_eof()
    assert await reader.read(-1) == b""
    writer.close()
    listener.close()
