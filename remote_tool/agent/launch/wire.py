"""The protocol between supervisors of a launch: lines over TCP, each signed with the launch's secret.

Each side begins with a random number of its own, so no earlier connection can be replayed. A line without a valid
signature ends the connection: without the secret, a peer changes nothing and learns only that we listen.
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import socket
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

_LINE_LIMIT = 8192
_BUFFER_LIMIT = 64 * 1024
_RECEIVE = 16 * 1024
_MOST_RANKS = 65536
# Milliseconds without an acknowledgment until the kernel drops a connection. It would back off ever longer before
# retrying; a new connection works as soon as the network does.
_UNACKNOWLEDGED = 5000
_UNREACHABLE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN}


class PeerClosed(Exception):  # noqa: N818 - not a fault of this program
    """The peer closed the connection, or failed to authenticate."""


class Unreachable(PeerClosed):
    """The connection timed out; the peer may still be alive."""


def _closed(error: OSError) -> PeerClosed:
    return (Unreachable if error.errno in _UNREACHABLE else PeerClosed)(str(error.strerror))


class LineSocket:
    """Lines over a socket in both directions, without blocking."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED)
        self._connection = connection
        self._received = b""
        self._unsent = b""

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._connection.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, line: bytes) -> None:
        """Send a line, now or when the kernel takes it; PeerClosed when the peer has closed."""
        self._unsent += line + b"\n"
        if len(self._unsent) > _BUFFER_LIMIT:
            raise Unreachable("it takes nothing")
        self.flush()

    def flush(self) -> None:
        """Send as much as the kernel takes."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise _closed(error) from error

    def receive(self) -> List[bytes]:
        """Return the complete lines; PeerClosed at the end."""
        try:
            data = self._connection.recv(_RECEIVE)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise _closed(error) from error
        if not data:
            raise PeerClosed("it closed the connection")
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > _LINE_LIMIT or any(len(line) > _LINE_LIMIT for line in lines):
            raise PeerClosed("it sent a line that is too long")
        return lines

    def close(self) -> None:
        self._connection.close()


class PeerSession:
    """Signed messages over a wire.

    Attributes:
        rank: Node rank claimed by the peer; verified once ``is_known``.
        is_known: Whether the peer has proved that it knows the secret.
    """

    def __init__(self, connection: socket.socket, secret: bytes, rank: int) -> None:
        """Start a session.

        Args:
            connection: An open connection.
            secret: The launch's secret.
            rank: Our node rank; 0 is the side that listened.
        """
        self.rank = -1
        self.is_known = False
        self._wire = LineSocket(connection)
        self._secret = secret
        self._rank = rank
        self._nonce = os.urandom(16).hex()
        self._key: Optional[bytes] = None
        self._waiting: List[Dict[str, Any]] = []
        self._sent = self._taken = 0
        self._wire.send(json.dumps({"rank": rank, "nonce": self._nonce}).encode("ascii"))

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._wire.fileno()

    @property
    def has_unsent(self) -> bool:
        return self._wire.has_unsent

    def flush(self) -> None:
        """Send as much as the kernel takes; PeerClosed when the peer has closed."""
        self._wire.flush()

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def send(self, message: Dict[str, Any]) -> None:
        """Send a message once the peer has introduced itself; PeerClosed when it has closed."""
        if self._key is None:
            self._waiting.append(message)
            return
        text = json.dumps(message).encode("ascii")
        self._wire.send(self._sign(self._rank, self._sent, text) + b" " + text)
        self._sent += 1

    def receive(self) -> List[Dict[str, Any]]:
        """Return the received messages; PeerClosed when the peer has closed or cannot sign."""
        messages = []
        for line in self._wire.receive():
            if self._key is None:
                self._greet(line)
            else:
                messages.append(self._verify(line))
        return messages

    def _greet(self, line: bytes) -> None:
        hello = _parse(line)
        rank, nonce = hello.get("rank"), hello.get("nonce")
        if type(rank) is not int or not 0 <= rank < _MOST_RANKS or not isinstance(nonce, str):
            raise PeerClosed("it did not say who it is")
        # Only the first node listens, so the two sides cannot be confused.
        if (rank == 0) == (self._rank == 0):
            raise PeerClosed("it says that it is somebody else")
        self.rank = rank
        sides = sorted([(rank, nonce), (self._rank, self._nonce)])
        self._key = hmac.new(self._secret, json.dumps(sides).encode("ascii"), "sha256").digest()
        for message in self._waiting:
            self.send(message)
        self._waiting = []

    def _verify(self, line: bytes) -> Dict[str, Any]:
        signature, _, text = line.partition(b" ")
        if not hmac.compare_digest(signature, self._sign(self.rank, self._taken, text)):
            raise PeerClosed("it does not know the secret of the launch")
        self._taken += 1
        self.is_known = True
        return _parse(text)

    def _sign(self, rank: int, count: int, text: bytes) -> bytes:
        assert self._key is not None
        return hmac.new(self._key, b"%d %d " % (rank, count) + text, "sha256").hexdigest().encode("ascii")


def _parse(text: bytes) -> Dict[str, Any]:
    try:
        message = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise PeerClosed("it sent an invalid message") from error
    if not isinstance(message, dict):
        raise PeerClosed("it sent an invalid message")
    return message
