"""The link over which servers hand each other files: TLS with one key pair, which the client made for this sync."""

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
except ImportError:  # a Python that was built without it
    ssl = None  # type: ignore[assignment]

# A link that says nothing for so long is given up, in seconds.
SILENCE = 20.0
_HANDSHAKE_SECONDS = 10.0
# What a pipe takes without a reader on every system.
_LARGEST_PEM = 4096
COUNT = struct.Struct(">Q")
INDEX = struct.Struct(">L")
# In place of a size: the file is not what it was.
GONE = 2**64 - 1


class LinkError(Exception):
    """The other side cannot be reached, or said what it may not."""


def read_context(request: Request, *, server_side: bool) -> ssl.SSLContext:
    """Return the settings of a link where either side shows the certificate of this sync and takes no other.

    Raises:
        RequestError: The pair is none, or this Python has no TLS.
    """
    if ssl is None:
        raise RequestError("This server's Python has no TLS (module ssl)")
    certificate, key = (request.get(name, _is_pem).encode("ascii", "replace") for name in ("certificate", "key"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Addresses say nothing here: who has the key is one of us.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=certificate.decode("ascii", "replace"))
        # OpenSSL reads a pair from files only. A pipe is one that lies on no disk.
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


class Link:
    """An open link: whole pieces, or a LinkError."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection

    @classmethod
    def over(cls, connection: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> Link:
        """Shake hands over a connection; OSError when the other side has no key of this sync."""
        connection.settimeout(_HANDSHAKE_SECONDS)
        secured = context.wrap_socket(connection, server_side=server_side)
        secured.settimeout(SILENCE)
        return cls(secured)

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def receive(self, size: int) -> bytes:
        """Return exactly so many bytes."""
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


def dial(addresses: List[str], port: int, context: ssl.SSLContext, seconds: float) -> Link:
    """Try all addresses at once; return the first link to a server that has the key of this sync.

    Raises:
        LinkError: There is none in time.
    """
    deadline = time.monotonic() + seconds
    found: queue.Queue[object] = queue.Queue()
    for address in addresses:
        # A name server may not answer, and then nobody waits for the thread.
        threading.Thread(target=_try, args=(address, port, context, deadline, found), daemon=True).start()
    errors = []
    for _ in addresses:
        try:
            outcome = found.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(outcome, Link):
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
        link = Link.over(connection, context, server_side=False)
        # In TLS 1.3 the other side may refuse after our part is done: it is one of us when it speaks.
        link.receive(1)
    except (OSError, LinkError):
        connection.close()
        found.put(f"another program answers on port {port} of {address}")
    else:
        found.put(link)
