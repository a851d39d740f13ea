"""An SSH server with passwords: sshd without PAM would need the passwords of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import asyncssh
import asyncssh.connection

from remote_tool.config.servers import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path


@dataclass
class PasswordServer:
    """It takes one password, by the methods it is given, and counts what it is offered.

    With a home, commands run there, and ``publickey`` takes what its ``.ssh/authorized_keys`` names.
    """

    password: str = "open sesame"
    methods: Sequence[str] = ("password",)
    question: str = "Password: "
    hangs_up: bool = False
    attempts: list[str] = field(default_factory=list)
    connections: int = 0
    signals: list[str] = field(default_factory=list)
    signalled: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    home: Path | None = None
    host_key: asyncssh.SSHKey = field(default_factory=lambda: asyncssh.generate_private_key("ssh-ed25519"))

    @property
    def fingerprint(self) -> str:
        return self.host_key.get_fingerprint()

    def server(self, name: str = "first", **changes: object) -> Server:
        return Server(name=name, hostname="127.0.0.1", port=self.port, username="someone", **changes)  # type: ignore[arg-type]

    @property
    def authorized_keys(self) -> Path:
        assert self.home is not None
        return self.home / ".ssh" / "authorized_keys"


def trust(question: str) -> bool:
    """Say yes to a new host key; without that no password is sent."""
    assert "New host key" in question
    return True


class _House:
    """The connections of one server, and the commands that run for each."""

    def __init__(self) -> None:
        self._commands: dict[asyncssh.connection.SSHConnection, set[asyncio.Task[None]]] = {}
        self._cancelled: set[asyncio.Task[None]] = set()

    def enter(self, connection: asyncssh.connection.SSHConnection) -> None:
        self._commands[connection] = set()

    def begin(self, connection: asyncssh.connection.SSHConnection) -> None:
        """Have the command that calls this end with its connection."""
        command = asyncio.current_task()
        assert command is not None
        self._commands[connection].add(command)

    def leave(self, connection: asyncssh.connection.SSHConnection) -> None:
        """Cancel the connection's commands, once: a second cancellation would interrupt their cleanup."""
        for command in self._commands[connection] - self._cancelled:
            self._cancelled.add(command)
            command.cancel()

    async def close(self) -> None:
        """End every connection and command."""
        for connection in self._commands:
            connection.abort()
            self.leave(connection)
        await asyncio.gather(*set[asyncio.Task[None]]().union(*self._commands.values()), return_exceptions=True)


class _Door(asyncssh.SSHServer):
    def __init__(self, settings: PasswordServer, house: _House) -> None:
        self._settings = settings
        self._house = house

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._settings.connections += 1
        self._connection = conn
        self._house.enter(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._house.leave(self._connection)

    def begin_auth(self, username: str) -> bool:
        del username
        if self._settings.hangs_up:
            self._connection.abort()
        return True

    def public_key_auth_supported(self) -> bool:
        return "publickey" in self._settings.methods

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        del username
        if self._settings.home is None or not self._settings.authorized_keys.exists():
            return False
        blob = key.export_public_key("openssh").split()[1]
        return blob in self._settings.authorized_keys.read_bytes()

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


async def _run(settings: PasswordServer, house: _House, process: asyncssh.SSHServerProcess[bytes]) -> None:
    house.begin(process.channel.get_connection())
    script = await process.stdin.read()
    try:
        while b"sleep 60" in script:
            await asyncio.sleep(0.01)
            await process.stdin.read(1)  # where the library tells of a signal
    except asyncssh.SignalReceived as received:
        settings.signals.append(received.signal)
        settings.signalled.set()
        return
    async with _shell(process.command or "", settings.home) as shell:
        output, errors = await shell.communicate(script)
        process.stdout.write(output)
        process.stderr.write(errors)
        process.exit(shell.returncode or 0)


@asynccontextmanager
async def _shell(command: str, home: Path | None) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command; it has ended, with all that it started, when this is left."""
    pipe = asyncio.subprocess.PIPE
    environment = os.environ if home is None else {**os.environ, "HOME": str(home)}
    shell = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", command), stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
    )
    try:
        yield shell
    finally:
        if shell.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        try:
            await shell.wait()
        finally:
            # Its pipes are closed by the loop only later, when there may be none any more.
            shell._transport.close()  # type: ignore[attr-defined]


@asynccontextmanager
async def password_server(settings: PasswordServer) -> AsyncIterator[PasswordServer]:
    """Serve while the context is open."""
    house = _House()
    acceptor = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: _Door(settings, house),
        server_host_keys=[settings.host_key],
        process_factory=partial(_run, settings, house),
        encoding=None,
    )
    settings.port = acceptor.get_port()
    try:
        yield settings
    finally:
        acceptor.close()
        await house.close()
        await acceptor.wait_closed()
