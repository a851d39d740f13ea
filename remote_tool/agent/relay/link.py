"""Connections between servers that relay files: TLS with one key pair that the client created for this sync."""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
import time
from contextlib import contextmanager

from remote_tool.agent.requests import Request, is_text
from remote_tool.protocol.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List

try:
    import ssl
except ImportError:  # Python was built without ssl
    ssl = None  # type: ignore[assignment]

# Idle timeout of a link in seconds.
SILENCE = 20.0
_HANDSHAKE_SECONDS = 10.0
# A pipe holds this much without a reader on every system.
_LARGEST_PEM = 4096
COUNT = struct.Struct(">Q")
INDEX = struct.Struct(">L")
# Sent in place of a size: the file has changed.
CHANGED = 2**64 - 1


class LinkError(Exception):
    """The peer cannot be reached, or violated the protocol."""


def read_context(request: Request, *, server_side: bool) -> ssl.SSLContext:
    """Return TLS settings that require this sync's certificate on both sides.

    Raises:
        RequestError: The key pair is invalid, or this Python has no TLS.
    """
    if ssl is None:
        raise RequestError("This server's Python has no TLS (module ssl)")
    certificate, key = (request.get(name, _is_pem).encode("ascii", "replace") for name in ("certificate", "key"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Host names prove nothing here; the key does.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=certificate.decode("ascii", "replace"))
        # OpenSSL reads a key pair only from files. A pipe is one that is on no disk.
        with _pipe_with(certificate) as first, _pipe_with(key) as second:
            context.load_cert_chain(first, second)
    except OSError as error:
        raise RequestError(f"Cannot use the certificate of this sync: {error.strerror or error}") from error
    return context


def _is_pem(value: object) -> bool:
    return is_text(value) and len(str(value)) <= _LARGEST_PEM


@contextmanager
def _pipe_with(data: bytes) -> Iterator[str]:
    reader, writer = os.pipe()
    try:
        os.write(writer, data)
        os.close(writer)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)


class RelayLink:
    """An open link; an incomplete transfer is a LinkError."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection

    @classmethod
    def over(cls, connection: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> RelayLink:
        """Shake hands over a connection; OSError when the peer does not have this sync's key."""
        connection.settimeout(_HANDSHAKE_SECONDS)
        secured = context.wrap_socket(connection, server_side=server_side)
        secured.settimeout(SILENCE)
        return cls(secured)

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def receive(self, size: int) -> bytes:
        """Return exactly this many bytes."""
        parts = []
        while size:
            parts.append(self.receive_some(size))
            size -= len(parts[-1])
        return b"".join(parts)

    def receive_some(self, most: int) -> bytes:
        """Return some bytes, at least one."""
        data = self._connection.recv(min(most, 1 << 18))
        if not data:
            raise LinkError("the other server ended in the middle")
        return data

    def receive_count(self) -> int:
        return int(COUNT.unpack(self.receive(COUNT.size))[0])

    def close(self) -> None:
        self._connection.close()


def dial(addresses: List[str], port: int, context: ssl.SSLContext, seconds: float) -> RelayLink:
    """Try all addresses at once; return the first link to a server with this sync's key.

    Raises:
        LinkError: No address answered in time.
    """
    deadline = time.monotonic() + seconds
    found: queue.Queue[object] = queue.Queue()
    for address in addresses:
        # A name server may not answer, so nothing waits for the thread.
        threading.Thread(target=_try, args=(address, port, context, deadline, found), daemon=True).start()
    errors = []
    for _ in addresses:
        try:
            outcome = found.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(outcome, RelayLink):
            return outcome
        errors.append(str(outcome))
    raise LinkError(errors[0] if errors else f"no answer on port {port} in time")


def _try(address: str, port: int, context: ssl.SSLContext, deadline: float, found: queue.Queue[object]) -> None:
    try:
        connection = socket.create_connection((address, port), max(0.01, deadline - time.monotonic()))
    except OSError as error:
        found.put(f"{address}:{port}: {error.strerror or error}")
        return
    try:
        link = RelayLink.over(connection, context, server_side=False)
        # In TLS 1.3 the peer may reject our certificate after our handshake: its first bytes show acceptance.
        link.receive(1)
    except (OSError, LinkError):
        connection.close()
        found.put(f"another program answers on port {port} of {address}")
    else:
        found.put(link)
