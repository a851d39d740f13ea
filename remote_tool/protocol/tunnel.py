"""Many byte streams over one channel: each has a window, so a stream that nobody reads delays no other.

Both sides use this. The header of a frame is one of ``{"open": N, "to": target}``, ``{"data": N}`` with bytes,
``{"end": N}`` (no more data in this direction), ``{"more": N, "bytes": B}`` (B bytes were delivered), and
``{"reset": N, "why": text}``.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

from remote_tool.protocol import framing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Awaitable, Callable, Dict, List, Optional, Tuple

    Target = Any
    Connection = Tuple[asyncio.StreamReader, asyncio.StreamWriter]
    Header = Dict[str, Any]

# Bytes of a stream that are on the way or unread; a tunnel holds at most MOST_STREAMS times as many.
WINDOW = 1024 * 1024
MOST_STREAMS = 256
CHUNK = 64 * 1024
CONNECT_SECONDS = 10.0
REFUSED = "refused"
_KINDS = ("data", "more", "end", "reset")
_LONGEST_WHY = 200
_RESET = struct.pack("ii", 1, 0)


class StreamResetError(Exception):
    """The other side has ended a stream; the text says why, and may be empty."""


class Tunnel:
    """One side of a tunnel.

    Args:
        nonce: Marks the frames.
        is_first: Whether this side has the odd numbers for its streams.
        write: Writes a frame; waits while the channel is full. Raises OSError when it is lost.
        connect: Connects to a target that the other side names.
    """

    def __init__(
        self,
        nonce: str,
        *,
        is_first: bool,
        write: Callable[[bytes], Awaitable[None]],
        connect: Callable[[Target], Awaitable[Connection]],
    ) -> None:
        self._nonce = nonce
        self._next = 1 if is_first else 2
        self._write = write
        self._connect = connect
        self._streams: Dict[int, _TunnelStream] = {}
        self._tasks: Dict[int, asyncio.Future[None]] = {}
        # It is fair: streams with much data take turns.
        self._turn = asyncio.Lock()

    async def send(self, header: Header, body: bytes = b"") -> None:
        """Send a frame, also one that is not about a stream."""
        async with self._turn:
            await self._write(framing.encode(self._nonce, header, body))

    async def carry(self, connection: Connection, target: Target) -> None:
        """Connect a target of the other side with a connection, until both directions have ended.

        Raises:
            StreamResetError: The other side could not connect, or its connection was reset.
        """
        if len(self._streams) >= MOST_STREAMS:
            reset(connection[1])
            raise StreamResetError(f"more than {MOST_STREAMS} connections at once")
        number, self._next = self._next, self._next + 2
        stream = self._streams[number] = _TunnelStream(self, number)
        try:
            await self.send({"open": number, "to": target})
            await stream.run(connection)
        except BaseException:
            reset(connection[1])
            raise
        finally:
            del self._streams[number]

    def take(self, header: Header, body: bytes) -> None:
        """Handle a frame about a stream; those about streams that have ended have no effect."""
        number = header.get("open")
        # The other side may know of an end that has not been delivered here.
        if isinstance(number, int) and number not in self._streams and len(self._streams) < 2 * MOST_STREAMS:
            self._streams[number] = _TunnelStream(self, number)
            self._tasks[number] = asyncio.ensure_future(self._accept(number, header.get("to")))
        for kind in _KINDS:
            number = header.get(kind)
            stream = self._streams.get(number) if isinstance(number, int) else None
            if stream is not None:
                stream.take(kind, header, body)

    async def close(self) -> None:
        """Reset every stream, without waiting for targets that do not answer."""
        for stream in list(self._streams.values()):
            stream.fail("")
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, number: int, target: Target) -> None:
        stream = self._streams[number]
        connection: Optional[Connection] = None
        try:
            connection = await asyncio.wait_for(self._connect(target), CONNECT_SECONDS)
            await stream.run(connection)
        except StreamResetError:
            pass
        # A name that cannot be looked up is a UnicodeError.
        except (OSError, UnicodeError, asyncio.TimeoutError) as error:
            if connection is None:
                with suppress(OSError):
                    await self.send({"reset": number, "why": _why(error)})
        finally:
            del self._streams[number], self._tasks[number]
            if connection is not None and not stream.is_complete:
                reset(connection[1])


class _TunnelStream:
    """One stream: its window for sending, and the data that is not delivered yet.

    Attributes:
        is_complete: Whether both directions have ended, and the connection is closed.
    """

    def __init__(self, tunnel: Tunnel, number: int) -> None:
        self._tunnel = tunnel
        self._number = number
        self._window = WINDOW
        self._has_window = asyncio.Event()
        self._has_window.set()
        # Ends with an empty one.
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._undelivered = 0
        self._failure: asyncio.Future[None] = asyncio.get_event_loop().create_future()
        self.is_complete = False

    async def run(self, connection: Connection) -> None:
        """Carry both directions; raises StreamResetError, OSError."""
        reader, writer = connection
        writer.transport.set_write_buffer_limits(CHUNK)
        ways = [asyncio.ensure_future(way) for way in (self._send(reader), self._deliver(writer))]
        both = asyncio.gather(*ways)
        try:
            either: List[asyncio.Future[Any]] = [both, self._failure]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            both.result()
            self.is_complete = True
            writer.close()
        except OSError:
            with suppress(OSError):
                await self._tunnel.send({"reset": self._number, "why": ""})
            raise
        finally:
            # A failed gather leaves its other half running.
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            if both.done() and not both.cancelled():
                both.exception()

    def take(self, kind: str, header: Header, data: bytes) -> None:
        """Handle a frame of the other side."""
        if kind == "data" and data:
            self._undelivered += len(data)
            if self._undelivered > WINDOW:
                self.fail("the other side sent more than the window")
            else:
                self._arrived.put_nowait(data)
        elif kind == "end":
            self._arrived.put_nowait(b"")
        elif kind == "more":
            self._widen(header.get("bytes"))
        elif kind == "reset":
            self.fail(str(header.get("why", ""))[:_LONGEST_WHY])

    def fail(self, why: str) -> None:
        """End the stream at once."""
        if not self._failure.done():
            self._failure.set_exception(StreamResetError(why))
            # It may end before anybody waits.
            self._failure.exception()

    def _widen(self, count: object) -> None:
        if isinstance(count, int) and 0 < count <= WINDOW - self._window:
            self._window += count
            self._has_window.set()

    async def _send(self, reader: asyncio.StreamReader) -> None:
        while True:
            await self._has_window.wait()
            data = await reader.read(min(CHUNK, self._window))
            if not data:
                await self._tunnel.send({"end": self._number})
                return
            self._window -= len(data)
            if not self._window:
                self._has_window.clear()
            await self._tunnel.send({"data": self._number}, data)

    async def _deliver(self, writer: asyncio.StreamWriter) -> None:
        delivered = 0
        while True:
            data = await self._arrived.get()
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            self._undelivered -= len(data)
            delivered += len(data)
            if delivered >= WINDOW // 4:
                await self._tunnel.send({"more": self._number, "bytes": delivered})
                delivered = 0


async def connect(host: str, port: int) -> Connection:
    """Connect to a port; ``localhost`` is this machine's loopback, IPv4 or IPv6, whatever its names say."""
    if host != "localhost":
        return await asyncio.open_connection(host, port, limit=CHUNK)
    try:
        return await asyncio.open_connection("127.0.0.1", port, limit=CHUNK)
    except OSError:
        with suppress(OSError):
            return await asyncio.open_connection("::1", port, limit=CHUNK)
        raise


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that its program sees a reset, not an end."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def _why(error: BaseException) -> str:
    if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
        return REFUSED
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer within {CONNECT_SECONDS:.0f} s"
    return str(getattr(error, "strerror", None) or error)[:_LONGEST_WHY]
