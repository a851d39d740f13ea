"""Listen on ports of this machine."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from remote_tool.errors import UsageError

if TYPE_CHECKING:
    from remote_tool.workflows.forward.places import Place

MOST_TRIES = 100
_NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def bind_free_port(place: Place) -> tuple[list[socket.socket], int]:
    """Listen on a port, or on the next one that is free; return the sockets and the port.

    Raises:
        UsageError: This machine does not have the address.
    """
    for port in range(place.port, min(place.port + MOST_TRIES, 65536)):
        try:
            return _bind(place.hosts, port)
        except OSError as error:
            if error.errno == errno.EACCES:
                break
            if error.errno != errno.EADDRINUSE:
                raise UsageError(
                    f"Cannot listen on {place.host}: {error.strerror or error}", hint="Give an address of this machine"
                ) from None
    return _bind(place.hosts, 0)


def _bind(hosts: tuple[str, ...], port: int) -> tuple[list[socket.socket], int]:
    """Listen on one port of all these addresses; the second may be missing, on a machine without IPv6."""
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
