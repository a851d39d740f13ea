"""Noticing within seconds that a server does not answer, without disturbing a connection that works."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from remote_tool.transport.ssh import packets

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.transport.ssh.library import asyncssh

MOMENT = 0.2


class Liveness:
    """When a connection was last heard of.

    Args:
        connection: From now on every piece of data on it counts.
        keepalive_seconds: How long it may be silent before it is asked for a sign of life; 0 never asks.
        keepalive_count: How many of these it may leave unanswered.
    """

    def __init__(
        self, connection: asyncssh.SSHClientConnection, keepalive_seconds: float, keepalive_count: int
    ) -> None:
        self._connection = connection
        self._keepalive_seconds = keepalive_seconds
        self._keepalive_count = keepalive_count
        self._clock = asyncio.get_running_loop().time
        self._heard_at = self._clock()
        packets.listen(connection, self._note)

    def ask_every(self, seconds: float) -> None:
        """Ask for signs of life more often than configured, and give the connection up no earlier."""
        usual, count = self._keepalive_seconds, self._keepalive_count
        interval = min(usual or seconds, seconds)
        self._connection.set_keepalive(interval, round(usual * (count + 1) / interval) - 1 if usual else sys.maxsize)

    async def watch(self, seconds: float, tell: Callable[[bool], None]) -> None:
        """Call ``tell(False)`` when nothing came for so many seconds, and ``tell(True)`` when something comes again.

        Small keepalives make a healthy server say something twice within that time, however quiet its commands are.
        """
        await report_silence(lambda: self._heard_at, seconds, tell)

    def _note(self, _data: bytes) -> None:
        self._heard_at = self._clock()


async def report_silence(heard_at: Callable[[], float], seconds: float, tell: Callable[[bool], None]) -> None:
    """Tell of each silence of so many seconds, and of its end; heard_at is when something came, by the loop's clock."""
    clock = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(max(heard_at() + seconds - clock(), MOMENT))
        last = heard_at()
        # Where this program itself was held up, what came meanwhile is read first.
        await asyncio.sleep(MOMENT)
        if heard_at() == last and clock() - last >= seconds:
            tell(False)
            while heard_at() == last:  # noqa: ASYNC110 - bulk data need not set an event for each piece
                await asyncio.sleep(MOMENT)
            tell(True)
