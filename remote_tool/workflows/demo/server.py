"""Temporary SSH servers on loopback, each with its own home; they run commands as this user.

It stands alone because it uses asyncssh, which only the transport does otherwise.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

import asyncssh

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

CHUNK = 256 * 1024
ADDRESS = "127.0.0.1"
STARTING_SECONDS = 30.0
# Environment variables passed to commands; none is secret.
PASSED_ON = ("PATH", "LANG", "USER", "LOGNAME", "LD_LIBRARY_PATH")
# Outside the homes: torch leaves folders there.
TEMPORARY = "tmp"


@dataclass(frozen=True)
class DemoServer:
    """A running server: its name, home and port."""

    name: str
    home: Path
    port: int


@contextmanager
def running_servers(folder: Path, client_key: Path, count: int) -> Iterator[list[DemoServer]]:
    """Run servers in a thread; commands that still run at the end get SIGHUP.

    Args:
        folder: The parent of their homes.
        client_key: The file for a new private key, the only one that they accept.
        count: The number of servers.
    """
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(client_key))
    client_key.chmod(0o600)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="demo servers", daemon=True)
    thread.start()
    group = _ServerGroup(folder, key)
    try:
        yield asyncio.run_coroutine_threadsafe(group.start(count), loop).result(STARTING_SECONDS)
    finally:
        asyncio.run_coroutine_threadsafe(group.stop(), loop).result(STARTING_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STARTING_SECONDS)
        loop.close()


class _ServerGroup:
    def __init__(self, folder: Path, key: asyncssh.SSHKey) -> None:
        self._folder = folder
        self._key = key
        self._acceptors: list[asyncssh.SSHAcceptor] = []
        self._connections: WeakSet[asyncssh.SSHServerConnection] = WeakSet()
        self._sessions: set[asyncio.Task[None]] = set()

    async def start(self, count: int) -> list[DemoServer]:
        """Start the servers."""
        return [await self._start(f"server{number}") for number in range(1, count + 1)]

    async def _start(self, name: str) -> DemoServer:
        home = self._folder / name
        home.mkdir(mode=0o700)
        (self._folder / TEMPORARY).mkdir(mode=0o700, exist_ok=True)

        def handle(process: asyncssh.SSHServerProcess[bytes]) -> None:
            task = asyncio.get_running_loop().create_task(_serve(process, home))
            self._sessions.add(task)
            task.add_done_callback(self._sessions.discard)

        acceptor = await asyncssh.listen(
            ADDRESS,
            0,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            authorized_client_keys=asyncssh.import_authorized_keys(self._key.export_public_key().decode()),
            process_factory=handle,
            acceptor=self._connections.add,
            encoding=None,
            line_editor=False,
            window=2 * 1024 * 1024,
        )
        self._acceptors.append(acceptor)
        return DemoServer(name, home, acceptor.get_port())

    async def stop(self) -> None:
        """End every session and connection, then the servers."""
        for acceptor in self._acceptors:
            acceptor.close()
        for task in list(self._sessions):
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))
        await asyncio.gather(*(acceptor.wait_closed() for acceptor in self._acceptors))


async def _serve(process: asyncssh.SSHServerProcess[bytes], home: Path) -> None:
    """Run the command of one session."""
    if process.command is None:
        process.stderr.write(b"This server runs commands only.\n")
        process.exit(1)
        return
    async with _child(process, home) as child:
        assert child.stdin is not None
        feeding = asyncio.create_task(_feed(process.stdin, child.stdin))
        disconnected = asyncio.create_task(process.channel.wait_closed())
        copying = asyncio.create_task(_copy_both(child, process))
        try:
            await asyncio.wait({copying, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                _exit(process, await child.wait())
        finally:
            for task in (feeding, disconnected, copying):
                task.cancel()
            await asyncio.gather(feeding, disconnected, copying, return_exceptions=True)


@asynccontextmanager
async def _child(process: asyncssh.SSHServerProcess[bytes], home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    peer = process.get_extra_info("peername")
    here = process.get_extra_info("sockname")
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment |= {
        "HOME": str(home),
        "SHELL": "/bin/sh",
        "TMPDIR": str(home.with_name(TEMPORARY)),
        # The servers are one machine, and NCCL refuses two processes on the same GPU.
        "CUDA_VISIBLE_DEVICES": "",
        "SSH_CONNECTION": f"{peer[0]} {peer[1]} {here[0]} {here[1]}",
    }
    child = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        process.command or "",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=home,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        # As sshd does when the connection ends; jobs have their own sessions and are not affected.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGHUP)
        with suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), 2.0)
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()


async def _feed(source: asyncssh.SSHReader[bytes], target: asyncio.StreamWriter) -> None:
    with suppress(BrokenPipeError, ConnectionResetError, asyncssh.Error):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    target.close()


async def _copy_both(child: asyncio.subprocess.Process, process: asyncssh.SSHServerProcess[bytes]) -> None:
    assert child.stdout is not None
    assert child.stderr is not None
    await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))


async def _copy(source: asyncio.StreamReader, target: asyncssh.SSHWriter[bytes]) -> None:
    with suppress(BrokenPipeError, ConnectionResetError, asyncssh.Error):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()


def _exit(process: asyncssh.SSHServerProcess[bytes], status: int) -> None:
    if status >= 0:
        process.exit(status)
    else:
        process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
