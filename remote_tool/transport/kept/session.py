"""One session of a kept login: the three pipes between this program and the master, and the exit status."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.transport.kept.master import MasterClient, MasterError, pid_of_master
from remote_tool.transport.kept.mux import Message
from remote_tool.transport.pipes import PipeSession, close_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.host import Stream
    from remote_tool.transport.ssh.channel import SshChannel

LONGEST_ANSWER = 10.0  # for a slow master; one that has ended is noticed at once


class KeptSession(PipeSession):
    """A session of a kept login.

    Args:
        path: The master's socket.
        channel: The channel of the session's command.
        on_data: Called whenever data arrives.
        on_end: Called once when the session is over, with whether the master has ended.
        signal_process: Sends a signal to a process on the server: its id, and the name of the signal.
    """

    def __init__(
        self,
        path: Path,
        channel: SshChannel,
        *,
        on_data: Callable[[], None],
        on_end: Callable[[bool], None],
        signal_process: Callable[[int, str], None],
    ) -> None:
        super().__init__(channel)
        self._path = path
        self._on_data = on_data
        self._on_end = on_end
        self._signal_process = signal_process
        self._master = MasterClient(path)
        self._is_over = False
        self._end_task: asyncio.Task[None] | None = None
        self._eof_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the session, but send nothing before :meth:`attach`.

        Raises:
            MasterError: It was not opened, and nothing was run.
        """
        master_ends = self._make_pipes()
        try:
            await self._master.connect()
            await self._master.open_session(self._channel.command, (master_ends[0], master_ends[1], master_ends[2]))
        except BaseException:
            self._master.close()
            self._close_pipes()
            raise
        finally:
            close_all(master_ends)

    async def attach(self) -> None:
        """Connect the open session to the channel, which sends its script."""
        try:
            await self._connect_pipes()
        except BaseException:
            self.abort()
            raise
        self._end_task = asyncio.create_task(self._wait_for_end())
        self._channel.connection_made(self)

    def send_signal(self, signal: str) -> None:
        """Send a signal to the command's processes, from another session, as a master does not forward signals."""
        if self._channel.remote_pid:
            self._signal_process(self._channel.remote_pid, signal)

    def abort(self, *, master_ended: bool = False) -> None:
        """End the session and its stdin without waiting for the master."""
        if self._end_task is not None:
            self._end_task.cancel()
        asyncio.get_running_loop().call_soon(self._finish, master_ended)

    def data_received(self, stream: Stream, data: bytes) -> None:
        """Pass output to the channel."""
        self._on_data()
        super().data_received(stream, data)

    def _all_outputs_ended(self) -> None:
        self._eof_task = asyncio.create_task(self._report_eof())

    async def _report_eof(self) -> None:
        """Report the end of the output, unless the master has ended, so that the connection was lost."""
        if await pid_of_master(self._path, LONGEST_ANSWER) is not None and not self._is_over:
            self._channel.eof_received()

    async def _wait_for_end(self) -> None:
        """Wait for the end of the session, and report the exit status.

        A master reports a command that a signal ended like a session that the server closed; both count as lost.
        """
        with suppress(MasterError):
            while True:
                self._handle(*await self._master.answer())
        await self._outputs_ended.wait()
        # The exit status arrives before the last output; a master that still answers has passed on all output.
        self._finish(await pid_of_master(self._path, LONGEST_ANSWER) is None)

    def _handle(self, kind: int, numbers: tuple[int, ...]) -> None:
        if kind == Message.EXIT and len(numbers) > 1:
            self._channel.exit_status_received(numbers[1])

    def _finish(self, master_ended: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._eof_task is not None:
            self._eof_task.cancel()
        self._master.close()
        self._close_pipes()
        self._channel.connection_lost(ConnectionError("the kept login has ended") if master_ended else None)
        self._on_end(master_ended)
