"""An SSH server with passwords: sshd without PAM would need the passwords of this machine."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import asyncssh

from remote_tool.config.model import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


@dataclass
class PasswordServer:
    """It takes one password, by the methods it is given, and counts what it is offered."""

    password: str = "open sesame"
    methods: Sequence[str] = ("password",)
    question: str = "Password: "
    hangs_up: bool = False
    attempts: list[str] = field(default_factory=list)
    connections: int = 0
    signals: list[str] = field(default_factory=list)
    signalled: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    def server(self, **changes: object) -> Server:
        return Server(name="first", hostname="127.0.0.1", port=self.port, username="someone", **changes)  # type: ignore[arg-type]


class _Door(asyncssh.SSHServer):
    def __init__(self, settings: PasswordServer) -> None:
        self._settings = settings

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._settings.connections += 1
        self._connection = conn

    def begin_auth(self, username: str) -> bool:
        del username
        if self._settings.hangs_up:
            self._connection.abort()
        return True

    def public_key_auth_supported(self) -> bool:
        return "publickey" in self._settings.methods

    def password_auth_supported(self) -> bool:
        return "password" in self._settings.methods

    def validate_password(self, username: str, password: str) -> bool:
        del username
        self._settings.attempts.append(password)
        return password == self._settings.password

    def kbdint_auth_supported(self) -> bool:
        return "keyboard-interactive" in self._settings.methods

    def get_kbdint_challenge(
        self, username: str, lang: str, submethods: str
    ) -> tuple[str, str, str, list[tuple[str, bool]]]:
        del username, lang, submethods
        return "", "", "", [(self._settings.question, False)]

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> bool:
        del username
        self._settings.attempts += responses
        return list(responses) == [self._settings.password]


async def _run(settings: PasswordServer, process: asyncssh.SSHServerProcess[bytes]) -> None:
    script = await process.stdin.read()
    try:
        while b"sleep" in script:
            await asyncio.sleep(0.01)
            await process.stdin.read(1)  # where the library tells of a signal
    except asyncssh.SignalReceived as received:
        settings.signals.append(received.signal)
        settings.signalled.set()
        return
    shell = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", process.command or "", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await shell.communicate(script)
    process.stdout.write(output)
    process.exit(shell.returncode or 0)


@asynccontextmanager
async def password_server(settings: PasswordServer) -> AsyncIterator[PasswordServer]:
    """Serve while the context is open."""
    acceptor = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: _Door(settings),
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        process_factory=partial(_run, settings),
        encoding=None,
    )
    settings.port = acceptor.get_port()
    try:
        yield settings
    finally:
        acceptor.close()
        await acceptor.wait_closed()
