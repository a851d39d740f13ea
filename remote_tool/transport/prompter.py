"""Prompt the user while the event loop keeps running."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from remote_tool.redaction import hide
from remote_tool.transport.daemon_threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Prompter:
    """Asks one question at a time, however many servers wait for answers."""

    def __init__(
        self,
        ask: Callable[[str], str | None] | None,
        confirm: Callable[[str], bool] | None = None,
        adopt: Callable[[str], bool] | None = None,
        allow: Callable[[str], bool] | None = None,
    ) -> None:
        self._ask = ask
        self._confirm = confirm
        self._adopt = adopt
        self._allow = allow
        self._allowed: dict[str, asyncio.Task[bool | None]] = {}
        self._one_at_a_time = asyncio.Lock()

    @property
    def can_ask(self) -> bool:
        return self._ask is not None

    @property
    def is_asking(self) -> bool:
        """Return whether a question waits for its answer."""
        return self._one_at_a_time.locked()

    async def ask(self, prompt: str) -> str | None:
        """Ask for a secret; None without a terminal or an answer."""
        answer = None if self._ask is None else await self._answer(partial(self._ask, prompt))
        hide([answer] if answer else [])
        return answer

    async def confirm(self, question: str) -> bool:
        """Ask whether to trust new host keys."""
        return self._confirm is not None and bool(await self._answer(partial(self._confirm, question)))

    async def adopt(self, question: str) -> bool:
        """Ask whether to share a folder that another workspace has sent."""
        return self._adopt is not None and bool(await self._answer(partial(self._adopt, question)))

    async def allow(self, host: str) -> bool:
        """Ask once whether servers may reach a host of the internet through this machine."""
        if self._allow is None:
            return False
        if host not in self._allowed:
            self._allowed[host] = asyncio.create_task(
                self._answer(partial(self._allow, f"Let servers reach {host} through this machine?"))
            )
        # Who asked may have given up; the answer to the question that is on the terminal counts all the same.
        return bool(await asyncio.shield(self._allowed[host]))

    async def _answer(self, ask: Callable[[], T]) -> T | None:
        async with self._one_at_a_time:
            try:
                # In a thread that is abandoned, so that Ctrl-C needs no Enter.
                return await in_daemon_thread(ask, name="ask")
            except (EOFError, OSError):
                return None
