"""Run scripts on this machine, in sessions like those of an SSH connection.

A session is a program of its own session and process group. As behind sshd, it outlives this program, whose end it
notices by the end of its stdin or the loss of its terminal.
"""

from __future__ import annotations

import asyncio
import fcntl
import getpass
import os
import pty
import signal
import struct
import subprocess
import termios
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import ConnectError
from remote_tool.transport.daemon_threads import in_daemon_thread
from remote_tool.transport.host import Login, Stream
from remote_tool.transport.pipes import PipeSession, close_all
from remote_tool.transport.ssh.channel import lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.transport.host import UserTerminal
    from remote_tool.transport.ssh.channel import SshChannel

# A login has these, too. Everything else in this program's environment belongs to the shell in which it was typed:
# another shell would make another job of the same command.
KEPT_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR")
KEPT_PREFIXES = ("LC_", "REMOTE_TOOL_TEST_")
# The first terminal that a program opens that leads a session is the terminal of the session.
_TAKE_TERMINAL = 'exec <"$0" >"$0" 2>&1; exec /bin/sh -c "$1"'
# The output of a terminal whose program has ended, but not all that it started.
LAST_OUTPUT_SECONDS = 0.5
_NAMES = {each.value: each.name.removeprefix("SIG") for each in signal.Signals if not each.name.startswith("SIGRT")}


class LocalConnection:
    """This machine; see :class:`remote_tool.transport.ssh.host.HostConnection`."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._sessions: set[LocalSession] = set()
        self._is_closed = False

    @property
    def alive(self) -> bool:
        """Whether it was not closed."""
        return not self._is_closed

    @property
    def login(self) -> Login:
        """The user of this program, who did not log in."""
        return Login(username=getpass.getuser(), method="", host_key="", is_new=False)

    async def create_session(self, channel: SshChannel) -> None:
        """Run the channel's command in a new session.

        Raises:
            ConnectError: No program can be started.
            ConnectionLostError: It was closed.
        """
        if self._is_closed:
            raise lost(self._server, None)
        session = LocalSession(channel, self._sessions.discard)
        try:
            await session.open()
        except OSError as error:
            message = f"{self._server}: no program can be started on this machine: {error.strerror}"
            raise ConnectError(message, hint="ulimit -a; free -h", server=self._server) from error
        self._sessions.add(session)

    async def watch(self, seconds: float, report: Callable[[bool], None]) -> None:
        """Wait until canceled: this machine is not silent while this program runs."""
        del seconds, report
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """End the stdin of the sessions that are still open."""
        self._is_closed = True
        for session in list(self._sessions):
            session.abort()
        await asyncio.sleep(0)


class LocalSession(PipeSession):
    """A program on this machine.

    Args:
        channel: The channel of its command.
        on_end: Called once when the session is over.
    """

    def __init__(self, channel: SshChannel, on_end: Callable[[LocalSession], None]) -> None:
        super().__init__(channel)
        self._on_end = on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._terminal: int | None = None
        self._end_task: asyncio.Task[None] | None = None
        self._is_over = False

    async def open(self) -> None:
        """Start the command, and connect it to the channel; raises OSError."""
        terminal, program = self._channel.terminal, ["/bin/sh", "-c", self._channel.command]
        ends = self._make_pipes() if terminal is None else self._make_terminal(terminal)
        if terminal is not None:
            program = ["/bin/sh", "-c", _TAKE_TERMINAL, os.ttyname(ends[0]), self._channel.command]
        try:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond
                program,
                stdin=ends[0],
                stdout=ends[1],
                stderr=ends[2],
                cwd="/",
                env=_environment(terminal),
                start_new_session=True,
            )
            await self._connect_pipes()
        except BaseException:
            # The channel has not begun, so there is no end to report.
            self._close_ends()
            raise
        finally:
            close_all(list(dict.fromkeys(ends)))
        self._end_task = asyncio.create_task(self._wait_for_end(self._process))
        self._channel.connection_made(self)

    def send_signal(self, signal: str) -> None:
        """Send a signal to the command's process group."""
        _signal_group(self._process, signal)

    def change_terminal_size(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        if self._terminal is not None:
            _set_size(self._terminal, rows, columns)

    def abort(self) -> None:
        """End the session and its stdin without waiting for the command."""
        if self._end_task is not None:
            self._end_task.cancel()
        asyncio.get_running_loop().call_soon(self._finish)

    def _make_terminal(self, terminal: UserTerminal) -> list[int]:
        """Make a pseudo-terminal, and return its other side as stdin, stdout and stderr."""
        self._terminal, other = pty.openpty()
        _set_size(other, terminal.rows, terminal.columns)
        self._open_outputs = {Stream.OUT}
        self._own_ends = [(None, os.dup(self._terminal)), (Stream.OUT, os.dup(self._terminal))]
        return [other] * 3

    async def _wait_for_end(self, process: subprocess.Popen[bytes]) -> None:
        # It is waited for even if the session is aborted.
        status = await in_daemon_thread(process.wait, name=f"wait for {process.pid}")
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self._terminal is None else LAST_OUTPUT_SECONDS):
                await self._outputs_ended.wait()
        self._read_the_rest()
        name = _NAMES.get(-status)
        if name is None:
            # A real-time signal has no name for SSH either; a shell reports it in this way.
            self._channel.exit_status_received(status if status >= 0 else 128 - status)
        else:
            self._channel.exit_signal_received(name, False, "", "")
        self._finish()

    def _read_the_rest(self) -> None:
        """Pass on what a terminal still has, as this program may have been too busy to read it in time."""
        if self._terminal is not None and self._open_outputs:
            with suppress(OSError):
                while data := os.read(self._terminal, 65536):
                    self.data_received(Stream.OUT, data)

    def _finish(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._close_ends()
        self._channel.connection_lost(None)
        self._on_end(self)

    def _close_ends(self) -> None:
        self._close_pipes()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None


def _environment(terminal: UserTerminal | None) -> dict[str, str]:
    """Return the environment of a session, with what a login has in any case."""
    own = {
        name: value for name, value in os.environ.items() if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES)
    }
    user = getpass.getuser()
    usual = {"HOME": str(Path.home()), "USER": user, "LOGNAME": user, "SHELL": "/bin/sh"}
    return {**usual, **own, **({} if terminal is None else {"TERM": terminal.kind})}


def _set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _signal_group(process: subprocess.Popen[bytes] | None, name: str) -> None:
    if process is not None and process.returncode is None:
        with suppress(OSError):
            os.killpg(process.pid, getattr(signal, f"SIG{name}"))
