"""Asking the user for a secret while the event loop goes on."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

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
            return await _in_daemon_thread(self._ask, prompt)


async def _in_daemon_thread(ask: Callable[[str], str | None], prompt: str) -> str | None:
    """Wait for a thread that the end of the program does not wait for: Ctrl-C must not need an Enter after it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str | None] = loop.create_future()

    def hand_over(answer: str | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)

    def work() -> None:
        answer, error = None, None
        try:
            answer = ask(prompt)
        except (EOFError, OSError):
            answer = None
        except Exception as problem:  # noqa: BLE001 - raised again where it was asked
            error = problem
        if not loop.is_closed():
            loop.call_soon_threadsafe(hand_over, answer, error)

    threading.Thread(target=work, name="ask", daemon=True).start()
    return await future
