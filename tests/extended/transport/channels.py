"""What the tests of connections share: reading, waiting, and what holds over an own login and over a kept one."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from remote_tool.transport.host import MEBIBYTE, Exit, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from remote_tool.transport.host import Channel, Host
    from tests.sshd import TestServer

ALL_BYTES = bytes(range(256))


async def read_to_end(channel: Channel, stream: Stream = Stream.OUT) -> bytes:
    data = b""
    while chunk := await channel.read(stream):
        data += chunk
    return data


async def read_some(channel: Channel, wanted: bytes) -> None:
    """Wait for what a script prints when it has got that far."""
    data = b""
    while wanted not in data:
        chunk = await channel.read()
        assert chunk, data
        data += chunk


async def until(condition: Callable[[], bool]) -> bool:
    """Wait for something that another process does."""
    deadline = time.monotonic() + 300
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


@contextmanager
def stopped(server: TestServer) -> Iterator[None]:
    """Let the server say nothing for a while, as when a cable is pulled."""
    pids: set[int] = set()
    # After the login of an ordinary user sshd goes on in one more process, and another one ends.
    while new := set(server.session_pids()) - pids:
        _signal(new, signal.SIGSTOP)
        pids |= new
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def check_every_verb(host: Host) -> None:
    hostile = 'it\'s $HOME `id` "!" * ? [x] {a,b} \\ %s ~ # ; & | < > ( ) ! äö \u20ac'
    script = f"cat <<'EOF'\n{hostile}\nEOF\ncat"
    completed = await host.run(script, stdin=ALL_BYTES)
    assert completed.stdout == hostile.encode() + b"\n" + ALL_BYTES
    assert completed.stderr == b""
    assert (await host.run("exit 9", check=False)).exit == Exit(9)
    async with host.open("read -r word; echo $word") as channel:
        await channel.write(b"typed\n")
        assert await read_to_end(channel) == b"typed\n"


async def check_megabytes_both_ways(host: Host) -> None:
    data = os.urandom(20 * MEBIBYTE)

    async def send(channel: Channel) -> None:
        for start in range(0, len(data), MEBIBYTE):
            await channel.write(data[start : start + MEBIBYTE])
        await channel.write_eof()

    async with host.open("cat") as channel:
        sending = asyncio.create_task(send(channel))
        digest = hashlib.sha256()
        while chunk := await channel.read(size=MEBIBYTE):
            digest.update(chunk)
        await sending
        assert await channel.wait() == Exit(0)
    assert digest.digest() == hashlib.sha256(data).digest()


async def check_that_a_slow_reader_slows_the_command_down(host: Host) -> None:
    """What nobody reads stays on the server."""
    async with host.open("head -c 200000000 /dev/zero; echo done >&2") as channel:
        await channel.read(size=1)
        sizes = [-1, 0]
        while sizes[-1] != sizes[-2]:
            await asyncio.sleep(0.5)
            sizes.append(len(channel._outputs[Stream.OUT].data))  # type: ignore[attr-defined]
        assert 0 < sizes[-1] < 20 * MEBIBYTE


async def check_that_one_stream_can_be_read_while_the_other_is_full(host: Host) -> None:
    async with host.open("head -c 10000000 /dev/zero >&2; echo now") as channel:
        assert await channel.read() == b"now\n"
        assert len(await read_to_end(channel, Stream.ERR)) == 10_000_000
        assert await channel.wait() == Exit(0)


async def check_that_an_ended_command_can_be_written_to(host: Host) -> None:
    async with host.open("exit 5") as channel:
        assert await channel.wait() == Exit(5)
        await channel.write(b"x" * MEBIBYTE)
        await channel.write_eof()
    assert (await host.run("exit 6", stdin=b"x" * 8 * MEBIBYTE, check=False)).exit == Exit(6)
