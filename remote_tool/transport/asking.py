"""Asking the user for a secret while the event loop goes on."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.transport.left_threads import in_left_thread

if TYPE_CHECKING:
    from collections.abc import Callable


class Asker:
    """Asks one question at a time, whatever number of servers want to know something."""

    def __init__(self, ask: Callable[[str], str | None] | None) -> None:
        self._ask = ask
        self._one_at_a_time = asyncio.Lock()

    @property
    def can_ask(self) -> bool:
        return self._ask is not None

    async def ask(self, prompt: str) -> str | None:
        """Return the answer; None when there is nobody to ask, or no answer."""
        if self._ask is None:
            return None
        async with self._one_at_a_time:
            try:
                # Ctrl-C must not need an Enter after it.
                return await in_left_thread(partial(self._ask, prompt), name="ask")
            except (EOFError, OSError):
                return None
