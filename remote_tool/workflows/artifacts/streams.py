"""Download artifacts over several connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from remote_tool.errors import ConnectError, HostKeyError, JobError, LoginError
from remote_tool.workflows import agent_client
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remote_tool.protocol.framing import Frame
    from remote_tool.workflows.artifacts.transfer import Transfer
    from remote_tool.workflows.context import Context

    OnProgress = Callable[[str], None]

# Lost connections in a row without a byte in between.
MOST_LOSSES = 4
# Lost connections in total: repeated restarts would never end.
MOST_CONNECTIONS = 100
# This many files are synced to disk in parallel, which takes hardly longer than one.
MOST_ENDING = 16


async def fetch_files(context: Context, server: str, transfers: Sequence[Transfer], on_progress: OnProgress) -> None:
    """Download files over up to several connections.

    Raises:
        JobError: One cannot be written here, or the server's answer is invalid.
        ConnectError: The connection is lost for good; downloaded parts are kept.
    """
    meter = _Meter(on_progress)
    losses = connections = 0
    while waiting := [each for each in transfers if not each.is_over]:
        connections += 1
        before = meter.received
        try:
            await _fetch_once(context, server, waiting, meter)
        except (HostKeyError, LoginError):
            raise
        except ConnectError as error:
            losses = 1 if meter.received > before else losses + 1
            if losses > MOST_LOSSES or connections > MOST_CONNECTIONS:
                raise
            context.report(Notice(server, f"{error}; trying again"))
            await asyncio.sleep(agent_client.PAUSES[min(losses, len(agent_client.PAUSES)) - 1])


class _Meter:
    """Counts downloaded bytes."""

    def __init__(self, on_progress: OnProgress) -> None:
        self.received = 0
        self._on_progress = on_progress

    def count(self, name: str, size: int) -> None:
        self.received += size
        self._on_progress(name)


async def _fetch_once(context: Context, server: str, waiting: Sequence[Transfer], meter: _Meter) -> None:
    host = await context.pool.host(server)
    request = {"files": [await each.request() for each in waiting]}
    stream = _Stream(server, waiting, meter)
    try:
        async with agent_client.converse(
            host, context.config, "send", request, silence=agent_client.LONGEST_SILENCE
        ) as frames:
            async for frame in frames:
                await stream.take(frame)
        await stream.finish()
    finally:
        for each in waiting:
            each.leave()


class _Stream:
    """Files of one stream, in order; several are synced to disk in parallel."""

    def __init__(self, server: str, waiting: Sequence[Transfer], meter: _Meter) -> None:
        self._server = server
        self._waiting = waiting
        self._meter = meter
        self._current = 0
        self._ending: set[asyncio.Task[None]] = set()

    async def take(self, frame: Frame) -> None:
        """Pass a piece to its file."""
        if self._current >= len(self._waiting) or frame.header.get("file") != self._current:
            raise JobError(f"{self._server}: sent an artifact that was not requested", server=self._server)
        transfer = self._waiting[self._current]
        if "end" in frame.header:
            self._current += 1
            await self._end(transfer, str(frame.header["end"]))
            return
        try:
            transfer.take(frame.header, frame.body)
        except (TypeError, ValueError) as error:
            message = f"{self._server}: cannot read the artifacts that it sent ({error})"
            raise JobError(message, server=self._server) from error
        self._meter.count(transfer.file.path, len(frame.body))

    async def finish(self) -> None:
        """Wait until all files are in place.

        Raises:
            JobError: One cannot be written, or not all arrived.
        """
        while self._ending:
            await self._collect()
        if self._current < len(self._waiting):
            message = f"{self._server}: stopped sending in the middle of the artifacts"
            raise JobError(message, server=self._server)

    async def _end(self, transfer: Transfer, word: str) -> None:
        if word in {"whole", "changed"} and not transfer.is_arriving:
            raise JobError(f"{self._server}: ended an artifact that it had not begun", server=self._server)
        while len(self._ending) >= MOST_ENDING:
            await self._collect()
        task = asyncio.create_task(asyncio.to_thread(transfer.end, word))
        # Once something else has failed, this error is dropped.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._ending.add(task)

    async def _collect(self) -> None:
        done, self._ending = await asyncio.wait(self._ending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
