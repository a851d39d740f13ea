"""Connections that several callers share: created once, when first needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from remote_tool.errors import HostKeyError, LoginError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable


class HasLiveness(Protocol):
    """A connection that may be lost."""

    @property
    def alive(self) -> bool: ...


K = TypeVar("K", bound="Hashable")
T = TypeVar("T", bound=HasLiveness)

# A retry would fail too, and may lock the user out.
FINAL_ERRORS = (LoginError, HostKeyError, UsageError)


class ConnectionCache(Generic[K, T]):
    """A value for each key; concurrent callers share one attempt and its result or error."""

    def __init__(self) -> None:
        self._attempts: dict[K, asyncio.Task[T]] = {}

    async def get(self, key: K, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the live value, creating it if there is none."""
        attempt = self._attempts.get(key)
        if attempt is None or _must_retry(attempt):
            attempt = asyncio.create_task(make())
            attempt.add_done_callback(_retrieve_error)
            self._attempts[key] = attempt
        # If one caller is canceled, the others keep waiting.
        return await asyncio.shield(attempt)

    async def drain(self) -> list[T]:
        """Cancel all attempts, and return the existing values."""
        attempts, self._attempts = list(self._attempts.values()), {}
        for attempt in attempts:
            attempt.cancel()
        results = await asyncio.gather(*attempts, return_exceptions=True)
        return [result for result in results if not isinstance(result, BaseException)]


def _must_retry(attempt: asyncio.Task[T]) -> bool:
    """Return whether an attempt has failed, or its connection was lost."""
    if not attempt.done():
        return False
    if attempt.cancelled():
        return True
    error = attempt.exception()
    if error is None:
        return not attempt.result().alive
    return not isinstance(error, FINAL_ERRORS)


def _retrieve_error(attempt: asyncio.Task[T]) -> None:
    """Retrieve the error of an attempt that no caller waits for, so that asyncio does not log it."""
    if not attempt.cancelled():
        attempt.exception()
