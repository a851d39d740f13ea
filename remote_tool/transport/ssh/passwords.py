"""Answers to a server's login prompts: the configured password once, then the user's input."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from remote_tool.redaction import hide
from remote_tool.transport.ssh.endpoint import AuthMethods, printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from remote_tool.transport.prompter import Prompter
    from remote_tool.transport.ssh.endpoint import Endpoint

T = TypeVar("T")

ATTEMPTS = 3  # as in ssh
SHOWN_NAMES = 6


class LoginClock:
    """The login timeout, which stops while the user types."""

    def __init__(self) -> None:
        self._timeout: asyncio.Timeout | None = None
        self._seconds = 0.0

    @contextmanager
    def controlling(self, timeout: asyncio.Timeout) -> Iterator[None]:
        """Control a timeout in this context."""
        self._timeout = timeout
        try:
            yield
        finally:
            self._timeout = None

    def restart(self, seconds: float) -> None:
        """Set the remaining time, in seconds from now."""
        self._seconds = seconds
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + seconds)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock in this context, and restart it at the end."""
        if self._timeout is not None:
            self._timeout.reschedule(None)
        try:
            yield
        finally:
            self.restart(self._seconds)


class CommonPasswords:
    """Passwords that are asked for once, for all servers with the same user name."""

    def __init__(self, prompter: Prompter) -> None:
        self._prompter = prompter
        self._servers: defaultdict[str, list[str]] = defaultdict(list)
        self._answers: dict[str, str | None] = {}
        self._one_at_a_time = asyncio.Lock()

    def expect(self, username: str, server: str) -> None:
        """Ask for this server together with others of the same user."""
        self._servers[username].append(server)

    async def password_for(self, endpoint: Endpoint) -> str | None:
        """Return the common password; None if this server needs a question of its own."""
        servers = self._servers.get(endpoint.username, [])
        if len(servers) == 1 or endpoint.is_jump or endpoint.server not in servers:
            return None
        async with self._one_at_a_time:
            if endpoint.username not in self._answers:
                prompt = (
                    f"Password of {endpoint.username} on {_joined(servers)} (leave empty to enter them one by one): "
                )
                self._answers[endpoint.username] = await self._prompter.ask(prompt)
        return self._answers[endpoint.username] or None


class Passphrases:
    """Key files with a passphrase, each opened once for all servers."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}
        self._opened: dict[Path, list[Any]] = {}
        self._one_at_a_time = asyncio.Lock()

    def remember(self, path: Path, passphrase: str) -> None:
        """Store a passphrase."""
        self._known[path] = passphrase

    async def open(
        self, path: Path, ask: Callable[[], Awaitable[str | None]], load: Callable[[str], Awaitable[list[T]]]
    ) -> list[T]:
        """Return the keys that ``load`` reads from a file with its passphrase; empty without the right one.

        ``load`` raises ValueError for a wrong passphrase.
        """
        async with self._one_at_a_time:
            if path not in self._opened:
                self._opened[path] = await self._open(path, ask, load)
        # A login modifies its keys, so it gets copies. Opening the file again would be slow, as passphrases intend.
        return [copy.copy(key) for key in self._opened[path]]

    async def _open(
        self, path: Path, ask: Callable[[], Awaitable[str | None]], load: Callable[[str], Awaitable[list[T]]]
    ) -> list[T]:
        if path in self._known:
            return await load(self._known[path])
        for _ in range(ATTEMPTS):
            passphrase = await ask()
            if not passphrase:
                break
            with suppress(ValueError):
                return await load(passphrase)
        return []


def _joined(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return f"{', '.join(names[:SHOWN_NAMES])} and {more} more" if more > 0 else ", ".join(names)


class Passwords:
    """The answers for one login."""

    def __init__(self, endpoint: Endpoint, prompter: Prompter, clock: LoginClock, common: CommonPasswords) -> None:
        self._endpoint = endpoint
        self._prompter = prompter
        self._clock = clock
        self._common = common
        self._configured_used = False
        self._common_used = False
        self._questions = 0

    @property
    def can_answer(self) -> bool:
        """Return whether there is an unused password, or a user to ask."""
        if self._endpoint.identity.methods is AuthMethods.KEYS:
            return False
        return self._prompter.can_ask or (self._configured() is not None and not self._configured_used)

    async def password(self) -> str | None:
        """Return the next password to try; None when there is none."""
        if self._endpoint.identity.methods is AuthMethods.KEYS:
            return None
        if self._configured() is not None:
            return self._take_configured()
        prompt = f"Password of {self._endpoint.username} on {self._endpoint.title}: "
        return await self._take_common() or await self._ask(prompt)

    async def answers(self, prompts: Sequence[str]) -> list[str] | None:
        """Answer the server's prompts; a single password prompt with the configured password."""
        answers = []
        for prompt in prompts:
            answer = await self._answer(printable(prompt), alone=len(prompts) == 1)
            if answer is None:
                return None
            answers.append(answer)
        return answers

    async def unlock(self, path: Path, passphrases: Passphrases, load: Callable[[str], Awaitable[list[T]]]) -> list[T]:
        """Open a key file with its known passphrase, or ask for it."""

        async def ask() -> str | None:
            return await self._ask_now(f"Passphrase of {path}: ")

        # Another question may come first.
        with self._clock.stopped():
            return await passphrases.open(path, ask, load)

    def _configured(self) -> str | None:
        password = self._endpoint.identity.configured_password()
        hide([password] if password else [])
        return password

    def _take_configured(self) -> str | None:
        """Return the configured password, but only once: a second failure may lock the user out."""
        used, self._configured_used = self._configured_used, True
        return None if used else self._configured()

    async def _take_common(self) -> str | None:
        """Return the common password, but only once."""
        if self._common_used:
            return None
        self._common_used = True
        with self._clock.stopped():
            return await self._common.password_for(self._endpoint)

    async def _answer(self, prompt: str, *, alone: bool) -> str | None:
        if alone and "passw" in prompt.lower():
            if self._configured() is not None:
                return self._take_configured()
            if common := await self._take_common():
                return common
        return await self._ask(f"{self._endpoint.title}: {prompt}")

    async def _ask(self, prompt: str) -> str | None:
        self._questions += 1
        return await self._ask_now(prompt) if self._questions <= ATTEMPTS else None

    async def _ask_now(self, prompt: str) -> str | None:
        if not self._prompter.can_ask:
            return None
        with self._clock.stopped():
            return await self._prompter.ask(prompt)
