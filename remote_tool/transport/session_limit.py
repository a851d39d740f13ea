"""How many sessions a server lets us have on one connection; we learn it from its refusals."""

from __future__ import annotations

import asyncio

DEFAULT_LIMIT = 10  # MaxSessions of a stock sshd


class SessionLimit:
    """A semaphore that shrinks when the server refuses one more."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._held = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> None:
        """Wait until one more session may be opened; first come, first served."""
        while self._held >= self.limit:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        self._held += 1

    def release(self) -> None:
        """Say that a session has ended."""
        self._held -= 1
        self._wake_all()

    def refused(self) -> bool:
        """Give back a session that the server refused; tell whether others of ours run, so that waiting helps."""
        self._held -= 1
        self.limit = max(1, min(self.limit, self._held))
        self._wake_all()
        return self._held > 0

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
