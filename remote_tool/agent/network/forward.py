"""Forward connections between the client and this server: to its ports, from its ports, or to a job's ports."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
import sys
from contextlib import suppress
from functools import partial

from remote_tool.agent import states
from remote_tool.agent.network.reachability import ephemeral_range
from remote_tool.agent.proc.sockets import socket_inodes, tcp_sockets
from remote_tool.agent.requests import Request, is_list, is_text
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import NO_SUCH_JOB, RequestError
from remote_tool.protocol.framing import FrameReader
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.tunnel import CHUNK, StreamResetError, Tunnel, connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

    from remote_tool.protocol.tunnel import Connection

# The client sends something more often than this, unless its laptop is asleep.
_LONGEST_SILENCE = 120.0
# A stopped program listens but accepts no connection.
_LEFT_OVER_SECONDS = 5.0
_QUICK_SCANS, _QUICK, _SLOW = 60, 0.5, 3.0
# The address of a Unix socket has room for 108 bytes.
_LONGEST_PATH = 107
_LISTENING = b"0A"


def forward(request: Request) -> None:
    """Answer op ``forward`` until the client has disconnected or is silent for too long."""
    asyncio.run(_forward(request))


async def _forward(request: Request) -> None:
    loop = asyncio.get_event_loop()
    incoming = asyncio.StreamReader(limit=CHUNK)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(incoming), os.fdopen(0, "rb", 0, closefd=False))
    # sshd hangs up on this program at the end of a connection, often before stdin ends.
    loop.add_signal_handler(signal.SIGHUP, incoming.feed_eof)
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(1, "wb", 0, closefd=False)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def write(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    tunnel = Tunnel(request.nonce, is_first=False, write=write, connect=_connect)
    session = _Forwards(tunnel)
    try:
        await session.listen(request.get("listen", is_list, default=[]))
        await tunnel.send({"ready": True, "listening": session.ports})
        job = request.get("job", is_text, default="")
        if job:
            session.start(_report_ports(tunnel, job_folder.open_jobs_folder(request.folders().jobs), job))
        await _read(incoming, FrameReader(request.nonce), tunnel)
    finally:
        await session.close()


async def _read(incoming: asyncio.StreamReader, frames: FrameReader, tunnel: Tunnel) -> None:
    while True:
        try:
            data = await asyncio.wait_for(incoming.read(CHUNK), _LONGEST_SILENCE)
        except asyncio.TimeoutError:
            return
        if not data:
            return
        for frame in frames.feed(data):
            tunnel.take(frame.header, frame.body)


class _Forwards:
    """The listeners and the tasks of one request."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._listeners: List[asyncio.AbstractServer] = []
        self._sockets: Dict[str, Tuple[int, int]] = {}
        self._tasks: Set[asyncio.Future[None]] = set()

    def start(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def listen(self, places: List[Any]) -> None:
        """Listen at each place; its number is the target that the client connects to."""
        for number, place in enumerate(places):
            accept = partial(self._accept, number)
            if "path" in place:
                path = _path_of(place)
                self._listeners.append(await _listen_at_path(path, accept))
                self._sockets[path] = _identity(path)
            else:
                self._listeners += await _listen_at_port(place["hosts"], int(place["port"]), accept)

    @property
    def ports(self) -> List[int]:
        """The ports that it listens on, also those that the system chose."""
        sockets = [each for listener in self._listeners for each in getattr(listener, "sockets", ())]
        found = [each for each in sockets if each.family != socket.AF_UNIX]
        return [each.getsockname()[1] for each in found]

    async def close(self) -> None:
        # The path first: once nothing listens there, another forward may take it.
        for path, ours in self._sockets.items():
            with suppress(OSError):
                if _identity(path) == ours:
                    os.unlink(path)
        for listener in self._listeners:
            listener.close()
        await self._tunnel.close()
        for task in self._tasks:
            task.cancel()

    def _accept(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.start(self._carry((reader, writer), number))

    async def _carry(self, connection: Connection, number: int) -> None:
        with suppress(StreamResetError, OSError):
            await self._tunnel.carry(connection, number)


async def _report_ports(tunnel: Tunnel, jobs: Optional[int], job_id: str) -> None:
    """Send the ports of a job whenever they change, until it has ended."""
    loop, known, count = asyncio.get_event_loop(), None, 0
    while True:
        try:
            found = await loop.run_in_executor(None, _find_job_ports, jobs, job_id)
        except RequestError as error:
            await tunnel.send({"error": str(error), "hint": error.hint})
            return
        except OSError:
            # Such as too many open files: the next scan may succeed.
            found = known
        if found is None:
            await tunnel.send({"over": True})
            return
        if found != known:
            known = found
            await tunnel.send({"ports": found.ports, "others": found.chosen_by_system, "elsewhere": found.is_elsewhere})
        count += 1
        await asyncio.sleep(_QUICK if count < _QUICK_SCANS else _SLOW)


async def _connect(target: Any) -> Connection:  # noqa: ANN401 - what the client has sent
    if "path" not in target:
        return await connect(str(target["host"]), int(target["port"]))
    with _ShortPath(_path_of(target)) as path:
        return await asyncio.open_unix_connection(path, limit=CHUNK)


def _path_of(place: Any) -> str:  # noqa: ANN401 - what the client has sent
    return os.path.expanduser(str(place["path"]))


async def _listen_at_port(hosts: List[str], port: int, accept: Any) -> List[asyncio.AbstractServer]:  # noqa: ANN401
    """Listen on a port of these addresses; a server may have no IPv6."""
    found: List[asyncio.AbstractServer] = []
    for host in hosts:
        try:
            found.append(await asyncio.start_server(accept, host, port, limit=CHUNK))
        except OSError as error:
            if found and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue
            for listener in found:
                listener.close()
            raise _refusal(f"port {port}", error) from None
    return found


async def _listen_at_path(path: str, accept: Any) -> asyncio.AbstractServer:  # noqa: ANN401
    """Listen on a Unix socket that only this user can use; replace a stale one that no program listens on."""
    before = os.umask(0o177)
    try:
        with _ShortPath(path) as short:
            sock = socket.socket(socket.AF_UNIX)
            try:
                _bind(sock, short, path)
                return await asyncio.start_unix_server(accept, sock=sock, limit=CHUNK)
            except BaseException:
                sock.close()
                raise
    except OSError as error:
        raise _refusal(path, error) from None
    finally:
        os.umask(before)


def _bind(sock: socket.socket, short: str, path: str) -> None:
    try:
        sock.bind(short)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        _refuse_other_files(path)
        if not _is_left_over(short):
            raise
        os.unlink(short)
        sock.bind(short)


def _refuse_other_files(path: str) -> None:
    """Refuse a path where something other than a socket is: connecting to it fails as to a stale socket."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISSOCK(mode):
        kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"), (stat.S_ISFIFO, "FIFO"))
        kind = next((name for is_kind, name in kinds if is_kind(mode)), "device")
        raise RequestError(f"{path} is a {kind} on the server", hint=f"Choose another path, e.g. {path}.sock")


def _is_left_over(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_LEFT_OVER_SECONDS)
        try:
            sock.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _identity(path: str) -> Tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _refusal(place: str, error: OSError) -> RequestError:
    if error.errno == errno.EADDRINUSE:
        return RequestError(f"{place} is in use on the server", hint="Choose another one, e.g. 8889:localhost:6006")
    if error.errno == errno.EACCES:
        return RequestError(f"{place} on the server is not allowed for this user", hint="Choose a port above 1023")
    return RequestError(f"cannot listen on {place}: {error.strerror or error}")


class _ShortPath:
    """Makes a Unix socket's path of any length short enough for the kernel, through a descriptor of its folder."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder: Optional[int] = None

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= _LONGEST_PATH:
            return self._path
        folder, name = os.path.split(self._path)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._folder}/{name}"

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            os.close(self._folder)


class _JobPorts(NamedTuple):
    """The ports of a job.

    Attributes:
        ports: Host and port, as this machine reaches them.
        chosen_by_system: Ports that a program has not chosen itself, such as those of process groups.
        is_elsewhere: Whether processes of the job have a network of their own, whose ports are not listed.
    """

    ports: List[Tuple[str, int]]
    chosen_by_system: List[int]
    is_elsewhere: bool


def _find_job_ports(jobs: Optional[int], job_id: str) -> Optional[_JobPorts]:
    """Return the ports of a job; None once it has ended.

    Raises:
        RequestError: There is no such job.
    """
    folder = job_folder.open_job(jobs, job_id)
    if folder is None:
        raise RequestError(NO_SUCH_JOB)
    try:
        status = states.judge(folder, job_id, states.scan())
    finally:
        os.close(folder)
    if status.is_finished or (status.state == "lost" and not status.members):
        return None
    inodes, is_elsewhere = _socket_inodes([process.pid for process in status.members])
    low, high = ephemeral_range()
    found = {_parse_address(each.local) for each in tcp_sockets() if each.state == _LISTENING and each.inode in inodes}
    return _JobPorts(
        sorted(each for each in found if not low <= each[1] <= high),
        sorted({port for _, port in found if low <= port <= high}),
        is_elsewhere,
    )


def _socket_inodes(pids: List[int]) -> Tuple[Set[bytes], bool]:
    """Return the sockets of processes in our network, and whether others have a network of their own."""
    network, is_elsewhere = os.readlink("/proc/self/ns/net"), False
    inodes: Set[bytes] = set()
    for pid in pids:
        try:
            if os.readlink(f"/proc/{pid}/ns/net") != network:
                is_elsewhere = True
                continue
            inodes.update(socket_inodes(pid))
        except OSError:
            # It has just ended, or it changed its user.
            continue
    return inodes, is_elsewhere


def _parse_address(end: bytes) -> Tuple[str, int]:
    """Return the host and port of a line's end such as ``0100007F:1F90``."""
    digits, _, port = end.partition(b":")
    words = [int(digits[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(digits), 8)]
    packed = b"".join(words)
    host = socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)
    is_here = not any(packed) or host == "::1" or host.startswith(("127.", "::ffff:127."))
    return "localhost" if is_here else host, int(port, 16)
