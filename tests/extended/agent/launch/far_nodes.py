"""A launch whose nodes are far apart: the real watch, and a proxy in between that delays everything.

Each part is a program of its own. It runs until its stdin ends, then prints how it went.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from remote_tool.agent.launch import first_node, other_node
from remote_tool.agent.launch.cause import Membership
from remote_tool.agent.launch.other_node import OtherNodeWatch
from remote_tool.agent.supervisor.launch import make_watch
from remote_tool.protocol import job_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

ADDRESS = "127.0.0.1"
SECRET = b"s" * 64
MOST = 65536


def watch(size: int, port: int, ranks: Sequence[int]) -> None:
    """Be these nodes of a launch of so many."""
    # A verdict wakes the supervisor by a signal.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    folder = os.open("/", os.O_RDONLY)
    servers = tuple(f"server{rank}" for rank in range(size))
    nodes = [make_watch(Membership(rank, servers, ADDRESS, port, SECRET), folder) for rank in ranks]
    for node in nodes:
        node.start()
    _tell("started")
    sys.stdin.read()
    causes = [node.verdict for node in nodes if node.verdict is not None]
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda node: node.leave(), nodes))
    joined = sum(node._joined.is_set() for node in nodes if isinstance(node, OtherNodeWatch))
    _tell(json.dumps({"joined": joined, "gave up": sorted({cause.what for cause in causes})}))


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Proxy:
    """Forwards connections: connecting takes a round trip, and every byte half of one."""

    def __init__(self, seconds: float, port: int) -> None:
        self._seconds = seconds
        self._port = port

    async def open(self, listener: socket.socket) -> None:
        """Forward until stdin ends."""
        server = await asyncio.start_server(self._forward, sock=listener, backlog=4096)
        async with server:
            await asyncio.to_thread(sys.stdin.read)
        os._exit(0)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self._seconds)
        with suppress(OSError):
            back, there = await asyncio.open_connection(ADDRESS, self._port)
            await asyncio.gather(self._carry(reader, there), self._carry(back, writer))
        writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        data = b"begin"
        while data:
            data = b""
            with suppress(OSError):
                data = await reader.read(16384)
            loop.call_later(self._seconds / 2, partial(_deliver, writer, data))


def _deliver(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(data)
    else:
        writer.close()


def main(part: str, *numbers: Any) -> None:
    """Be a part: ``watch SIZE PORT FIRST LAST`` or ``proxy MILLISECONDS PORT DESCRIPTOR``."""
    job_folder.allow_open_files(MOST)
    # On a busy machine, each of a thousand threads gets its turn late.
    for module in (first_node, other_node):
        vars(module).update(UNKNOWN_SECONDS=30.0)
    first, *rest = (int(number) for number in numbers)
    if part == "watch":
        watch(first, rest[0], range(rest[1], rest[2] + 1))
    else:
        asyncio.run(Proxy(first / 1000, rest[0]).open(socket.socket(fileno=rest[1])))


if __name__ == "__main__":
    main(*sys.argv[1:])
