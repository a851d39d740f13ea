"""Connections that several users share: made once, when first needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from remote_tool.errors import HostKeyError, LoginError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable


class HasLiveness(Protocol):
    """Something that may die."""

    @property
    def alive(self) -> bool: ...


K = TypeVar("K", bound="Hashable")
T = TypeVar("T", bound=HasLiveness)

FINAL_ERRORS = (LoginError, HostKeyError, UsageError)  # trying again would only lock us out


class ConnectionCache(Generic[K, T]):
    """One value for each key; all who want it at the same time wait for one attempt and get its result or error."""

    def __init__(self) -> None:
        self._attempts: dict[K, asyncio.Task[T]] = {}

    async def get(self, key: K, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the living value, making it when there is none."""
        attempt = self._attempts.get(key)
        if attempt is None or _is_spent(attempt):
            attempt = asyncio.create_task(make())
            attempt.add_done_callback(_take_notice)
            self._attempts[key] = attempt
        # The others go on waiting when one gives up.
        return await asyncio.shield(attempt)

    async def drain(self) -> list[T]:
        """Stop all attempts, and return the values there are."""
        attempts, self._attempts = list(self._attempts.values()), {}
        for attempt in attempts:
            attempt.cancel()
        results = await asyncio.gather(*attempts, return_exceptions=True)
        return [result for result in results if not isinstance(result, BaseException)]


def _is_spent(attempt: asyncio.Task[T]) -> bool:
    if not attempt.done():
        return False
    if attempt.cancelled():
        return True
    error = attempt.exception()
    if error is None:
        return not attempt.result().alive
    return not isinstance(error, FINAL_ERRORS)


def _take_notice(attempt: asyncio.Task[T]) -> None:
    """Keep asyncio from complaining of an error that nobody waited for any more."""
    if not attempt.cancelled():
        attempt.exception()
