"""Serve the listed files of a sync to other servers, as long as the client is connected."""

from __future__ import annotations

import base64
import os
import socket
import threading
import time

from remote_tool.agent.machine import addresses
from remote_tool.agent.relay.link import CHANGED, COUNT, INDEX, LinkError, RelayLink, read_context
from remote_tool.agent.requests import Request, client_is_gone, is_text
from remote_tool.protocol import relay_files
from remote_tool.protocol.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from typing import List

_MOST_LINKS = 64
_IDLE_SECONDS = 1800.0
_LOOK_SECONDS = 30.0
_CHUNK = 1 << 18


def share(request: Request) -> None:
    """Answer op ``share``: report our port, and serve peers with this sync's key until the client has disconnected."""
    context = read_context(request, server_side=True)
    # A failed link is not reused.
    context.num_tickets = 0
    try:
        packed = base64.b64decode(request.get("list", is_text), validate=True)
    except ValueError as error:
        raise RequestError("Cannot read the list of files") from error
    sharer = _Sharer(request.synced()[0], packed)
    with _listen(request.get("address", is_text, "")) as listener:
        host = os.environ.get("SSH_CONNECTION", "").split()
        listed = [each["address"] for each in addresses.list_addresses()]
        request.answer(
            {
                "port": listener.getsockname()[1],
                "seen": host[2] if len(host) > 2 else "",  # noqa: PLR2004 - sshd(8): client, port, server, port
                "addresses": listed,
            }
        )
        while not client_is_gone(_LOOK_SECONDS, listener.fileno()) and not sharer.is_idle():
            sharer.accept(listener, context)


def _listen(address: str) -> socket.socket:
    """Listen on a free port of an address; on all addresses if it is not this machine's own, or empty."""
    try:
        listener = _listen_on(address) if address else _listen_on_all()
    except OSError:
        listener = _listen_on_all()
    listener.setblocking(False)
    return listener


def _listen_on(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=128)


def _listen_on_all() -> socket.socket:
    try:
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    except (OSError, ValueError):
        return socket.create_server(("", 0), backlog=128)


class _Sharer:
    def __init__(self, project: str, packed: bytes) -> None:
        self._project = project
        self._packed = packed
        self._entries = relay_files.unpack(packed)
        self._links: List[threading.Thread] = []
        self._last = time.monotonic()

    def is_idle(self) -> bool:
        self._links = [each for each in self._links if each.is_alive()]
        if self._links:
            self._last = time.monotonic()
        return time.monotonic() - self._last > _IDLE_SECONDS

    def accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if len(self._links) >= _MOST_LINKS:
            connection.close()
            return
        thread = threading.Thread(target=self._serve, args=(connection, context), daemon=True)
        self._links.append(thread)
        thread.start()

    def _serve(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        try:
            link = RelayLink.over(connection, context, server_side=True)
        except OSError:
            connection.close()
            return
        try:
            link.send(b"\n" + COUNT.pack(len(self._packed)) + self._packed)
            count = link.receive_count()
            if count > len(self._entries):
                return
            indices = link.receive(count * INDEX.size)
            for (index,) in INDEX.iter_unpack(indices):
                self._send_file(link, self._entries[index])
        except (OSError, LinkError, IndexError):
            pass
        finally:
            link.close()

    def _send_file(self, link: RelayLink, entry: relay_files.RelayFile) -> None:
        try:
            descriptor, found = relay_files.open_file(self._project, entry.name)
        except OSError:
            link.send(COUNT.pack(CHANGED))
            return
        with os.fdopen(descriptor, "rb") as stream:
            if found.st_size != entry.size:
                link.send(COUNT.pack(CHANGED))
                return
            link.send(COUNT.pack(entry.size))
            left = entry.size
            while left:
                data = stream.read(min(left, _CHUNK))
                if not data:
                    raise LinkError("a file shrank")
                link.send(data)
                left -= len(data)
