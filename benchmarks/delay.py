"""A wire that is long: what goes through it arrives so much later, at any rate."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Self


class LongWire:
    """Passes connections on to a port of this machine, each byte half a round trip later.

    Attributes:
        port: Where it listens.
        round_trip: In seconds; may be changed between connections.
    """

    def __init__(self, target: int, round_trip: float = 0.0) -> None:
        self.port = 0
        self.round_trip = round_trip
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._writers: list[asyncio.StreamWriter] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        ).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            # They close in the next turn of the loop.
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A connection is there after a round trip, as TCP has it.
        await asyncio.sleep(self.round_trip)
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, back]
        # The streams of asyncio take a cancelled handler for one that failed, and say so at length.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        deliver = asyncio.create_task(self._deliver(under_way, writer))
        with suppress(OSError):
            while data := await reader.read(65536):
                under_way.put_nowait((self._loop.time() + self.round_trip / 2, data))
        under_way.put_nowait((self._loop.time() + self.round_trip / 2, b""))
        await deliver

    async def _deliver(self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
