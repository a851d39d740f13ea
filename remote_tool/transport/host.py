"""The seam to the world: what a workflow can do on a server, whatever carries it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from remote_tool.transport.login import Login

MEBIBYTE = 1024 * 1024


class Stream(IntEnum):
    """Which output of a remote command."""

    OUT = 1
    ERR = 2


@dataclass(frozen=True)
class Exit:
    """How a remote command ended.

    Attributes:
        status: Its exit status, 0 to 255; None when a signal ended it.
        signal: The signal's name without ``SIG``, as SSH sends it (RFC 4254, 6.10); empty without one.
    """

    status: int | None
    signal: str = ""


@dataclass(frozen=True)
class Completed:
    """A remote command that ended, with all its output as bytes."""

    exit: Exit
    stdout: bytes
    stderr: bytes

    @property
    def ok(self) -> bool:
        return self.exit.status == 0


class Channel(Protocol):
    """A remote command that runs, and its three streams of bytes."""

    async def start(self) -> None:
        """Wait until the login shell has started the command, or has ended; what is written before may be lost.

        Raises RemoteCommandError when that takes too long, ConnectionLostError.
        """

    async def write(self, data: bytes) -> None:
        """Send to the command's stdin; waits while the other side does not read."""

    async def write_eof(self) -> None:
        """Close the command's stdin."""

    async def read(self, stream: Stream = Stream.OUT, size: int = 65536) -> bytes:
        """Return what has come, at most size bytes; empty at the end. Raises ConnectionLostError."""

    async def wait(self) -> Exit:
        """Return how the command ended, after all its output was read. Raises ConnectionLostError."""

    def close(self) -> None:
        """Give the channel up, whatever the command does; its stdin ends."""


class Host(Protocol):
    """One server that we are logged in to.

    Every script is for ``/bin/sh`` and travels in stdin, never in argv: it may be of any size, may hold any byte but
    NUL, and is not seen by ``ps``. It may be run by any login shell.
    """

    @property
    def name(self) -> str:
        """The server's name in the configuration."""

    @property
    def login(self) -> Login:
        """How we got in."""

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,  # noqa: ASYNC109 - every wait has a bound, and the caller knows which
        limit: int = 16 * MEBIBYTE,
        check: bool = True,
        label: str = "",
    ) -> Completed:
        """Run a script to its end.

        Args:
            script: For ``/bin/sh``.
            stdin: What the script's commands may read.
            timeout: Seconds until it is given up.
            limit: Bytes of output that are accepted.
            check: Whether an exit status other than 0 is an error.
            label: What ``-v`` and errors show instead of the script.

        Raises:
            RemoteCommandError: It failed, ran out of time or said too much.
            ConnectionLostError: The link went; whether it ran is not known.
        """

    def open(self, script: str, *, label: str = "") -> AbstractAsyncContextManager[Channel]:
        """Start a script whose streams the caller reads and writes; leaving the context closes the channel."""

    async def watch(self, seconds: float, tell: Callable[[bool], None]) -> None:
        """Call ``tell(False)`` when the server has said nothing for so many seconds, ``tell(True)`` when it does again.

        It runs until it is cancelled. A server that answers is never reported, even when its commands print nothing.
        """

    async def upload(self, data: bytes, path: str, *, mode: int = 0o600) -> None:
        """Write a file, relative to ``$HOME``; it appears whole or not at all, its folder is made (0700)."""
