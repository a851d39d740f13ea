"""Detect within seconds that a server does not respond, without disturbing a working connection."""

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
    """When a connection last received data.

    Args:
        connection: The connection; every received piece of data counts.
        keepalive_seconds: Silence before a keepalive is sent; 0 disables keepalives.
        keepalive_count: Unanswered keepalives until the connection is lost.
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
        """Send keepalives more often than configured, without giving up the connection earlier."""
        usual, count = self._keepalive_seconds, self._keepalive_count
        interval = min(usual or seconds, seconds)
        self._connection.set_keepalive(interval, round(usual * (count + 1) / interval) - 1 if usual else sys.maxsize)

    async def watch(self, seconds: float, tell: Callable[[bool], None]) -> None:
        """Call ``tell(False)`` after this many seconds of silence, and ``tell(True)`` once data arrives again.

        With keepalives, a responsive server answers twice within that time, however quiet its commands are.
        """
        await report_silence(lambda: self._heard_at, seconds, tell)

    def _note(self, _data: bytes) -> None:
        self._heard_at = self._clock()


async def report_silence(heard_at: Callable[[], float], seconds: float, tell: Callable[[bool], None]) -> None:
    """Report each silence of this many seconds, and its end; ``heard_at`` is the time of the last data (loop clock)."""
    clock = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(max(heard_at() + seconds - clock(), MOMENT))
        last = heard_at()
        # If this program itself was delayed, pending data is read first.
        await asyncio.sleep(MOMENT)
        if heard_at() == last and clock() - last >= seconds:
            tell(False)
            while heard_at() == last:  # noqa: ASYNC110 - bulk data need not set an event for each piece
                await asyncio.sleep(MOMENT)
            tell(True)
