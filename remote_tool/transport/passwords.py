"""Answers to what a server asks before it lets us in: the configured password once, then what the user types."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from remote_tool.transport.endpoint import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.transport.asking import Asker
    from remote_tool.transport.endpoint import Endpoint

ATTEMPTS = 3  # as ssh has it


class LoginClock:
    """The time a login may take; it stands still while the user types."""

    def __init__(self) -> None:
        self._timeout: asyncio.Timeout | None = None
        self._seconds = 0.0

    @contextmanager
    def of(self, timeout: asyncio.Timeout) -> Iterator[None]:
        """Govern a timeout."""
        self._timeout = timeout
        try:
            yield
        finally:
            self._timeout = None

    def restart(self, seconds: float) -> None:
        """Give some seconds from now on."""
        self._seconds = seconds
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + seconds)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stand still, and begin anew."""
        if self._timeout is not None:
            self._timeout.reschedule(None)
        try:
            yield
        finally:
            self.restart(self._seconds)


class Passwords:
    """The answers for one login."""

    def __init__(self, endpoint: Endpoint, asker: Asker, clock: LoginClock) -> None:
        self._endpoint = endpoint
        self._asker = asker
        self._clock = clock
        self._configured_used = False
        self._questions = 0

    @property
    def can_answer(self) -> bool:
        """Whether there is a password that was not tried, or somebody to ask."""
        return self._asker.can_ask or (self._configured() is not None and not self._configured_used)

    async def password(self) -> str | None:
        """Return the next password to try; None when there is none."""
        if self._configured() is not None:
            return self._take_configured()
        return await self._ask(f"Password of {self._endpoint.username} on {self._endpoint.title}: ")

    async def answers(self, prompts: Sequence[str]) -> list[str] | None:
        """Answer the server's own questions; a single one for a password with the configured password."""
        answers = []
        for prompt in prompts:
            answer = await self._answer(printable(prompt), alone=len(prompts) == 1)
            if answer is None:
                return None
            answers.append(answer)
        return answers

    async def passphrase(self, path: object) -> str | None:
        """Ask for what opens a key file."""
        return await self._ask_now(f"Passphrase of {path}: ")

    def _configured(self) -> str | None:
        return self._endpoint.identity.configured_password()

    def _take_configured(self) -> str | None:
        """Return the configured password, but only once: a second failure may lock the user out."""
        used, self._configured_used = self._configured_used, True
        return None if used else self._configured()

    async def _answer(self, prompt: str, *, alone: bool) -> str | None:
        if alone and self._configured() is not None and "passw" in prompt.lower():
            return self._take_configured()
        return await self._ask(f"{self._endpoint.title}: {prompt}")

    async def _ask(self, prompt: str) -> str | None:
        self._questions += 1
        return await self._ask_now(prompt) if self._questions <= ATTEMPTS else None

    async def _ask_now(self, prompt: str) -> str | None:
        if not self._asker.can_ask:
            return None
        with self._clock.stopped():
            return await self._asker.ask(prompt)
