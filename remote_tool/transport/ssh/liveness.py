"""Detect within seconds that a server does not respond, without disturbing a working connection."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from remote_tool.transport.ssh import packets

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.transport.ssh.library import asyncssh

POLL_SECONDS = 0.2


class Liveness:
    """The time of the last data on a connection.

    Args:
        connection: The connection; any received data counts.
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
        self._last_data_at = self._clock()
        packets.listen(connection, self._note_data)

    def send_keepalives_every(self, seconds: float) -> None:
        """Send keepalives at least this often, without losing a silent connection earlier than configured."""
        usual, count = self._keepalive_seconds, self._keepalive_count
        interval = min(usual or seconds, seconds)
        self._connection.set_keepalive(interval, round(usual * (count + 1) / interval) - 1 if usual else sys.maxsize)

    async def watch(self, seconds: float, report: Callable[[bool], None]) -> None:
        """Call ``report(False)`` after this many seconds of silence, and ``report(True)`` once data arrives again.

        With keepalives, a responsive server answers twice within that time, however quiet its commands are.
        """
        await report_silence(lambda: self._last_data_at, seconds, report)

    def _note_data(self, _data: bytes) -> None:
        self._last_data_at = self._clock()


async def report_silence(last_data_at: Callable[[], float], seconds: float, report: Callable[[bool], None]) -> None:
    """Report each silence of this many seconds, and its end.

    Args:
        last_data_at: Returns the time of the last data, on the clock of the event loop.
        seconds: The length of a silence.
        report: Called with False when a silence has lasted that long, and with True at its end.
    """
    clock = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(max(last_data_at() + seconds - clock(), POLL_SECONDS))
        last = last_data_at()
        # If this program itself was delayed, pending data is read first.
        await asyncio.sleep(POLL_SECONDS)
        if last_data_at() == last and clock() - last >= seconds:
            report(False)
            while last_data_at() == last:  # noqa: ASYNC110 - bulk data need not set an event for each piece
                await asyncio.sleep(POLL_SECONDS)
            report(True)
