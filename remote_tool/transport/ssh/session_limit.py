"""The number of sessions that a server allows per connection, learned from its refusals."""

from __future__ import annotations

import asyncio

from remote_tool.errors import ConnectError
from remote_tool.transport.ssh.endpoint import printable

DEFAULT_LIMIT = 10  # MaxSessions of a stock sshd


class SessionRefusedError(Exception):
    """The server opens no more sessions on this connection."""


def no_session(server: str, refusal: SessionRefusedError) -> ConnectError:
    return ConnectError(
        f"{server}: the server refused a new session: {printable(str(refusal))}",
        hint="Check MaxSessions in its sshd_config, and which of your sessions still run there",
        server=server,
    )


class SessionLimit:
    """A semaphore that shrinks when the server refuses one more.

    Attributes:
        limit: Maximum number of sessions.
        held: Current number; an abandoned session counts until its command has ended, as in sshd.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.held = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> None:
        """Wait until another session may be opened, in order of arrival."""
        while self.held >= self.limit:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        self.held += 1

    def release(self) -> None:
        """Release a session that has ended."""
        self.held -= 1
        self._wake_all()

    def refused(self) -> None:
        """Return a refused session, and lower the limit to the current number."""
        self.held -= 1
        self.limit = max(1, min(self.limit, self.held))
        self._wake_all()

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
