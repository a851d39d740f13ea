"""Messages about a connection while waiting: one when it is lost or silent, and one when it is restored."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from remote_tool.transport.host import Host
    from remote_tool.workflows.context import Context

SILENT_SECONDS = 5.0
# A request open this long was received, even without output yet.
SETTLED_SECONDS = 0.5


class LinkNews:
    """Reports the state of the connection to one server; each message once until it is restored."""

    def __init__(self, context: Context, server: str) -> None:
        self._context = context
        self._server = server
        self._said = ""
        self._since = 0.0

    def interrupt(self, text: str) -> None:
        """Report why there is no output."""
        if text != self._said:
            self._since = self._since if self._said else time.monotonic()
            self._said = text
            self._context.report(Notice(self._server, text))

    def resume(self) -> None:
        """Report that the server answers again, if a problem was reported before."""
        if self._said:
            self._said = ""
            text = f"is answering again after {time.monotonic() - self._since:.0f} s"
            self._context.report(Notice(self._server, text, is_over=True))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Report a slow answer, not counting the time in which the user is prompted."""
        check = asyncio.create_task(self._report_later())
        self._context.pool.watched.add(self._server)
        try:
            yield
        finally:
            check.cancel()
            self._context.pool.watched.discard(self._server)

    async def _report_later(self) -> None:
        await asyncio.sleep(SILENT_SECONDS)
        while self._context.pool.prompter.is_asking:  # noqa: ASYNC110 - the user's time
            await asyncio.sleep(SILENT_SECONDS)
        self._tell(answers=False)

    @asynccontextmanager
    async def watching(self, host: Host) -> AsyncIterator[None]:
        """Report when the server stops responding, even if its jobs are quiet, and when it is back."""
        watch = asyncio.create_task(self._watch(host))
        try:
            yield
        finally:
            watch.cancel()

    async def _watch(self, host: Host) -> None:
        await asyncio.sleep(SETTLED_SECONDS)
        self.resume()
        await host.watch(SILENT_SECONDS, lambda answers: self._tell(answers=answers))

    def _tell(self, *, answers: bool) -> None:
        if answers:
            self.resume()
        elif not self._said:
            self.interrupt(f"no answer for {SILENT_SECONDS:.0f} s")
            self._since -= SILENT_SECONDS
