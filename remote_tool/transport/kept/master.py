"""Talk to a master over its socket: open a session, check that it is alive, end it."""

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

# For the master's answer, which waits for the server's when a session opens.
ANSWER_SECONDS = 1.0


class NoAnswerError(Exception):
    """No master, or not the expected answer; no session was opened, and nothing was run."""


class Conversation:
    """One connection to a master; use as a context."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._packets = mux.Packets()
        self._read: list[tuple[int, tuple[int, ...]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, which ends a session that was opened here, and its stdin."""
        self._socket.close()

    async def begin(self) -> None:
        """Connect; raises NoAnswerError."""
        try:
            self._socket.connect(str(self._path))
            self._socket.send(mux.hello())
        except OSError as error:
            raise NoAnswerError(str(error)) from None
        kind, numbers = await self.answer()
        if kind != Message.HELLO or numbers[:1] != (mux.VERSION,):  # extensions may follow
            raise NoAnswerError("not a master")

    async def ask_for_session(self, command: str, descriptors: tuple[int, int, int]) -> None:
        """Open a session in which the login shell runs a command; nothing is written to its stdin.

        Raises:
            NoAnswerError: No session was opened.
        """
        try:
            self._socket.send(mux.new_session(command))
            for descriptor in descriptors:
                socket.send_fds(self._socket, [b"\0"], [descriptor])
        except OSError as error:
            raise NoAnswerError(str(error)) from None
        kind, _ = await self.answer()
        if kind != Message.SESSION_OPENED:
            raise NoAnswerError("no session")

    async def alive_pid(self) -> int:
        """Return the process id of a master that answers; raises NoAnswerError."""
        return (await self._ask(mux.alive_check(), Message.ALIVE))[-1]

    async def terminate(self) -> None:
        """End the master with all its sessions; return once it has confirmed, or if it has already ended."""
        with suppress(NoAnswerError):
            await self._ask(mux.terminate(), Message.OK)

    async def answer(self) -> tuple[int, tuple[int, ...]]:
        """Return the next packet; raises NoAnswerError at the end."""
        loop = asyncio.get_running_loop()
        while not self._read:
            try:
                data = await loop.sock_recv(self._socket, 4096)
                self._read = self._packets.feed(data)
            except (OSError, ValueError) as error:
                raise NoAnswerError(str(error)) from None
            if not data:
                raise NoAnswerError("the master hung up")
        return self._read.pop(0)

    async def _ask(self, question: bytes, wanted: Message) -> tuple[int, ...]:
        try:
            self._socket.send(question)
        except OSError as error:
            raise NoAnswerError(str(error)) from None
        kind, numbers = await self.answer()
        if kind != wanted or not numbers:
            raise NoAnswerError(f"answer {kind:#x}")
        return numbers


async def pid_of_master(path: Path, seconds: float = ANSWER_SECONDS) -> int | None:
    """Return the process id of the master at a socket; None without an answer within ``seconds``."""
    with suppress(NoAnswerError, TimeoutError), Conversation(path) as conversation:
        async with asyncio.timeout(seconds):
            await conversation.begin()
            return await conversation.alive_pid()
    return None


async def server_answers(path: Path) -> bool:
    """Wait until the server has answered a request for an empty session; return False without a master."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        with Conversation(path) as conversation:
            await conversation.begin()
            await conversation.ask_for_session("exit 0", (nothing, nothing, nothing))
    except NoAnswerError:
        # A server that refuses the session has answered too.
        return await pid_of_master(path) is not None
    finally:
        os.close(nothing)
    return True


async def run_blindly(path: Path, command: str, seconds: float) -> None:
    """Run a command on the server without its streams and without learning its outcome."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        with suppress(NoAnswerError, TimeoutError), Conversation(path) as conversation:
            async with asyncio.timeout(seconds):
                await conversation.begin()
                await conversation.ask_for_session(command, (nothing, nothing, nothing))
                while True:
                    await conversation.answer()
    finally:
        os.close(nothing)
