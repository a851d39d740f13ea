"""Transfer bytes between two servers at full speed, counted by the receiver.

Neither side transfers more than a greeting before the other has proved that it knows the measurement's secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import sys
import threading
import time

from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Sequence

# Purpose of a connection, sent by its initiator after the greeting.
TALK, SEND, TAKE = b"E", b"S", b"R"
STREAMS = 4
_NONCE = 32
_BLOCK = 1024 * 1024
_BUFFER_SIZE = 4 * 1024 * 1024
_LINE_LIMIT = 4096
# Part of the time that is not counted, while the streams ramp up.
_WARM_UP = 0.2
_STEP_SECONDS = 0.2
# The sender continues until the receiver has counted enough.
_LONGER = 5.0
# MSG_TRUNC: Linux discards received TCP data without copying it.
_DISCARD = socket.MSG_TRUNC if sys.platform == "linux" else 0


class UntrustedPeer(OSError):  # noqa: N818 - not a fault of this program
    """The peer does not know the secret."""


class Counted(NamedTuple):
    """Bytes that arrived between two times of this machine's monotonic clock."""

    size: int
    begin: float
    end: float


def introduce(connection: socket.socket, secret: bytes, purpose: bytes) -> None:
    """Authenticate a connection that we opened; UntrustedPeer when the peer does not know the secret."""
    ours, theirs = _exchange(connection)
    connection.sendall(_proof(secret, b"opens", ours, theirs))
    if not hmac.compare_digest(read_exactly(connection, _NONCE), _proof(secret, b"listens", theirs, ours)):
        raise UntrustedPeer("another program answers there")
    connection.sendall(purpose)


def greet(connection: socket.socket, secret: bytes) -> bytes:
    """Authenticate an incoming connection and return its purpose; UntrustedPeer when the secret is wrong."""
    ours, theirs = _exchange(connection)
    if not hmac.compare_digest(read_exactly(connection, _NONCE), _proof(secret, b"opens", theirs, ours)):
        raise UntrustedPeer("it does not know the secret")
    connection.sendall(_proof(secret, b"listens", ours, theirs))
    return read_exactly(connection, 1)


def send(connection: socket.socket, seconds: float) -> None:
    """Send until the receiver has enough, with a time limit slightly above its own."""
    _set_step(connection, socket.SO_SNDTIMEO)
    block = memoryview(os.urandom(_BLOCK))
    end = time.monotonic() + seconds + _LONGER
    while time.monotonic() < end:
        try:
            connection.send(block)
        except BlockingIOError:
            continue
        except OSError:
            return


def take(connection: socket.socket, seconds: float) -> Counted:
    """Receive for a number of seconds from the first byte on; count without the ramp-up."""
    _set_step(connection, socket.SO_RCVTIMEO)
    buffer = bytearray(_BUFFER_SIZE)
    start = time.monotonic()
    limit = start + seconds + _LONGER
    # No data yet.
    while _receive(connection, buffer) < 0 and time.monotonic() < limit:
        start = time.monotonic()
    begin = start + seconds * _WARM_UP
    count, now = 0, time.monotonic()
    while now < start + seconds:
        received = _receive(connection, buffer)
        now = time.monotonic()
        if received == 0:
            break
        if now - seconds * _WARM_UP > start:
            count += max(0, received)
        else:
            begin = now
    return Counted(count, begin, max(now, begin))


def bits_per_second(streams: Sequence[Counted]) -> float:
    """Return the total of several streams; 0 without data."""
    seconds = max(each.end for each in streams) - min(each.begin for each in streams)
    return 8 * sum(each.size for each in streams) / seconds if seconds > 0 else 0.0


def take_all(connections: Sequence[socket.socket], seconds: float) -> List[Counted]:
    """Receive from several connections in parallel."""
    counted: List[Counted] = []
    run_at_once([lambda each=each: counted.append(take(each, seconds)) for each in connections])
    return counted


def send_all(connections: Sequence[socket.socket], seconds: float) -> None:
    """Send to several connections in parallel."""
    run_at_once([lambda each=each: send(each, seconds) for each in connections])


def run_at_once(works: Sequence[Any]) -> None:
    """Run functions in parallel and wait for all."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send_line(connection: socket.socket, message: Dict[str, Any]) -> None:
    """Send a message."""
    connection.sendall(json.dumps(message).encode("ascii") + b"\n")


def read_line(connection: socket.socket) -> Dict[str, Any]:
    """Return a message; OSError when it is invalid."""
    line = b""
    while not line.endswith(b"\n"):
        if len(line) > _LINE_LIMIT:
            raise OSError("the peer sent too much data")
        line += read_exactly(connection, 1)
    try:
        message = json.loads(line.decode("ascii"))
    except ValueError as error:
        raise OSError("the peer sent an invalid message") from error
    if not isinstance(message, dict):
        raise OSError("the peer sent an invalid message")
    return message


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Return exactly this many bytes; OSError at an early end."""
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise OSError("it closed the connection")
        data += piece
    return data


def _exchange(connection: socket.socket) -> tuple[bytes, bytes]:
    ours = os.urandom(_NONCE)
    connection.sendall(ours)
    return ours, read_exactly(connection, _NONCE)


def _proof(secret: bytes, role: bytes, own: bytes, other: bytes) -> bytes:
    return hmac.new(secret, role + own + other, hashlib.sha256).digest()


def _set_step(connection: socket.socket, option: int) -> None:
    """Set the kernel's timeout: Python's own would cost a system call before each one."""
    connection.settimeout(None)
    whole = int(_STEP_SECONDS)
    connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", whole, int((_STEP_SECONDS - whole) * 1000000)))


def _receive(connection: socket.socket, buffer: bytearray) -> int:
    """Return the number of received bytes; 0 at the end, -1 after a timeout."""
    try:
        return connection.recv_into(buffer, len(buffer), _DISCARD)
    except BlockingIOError:
        return -1
    except OSError:
        return 0
