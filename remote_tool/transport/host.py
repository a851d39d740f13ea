"""The interface to a server, independent of the transport."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

MEBIBYTE = 1024 * 1024


class Stream(IntEnum):
    """An output stream of a remote command."""

    OUT = 1
    ERR = 2


@dataclass(frozen=True)
class Exit:
    """The end of a remote command.

    Attributes:
        status: Its exit status, 0 to 255; None when a signal ended it.
        signal: The signal's name without ``SIG``, as SSH sends it (RFC 4254, 6.10); empty without one.
    """

    status: int | None
    signal: str = ""


@dataclass(frozen=True)
class Completed:
    """A finished remote command, with all its output as bytes."""

    exit: Exit
    stdout: bytes
    stderr: bytes

    @property
    def ok(self) -> bool:
        return self.exit.status == 0


@dataclass(frozen=True)
class Login:
    """A successful login.

    Attributes:
        username: The user.
        method: ``ed25519 key``, ``password``; ``no key`` if the server required none.
        host_key: Type and fingerprint of the server's key; empty for a certificate.
        is_new: Whether that key was unknown before.
    """

    username: str
    method: str
    host_key: str
    is_new: bool


@dataclass(frozen=True)
class UserTerminal:
    """The user's terminal, as a command on the server needs to know it.

    Attributes:
        kind: Its type, as in TERM.
        rows: Its height.
        columns: Its width.
    """

    kind: str
    rows: int
    columns: int


class Channel(Protocol):
    """A running remote command, and its three byte streams."""

    async def start(self) -> None:
        """Wait until the login shell has started the command or has ended; writes before that may be lost.

        Raises RemoteCommandError after a timeout, ConnectionLostError.
        """

    async def write(self, data: bytes) -> None:
        """Write to the command's stdin; waits while the other side does not read."""

    async def write_eof(self) -> None:
        """Close the command's stdin."""

    @property
    def stdin_pipe(self) -> int | None:
        """The local pipe to the command's stdin; None without one, or while data waits to be written to it."""

    async def read(self, stream: Stream = Stream.OUT, size: int = 65536) -> bytes:
        """Return received bytes, at most ``size``; empty at the end. Raises ConnectionLostError."""

    async def wait(self) -> Exit:
        """Return how the command ended, after all its output was read. Raises ConnectionLostError."""

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the command's terminal, if it has one."""

    def close(self) -> None:
        """Close the channel without waiting for the command, whose stdin ends."""


class Host(Protocol):
    """A server with an open connection.

    Every script is for ``/bin/sh`` and is sent on stdin, never in argv: it may have any size and any byte but
    NUL, and ``ps`` does not show it. It works with any login shell.
    """

    @property
    def name(self) -> str:
        """The server's name in the configuration."""

    @property
    def login(self) -> Login:
        """The login of the connection."""

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,  # noqa: ASYNC109 - every wait has a bound, which the caller knows
        limit: int = 16 * MEBIBYTE,
        check: bool = True,
        label: str = "",
    ) -> Completed:
        """Run a script and wait for its end.

        Args:
            script: For ``/bin/sh``.
            stdin: Input of the script's commands.
            timeout: In seconds.
            limit: Maximum bytes of output.
            check: Whether an exit status other than 0 is an error.
            label: Shown by ``-v`` and errors in place of the script.

        Raises:
            RemoteCommandError: It failed, timed out or printed too much.
            ConnectionLostError: The connection was lost; whether the script ran is unknown.
        """

    def open(
        self, script: str, *, label: str = "", terminal: UserTerminal | None = None
    ) -> AbstractAsyncContextManager[Channel]:
        """Start a script and return its streams; leaving the context closes the channel.

        With a terminal, the script's only output is that of the terminal, and closing the channel hangs up.
        """

    async def watch(self, seconds: float, report: Callable[[bool], None]) -> None:
        """Call ``report(False)`` after this many seconds of silence, ``report(True)`` once the server responds again.

        Runs until canceled. A responsive server is never reported, even when its commands print nothing.
        """
