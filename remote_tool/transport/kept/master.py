"""A client of a master's socket: open a session, check that the master is alive, end it."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from remote_tool.transport.kept import mux
from remote_tool.transport.kept.mux import Message

if TYPE_CHECKING:
    from pathlib import Path

# When a session opens, the master answers after the server.
ANSWER_SECONDS = 1.0


class MasterError(Exception):
    """There is no master, or not the expected answer; no session was opened, and nothing was run."""


class MasterClient:
    """One connection to a master, closed at the end of its context."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._packets = mux.Packets()
        self._received: list[tuple[int, tuple[int, ...]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; a session of this connection ends, and so does its stdin."""
        self._socket.close()

    async def connect(self) -> None:
        """Connect; raises MasterError."""
        try:
            self._socket.connect(str(self._path))
            self._socket.send(mux.hello())
        except OSError as error:
            raise MasterError(str(error)) from None
        kind, numbers = await self.answer()
        if kind != Message.HELLO or numbers[:1] != (mux.VERSION,):  # extensions may follow
            raise MasterError("not a master")

    async def open_session(self, command: str, descriptors: tuple[int, int, int]) -> None:
        """Open a session in which the login shell runs a command, with these stdin, stdout and stderr.

        Raises:
            MasterError: No session was opened.
        """
        try:
            self._socket.send(mux.new_session(command))
            for descriptor in descriptors:
                socket.send_fds(self._socket, [b"\0"], [descriptor])
        except OSError as error:
            raise MasterError(str(error)) from None
        kind, _ = await self.answer()
        if kind != Message.SESSION_OPENED:
            raise MasterError("no session")

    async def pid(self) -> int:
        """Return the process id of a master that answers; raises MasterError."""
        return (await self._ask(mux.alive_check(), Message.ALIVE))[-1]

    async def terminate(self) -> None:
        """End the master with all its sessions; return once it has confirmed, or if it has ended already."""
        with suppress(MasterError):
            await self._ask(mux.terminate(), Message.OK)

    async def answer(self) -> tuple[int, tuple[int, ...]]:
        """Return the next packet; raises MasterError at the end."""
        loop = asyncio.get_running_loop()
        while not self._received:
            try:
                data = await loop.sock_recv(self._socket, 4096)
                self._received = self._packets.feed(data)
            except (OSError, ValueError) as error:
                raise MasterError(str(error)) from None
            if not data:
                raise MasterError("the master hung up")
        return self._received.pop(0)

    async def _ask(self, request: bytes, expected: Message) -> tuple[int, ...]:
        try:
            self._socket.send(request)
        except OSError as error:
            raise MasterError(str(error)) from None
        kind, numbers = await self.answer()
        if kind != expected or not numbers:
            raise MasterError(f"answer {kind:#x}")
        return numbers


async def pid_of_master(path: Path, seconds: float = ANSWER_SECONDS) -> int | None:
    """Return the process id of the master at a socket; None without an answer within ``seconds``."""
    with suppress(MasterError, TimeoutError), MasterClient(path) as master:
        async with asyncio.timeout(seconds):
            await master.connect()
            return await master.pid()
    return None


async def server_answers(path: Path) -> bool:
    """Open an empty session, and wait for the server's answer to that; return False without a master."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        with MasterClient(path) as master:
            await master.connect()
            await master.open_session("exit 0", (null, null, null))
    except MasterError:
        # To refuse the session is an answer, too.
        return await pid_of_master(path) is not None
    finally:
        os.close(null)
    return True


async def run_unobserved(path: Path, command: str, seconds: float) -> None:
    """Run a command on the server without its streams and its exit status."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        with suppress(MasterError, TimeoutError), MasterClient(path) as master:
            async with asyncio.timeout(seconds):
                await master.connect()
                await master.open_session(command, (null, null, null))
                while True:
                    await master.answer()
    finally:
        os.close(null)
