"""The forwards of one server: ports here, which outlast connections, and the tunnel of the current connection."""

from __future__ import annotations

import asyncio
import errno
import socket
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError, UsageError
from remote_tool.protocol.tunnel import CHUNK, REFUSED, StreamResetError, connect, reset
from remote_tool.workflows.events import Notice
from remote_tool.workflows.forward.addresses import HIGHEST_PORT, Forward, SocketAddress
from remote_tool.workflows.tunnel import open_tunnel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.protocol.framing import Frame
    from remote_tool.protocol.tunnel import Connection, Tunnel
    from remote_tool.transport.host import Host
    from remote_tool.workflows.context import Context

# A connection waits this long for a server that has no connection now.
RECONNECT_SECONDS = 15.0
MOST_PORTS_OF_JOB = 64
MOST_NAMED = 8
# An IPv6 address with its zone.
LONGEST_HOST = 63
# Ports to try here after the requested one.
MOST_TRIES = 100
_NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


@dataclass(frozen=True)
class Opened:
    """A port or socket on which connections are accepted.

    Attributes:
        server: The server.
        listen: Its address: here, or on the server if ``reverse``.
        target: The address to which connections go: on the server, or here if ``reverse``.
        reverse: Whether the server listens.
        requested_port: The port that was requested here; ``listen`` has another one if it is in use.
        taken_by: The server of this forward that has the requested port; empty if no server has it.
    """

    server: str
    listen: SocketAddress
    target: SocketAddress
    reverse: bool = False
    requested_port: int = 0
    taken_by: str = ""


class ForwardSession:
    """The forwards of one server.

    Attributes:
        has_worked: Whether the server has answered once.
        is_reverse: Whether the server listens, and connections come here.
    """

    def __init__(
        self, context: Context, server: str, forwards: Sequence[Forward], *, reverse: bool, job: Job | None
    ) -> None:
        self.server = server
        self.has_worked = False
        self._context = context
        self._forwards = forwards
        self.is_reverse = reverse
        self._job = job
        self._opened: list[Opened] = []
        self._sockets: dict[SocketAddress, list[socket.socket]] = {}
        self._listeners: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._tunnel: Tunnel | None = None
        self._is_connected = asyncio.Event()
        self._reported: set[str] = set()

    def bind(self, port_owners: dict[int, str]) -> None:
        """Listen here, without accepting connections yet, and note the server as the owner of the ports.

        Raises:
            UsageError: This machine does not have the address.
        """
        for each in self._forwards:
            if self.is_reverse:
                self._opened.append(Opened(self.server, each.listen, each.target, reverse=True))
            else:
                opened = self._bind(each)
                self._opened.append(replace(opened, taken_by=port_owners.get(opened.requested_port, "")))
                port_owners[opened.listen.port] = self.server

    async def run(self, host: Host, on_open: Callable[[Opened], None], on_answer: Callable[[], None]) -> bool:
        """Carry connections over this connection until it ends; return whether the job has ended.

        Raises:
            JobError: The server refuses, for example because a port is in use there.
            ConnectionLostError: The connection was lost.
        """
        listen = [each.listen.as_listener() for each in self._forwards] if self.is_reverse else []
        request = {"listen": listen, "job": "" if self._job is None else self._job.id}
        async with open_tunnel(host, self._context.config, request, self._connect_here) as (tunnel, _, frames):
            try:
                await self._begin(tunnel, on_open, on_answer)
                return await self._take_frames(tunnel, frames, on_open)
            finally:
                self._tunnel = None
                self._is_connected.clear()

    async def close(self) -> None:
        """Close all ports, and reset their connections."""
        for listener in self._listeners:
            listener.close()
        for sockets in self._sockets.values():
            for each in sockets:
                each.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _take_frames(
        self, tunnel: Tunnel, frames: AsyncIterator[Frame], on_open: Callable[[Opened], None]
    ) -> bool:
        async for frame in frames:
            if "over" in frame.header and self._job is not None:
                self._end_with_job(self._job)
                return True
            if "ports" in frame.header and self._job is not None:
                await self._add_ports(frame.header, on_open)
            else:
                tunnel.take(frame.header, frame.body)
        return False

    async def _begin(self, tunnel: Tunnel, on_open: Callable[[Opened], None], on_answer: Callable[[], None]) -> None:
        self._tunnel = tunnel
        self._is_connected.set()
        is_first, self.has_worked = not self.has_worked, True
        if is_first:
            for opened in self._opened:
                if not self.is_reverse:
                    await self._accept_at(opened)
                on_open(opened)
        on_answer()

    def _end_with_job(self, job: Job) -> None:
        if not self._sockets:
            message = f"Job {job.key} has ended, and none of its ports was forwarded"
            raise JobError(message, hint=f"remote-tool job-tail {job.key}", server=self.server)
        self._report_once(f"job {job.key} has ended; its ports are closed")

    async def _add_ports(self, header: Mapping[str, Any], on_open: Callable[[Opened], None]) -> None:
        """Forward the new ports of the job, each from the same port here."""
        ports, others = _parse_ports(header)
        for target in ports:
            if target not in self._sockets and len(self._sockets) < MOST_PORTS_OF_JOB:
                opened = self._bind(Forward(SocketAddress(port=target.port), target))
                await self._accept_at(opened)
                on_open(opened)
        if header.get("elsewhere"):
            self._report_once(
                "the job has a network of its own, whose ports cannot be forwarded; start it in the host's network"
            )
        if not ports and not others:
            self._report_once("the job listens on no port yet; waiting")
        if others:
            more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
            self._report_once(
                f"ports that the system chose for the job are not forwarded: {', '.join(map(str, others[:MOST_NAMED]))}"
                f"{more}; to forward one: remote-tool forward {others[0]} --server {self.server}",
                about="others",
            )

    def _bind(self, requested: Forward) -> Opened:
        sockets, port = bind_free_port(requested.listen)
        self._sockets[requested.target] = [*self._sockets.get(requested.target, []), *sockets]
        listen = SocketAddress(requested.listen.host, port)
        return Opened(self.server, listen, requested.target, requested_port=requested.listen.port)

    async def _accept_at(self, opened: Opened) -> None:
        for each in self._sockets[opened.target]:
            if each.getsockname()[1] == opened.listen.port:
                accept = partial(self._start_carrying, opened.target)
                self._listeners.append(await asyncio.start_server(accept, sock=each, limit=CHUNK))

    def _start_carrying(
        self, target: SocketAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._start(self._carry((reader, writer), target))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, connection: Connection, target: SocketAddress) -> None:
        """Carry a connection that was accepted here; if this fails, reset it, and report the reason once."""
        try:
            async with asyncio.timeout(RECONNECT_SECONDS):
                await self._is_connected.wait()
            if self._tunnel is None:
                raise ConnectionResetError
            await self._tunnel.carry(connection, target.as_target())
            self._note_success(target)
        except StreamResetError as error:
            self._report_failure(target, f"on {self.server}", str(error))
        except OSError:
            # The connection to the server was lost, which is reported elsewhere, or the program here closed its own.
            reset(connection[1])
        except asyncio.CancelledError:
            reset(connection[1])
            raise

    async def _connect_here(self, number: object) -> Connection:
        """Connect to the target of a reverse forward, which the server names by its number."""
        if not self.is_reverse or not isinstance(number, int) or not 0 <= number < len(self._forwards):
            raise ConnectionRefusedError
        target = self._forwards[number].target
        try:
            if target.path:
                connection = await asyncio.open_unix_connection(_expand(target.path), limit=CHUNK)
            else:
                connection = await connect(target.host, target.port)
        except OSError as error:
            is_refused = isinstance(error, ConnectionRefusedError | FileNotFoundError)
            self._report_failure(target, "here", REFUSED if is_refused else str(error.strerror or error))
            raise
        self._note_success(target)
        return connection

    def _report_failure(self, target: SocketAddress, where: str, why: str) -> None:
        """Report once why connections to a target fail; again only after one has succeeded."""
        if why == REFUSED:
            self._report_once(f"nothing listens on {target} {where}", about=str(target))
        elif why:
            self._report_once(f"cannot connect to {target} {where}: {why}", about=str(target))

    def _report_once(self, text: str, *, about: str = "") -> None:
        if (about or text) not in self._reported:
            self._reported.add(about or text)
            self._context.report(Notice(self.server, text))

    def _note_success(self, target: SocketAddress) -> None:
        self._reported.discard(str(target))


def _expand(path: str) -> str:
    return str(Path(path).expanduser())


def _parse_ports(header: Mapping[str, Any]) -> tuple[list[SocketAddress], list[int]]:
    """Return the ports of a job that can be forwarded, and those that the system chose."""
    ports = []
    for each in _list_of(header, "ports"):
        match each:
            case [str(host), int(port)] if 0 < port <= HIGHEST_PORT and _is_printable_host(host):
                ports.append(SocketAddress(host, port))
    others = [port for port in _list_of(header, "others") if type(port) is int and 0 < port <= HIGHEST_PORT]
    return ports, others


def _is_printable_host(host: str) -> bool:
    return len(host) <= LONGEST_HOST and host.isprintable()


def _list_of(header: Mapping[str, Any], name: str) -> list[Any]:
    found = header.get(name)
    return found if isinstance(found, list) else []


def bind_free_port(address: SocketAddress) -> tuple[list[socket.socket], int]:
    """Listen on a port, or on the next one that is free; return the sockets and the port.

    Raises:
        UsageError: This machine does not have the address.
    """
    for port in range(address.port, min(address.port + MOST_TRIES, 65536)):
        try:
            return _listen(address.hosts, port)
        except OSError as error:
            if error.errno == errno.EACCES:
                break
            if error.errno != errno.EADDRINUSE:
                raise UsageError(
                    f"Cannot listen on {address.host}: {error.strerror or error}",
                    hint="Give an address of this machine",
                ) from None
    return _listen(address.hosts, 0)


def _listen(hosts: tuple[str, ...], port: int) -> tuple[list[socket.socket], int]:
    """Listen on one port of all addresses; only the first has to exist, as a machine may have no IPv6."""
    sockets: list[socket.socket] = []
    try:
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                sockets.append(socket.create_server((host, port), family=family))
            except OSError as error:
                if not sockets or error.errno not in _NO_SUCH_ADDRESS:
                    raise
            port = port or int(sockets[0].getsockname()[1])
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets, port
