"""The TCP sockets of this machine, and the processes that have them."""

from __future__ import annotations

import errno
import os

from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Tuple

_ENDED = {errno.ENOENT, errno.ESRCH}


class TcpSocket(NamedTuple):
    """A line of ``/proc/net/tcp`` as is: an end is ``0100007F:1F90``."""

    local: bytes
    remote: bytes
    state: bytes
    inode: bytes

    @property
    def ends(self) -> Tuple[bytes, bytes]:
        return self.local, self.remote


def tcp_sockets() -> Iterator[TcpSocket]:
    """Yield the TCP sockets of this network namespace."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}", "rb") as stream:
                lines = stream.read().splitlines()[1:]
        except FileNotFoundError:
            # The kernel has no IPv6.
            continue
        for line in lines:
            fields = line.split()
            yield TcpSocket(fields[1], fields[2], fields[3], fields[9])


def socket_inodes(pid: int) -> Iterator[bytes]:
    """Yield the inodes of a process's sockets; none once it has ended."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError as error:
        if error.errno in _ENDED:
            return
        raise
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1].encode("ascii")
