"""The user's private keys offered to a server: from files and from the ssh agent."""

from __future__ import annotations

import asyncio
import shlex
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from remote_tool.errors import LoginError
from remote_tool.transport.ssh import key_files, login_errors
from remote_tool.transport.ssh.endpoint import AuthMethods
from remote_tool.transport.ssh.host_keys.entries import HostKey
from remote_tool.transport.ssh.key_files import LockedKeyError
from remote_tool.transport.ssh.library import asyncssh

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from remote_tool.transport.ssh.context import ConnectionContext
    from remote_tool.transport.ssh.login_errors import LoginProgress
    from remote_tool.transport.ssh.passwords import Passwords


# An agent that takes longer may have asked somebody to confirm or to touch a key.
UNATTENDED_SECONDS = 0.5


class ClientKeys:
    """The private keys for a login, in the order in which they are offered."""

    def __init__(self, progress: LoginProgress, passwords: Passwords, context: ConnectionContext) -> None:
        self._server = progress.endpoint.server
        self._identity = progress.endpoint.identity
        self._progress = progress
        self._passwords = passwords
        self._passphrases = context.passphrases
        self._notice = context.rules.notice
        self._locked: list[Path] = []
        self._files: dict[int, Path] = {}

    async def load(self, agent: asyncssh.SSHAgentClient | None) -> list[asyncssh.SSHKeyPair]:
        """Return the configured key alone; without one, the keys of the agent and of ~/.ssh that need no passphrase.

        Raises:
            LoginError: The configured key cannot be used.
        """
        if self._identity.methods is AuthMethods.PASSWORDS:
            return []
        if self._identity.private_key is not None:
            return await self._load_configured(self._identity.private_key, agent)
        only = self._identity.files if self._identity.files_only else None
        keys = await self._from_agent(agent, only)
        for path in self._identity.files:
            keys += await self._load_usual(path)
        return keys

    async def next_locked(self) -> list[asyncssh.SSHKeyPair] | None:
        """Return the next key that needs a passphrase, opened; None without another one."""
        while self._locked:
            if pairs := await self._unlock(self._locked.pop(0)):
                return pairs
        return None

    def source_of(self, signer: object) -> tuple[Path | None, str] | None:
        """Return the file of a key, None for a key of the agent, and its public half.

        There is no answer for a key that needs somebody's passphrase, confirmation or touch to be used again.
        """
        if not isinstance(signer, asyncssh.SSHKeyPair) or signer.has_cert:
            return None
        # With a second factor, the last method is another one.
        if "-sk" in self._progress.method or "key" not in self._progress.method:
            return None
        if self._progress.signing_seconds > UNATTENDED_SECONDS:
            return None
        path = self._files.get(id(signer))
        if path is None and not isinstance(signer, asyncssh.SSHAgentKeyPair):
            return None
        return path, HostKey(signer.get_algorithm(), signer.public_data).text

    async def _load_open(self, path: Path) -> list[asyncssh.SSHKeyPair]:
        """Load a key that needs no passphrase."""
        keys = await asyncio.to_thread(key_files.load_key_file, path)
        self._files |= {id(key): path for key in keys}
        return keys

    async def _load_configured(self, path: Path, agent: asyncssh.SSHAgentClient | None) -> list[asyncssh.SSHKeyPair]:
        if key_files.make_private(path):
            self._notice(self._server, f"chmod 600 {path}: other users could read the private key")
        problem = key_files.problem_of_key_file(path)
        if problem:
            raise self._error(f"the private key {path} {problem[0]}", problem[1])
        try:
            return await self._load_open(path)
        except LockedKeyError:
            pass
        except ValueError as error:
            hint = f"Set private_key: of {self._server} to the file without .pub"
            raise self._error(f"{path} is not a private key: {error}", hint) from None
        pairs = await self._from_agent(agent, [path]) or await self._unlock(path)
        if pairs:
            return pairs
        reason = "the passphrase is wrong" if self._progress.can_ask else "there is no terminal to ask for it"
        raise self._error(f"the private key {path} has a passphrase, and {reason}", f"ssh-add {shlex.quote(str(path))}")

    async def _load_usual(self, path: Path) -> list[asyncssh.SSHKeyPair]:
        """Load a key of ~/.ssh, if it exists; skip with a note a key that ssh would skip."""
        problem = key_files.problem_of_key_file(path)
        if problem == key_files.MISSING or path.suffix == ".pub":
            return []
        if problem:
            self._progress.notes.append(f"the private key {path} {problem[0]}")
            return []
        try:
            return await self._load_open(path)
        except LockedKeyError:
            self._locked.append(path)
        except ValueError as error:
            self._progress.notes.append(f"{path} is not a private key: {error}")
        return []

    async def _unlock(self, path: Path) -> list[asyncssh.SSHKeyPair]:
        pairs = await self._passwords.unlock(
            path, self._passphrases, partial(asyncio.to_thread, key_files.load_key_file, path)
        )
        if not pairs:
            self._progress.notes.append(f"the private key {path} has a passphrase")
        return pairs

    async def _from_agent(
        self, agent: asyncssh.SSHAgentClient | None, only: Sequence[Path] | None
    ) -> list[asyncssh.SSHKeyPair]:
        allowed = None if only is None else [data for path in only if (data := key_files.public_data(path))]
        if agent is None or allowed == []:
            return []
        try:
            async with asyncio.timeout(login_errors.CONNECT_SECONDS):
                return list(await agent.get_keys(allowed))
        except (OSError, ValueError, asyncssh.Error) as error:
            self._progress.notes.append(f"the ssh agent does not answer ({error})")
            return []

    def _error(self, reason: str, hint: str) -> LoginError:
        return LoginError(f"{self._server}: {reason}", hint=hint, server=self._server)


@asynccontextmanager
async def connect_agent(progress: LoginProgress) -> AsyncIterator[asyncssh.SSHAgentClient | None]:
    """Connect to the ssh agent during a login; an unresponsive agent counts as none."""
    path = progress.endpoint.identity.agent
    agent = None
    if path:
        try:
            async with asyncio.timeout(login_errors.CONNECT_SECONDS):
                agent = await asyncssh.connect_agent(path)
        except (OSError, asyncssh.Error) as error:
            progress.notes.append(f"the ssh agent at {path} does not answer ({error})")
    try:
        yield agent
    finally:
        if agent is not None:
            agent.close()


def track_signatures(keys: Sequence[asyncssh.SSHKeyPair], progress: LoginProgress) -> None:
    """Record which key signs last: a server requests signatures only of keys that it accepts."""
    for key in keys:
        for name, tracked in (("sign", _sign), ("sign_async", _sign_with_agent)):
            if sign := getattr(key, name, None):
                setattr(key, name, partial(tracked, sign, key, progress))


async def _sign_with_agent(
    sign: Callable[[bytes], Any], key: asyncssh.SSHKeyPair, progress: LoginProgress, data: bytes
) -> bytes:
    began = time.monotonic()
    signature: bytes = await _sign(sign, key, progress, data)
    progress.signing_seconds = time.monotonic() - began
    return signature


def _sign(sign: Callable[[bytes], Any], key: asyncssh.SSHKeyPair, progress: LoginProgress, data: bytes) -> Any:  # noqa: ANN401
    progress.method = key_files.key_name(key.algorithm.decode("ascii", "replace"))
    progress.signer = key
    return sign(data)
