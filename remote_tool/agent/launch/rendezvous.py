"""Check whether the ranks of a node joined others: nodes that each train alone still end successfully.

A rank in a process group is connected to the store at its MASTER_PORT, and most are also connected to other machines.
Only certain cases are reported: not jobs that are short, run no torch, or cannot be inspected.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from remote_tool.agent.proc.processes import Process, ProcessSnapshot
from remote_tool.agent.proc.sockets import TcpSocket, socket_inodes, tcp_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Optional, Set, Tuple

# Closed connections are seen as well: the kernel keeps them for 60 seconds.
LOOK_SECONDS = 10.0
# Ranks seen for a shorter time may not have reached the rendezvous.
ALONE_SECONDS = 20.0
_ESTABLISHED = b"01"
# Closed first on this side, whether or not the other side has closed it too.
_CLOSED = {b"04", b"05", b"06"}
# Of a web service, such as Weights & Biases.
_WEB = {b"%04X" % port for port in (80, 443)}
# These have a rendezvous of their own.
_MPI = (b"\0OMPI_", b"\0PMI")
# IPv4 in IPv6.
_MAPPED = [b"\0\0\0\0", b"\0\0\0\0", b"\0\0\xff\xff"]
_ENDED = {errno.ENOENT, errno.ESRCH}


class RendezvousCheck:
    """Evidence that a node's ranks have joined others."""

    def __init__(self) -> None:
        self._met = False
        self._is_blind = False
        self._torch_since: Optional[float] = None
        self._torch_until = 0.0
        self._next_look = time.monotonic() + LOOK_SECONDS
        self._ports: Set[bytes] = set()
        # Connections of others: of programs that tried the port before, and of torchrun to its own store.
        self._others: Set[Tuple[bytes, bytes]] = set()
        try:
            self._others.update(each.ends for each in _connections())
        except OSError:
            self._is_blind = True

    @property
    def _is_over(self) -> bool:
        return self._met or self._is_blind

    def check_if_due(self) -> None:
        """Check when due; never again once the ranks have joined."""
        if self._is_over or time.monotonic() < self._next_look:
            return
        try:
            self._scan()
        except OSError:
            self._is_blind = True
        self._next_look = time.monotonic() + LOOK_SECONDS

    def missed(self) -> bool:
        """Return, once the ranks have ended, whether they ran long enough and never joined others."""
        is_long = self._torch_since is not None and self._torch_until - self._torch_since >= ALONE_SECONDS
        if self._is_over or not is_long:
            return False
        try:
            # They may have joined since the last check.
            closed = [each for each in _connections() if each.state in _CLOSED and self._may_be_meeting(each)]
        except OSError:
            return False
        return all(each.ends in self._others for each in closed)

    def _scan(self) -> None:
        # In this order: the owner of each of these connections is then among the processes.
        connections = list(_connections())
        members = self._find_members()
        if not members:
            return
        found = [each for each in connections if self._may_be_meeting(each)]
        unknown = [each for each in found if each.ends not in self._others]
        sockets = {inode for pid in members for inode in socket_inodes(pid)} if unknown else set()
        self._met = any(each.state in _CLOSED or each.inode in sockets for each in unknown)
        self._others = {each.ends for each in found}

    def _may_be_meeting(self, connection: TcpSocket) -> bool:
        port, other = connection.local[-4:], connection.remote[-4:]
        if port in self._ports or other in self._ports:
            return True
        if connection.state in _CLOSED or other in _WEB:
            return False
        host, there = connection.local[:-5], connection.remote[:-5]
        return host != there and not _is_loopback(there)

    def _find_members(self) -> List[int]:
        """Return the processes with a rendezvous in their environment: ranks and their children, but not torchrun."""
        snapshot, this, members = ProcessSnapshot(), os.getpid(), []
        network = os.readlink("/proc/self/ns/net")
        for process in snapshot.processes.values():
            is_below = process.pid != this and any(each.pid == this for each in snapshot.lineage(process))
            try:
                if is_below and self._has_rendezvous(process):
                    members.append(process.pid)
                    self._is_blind = self._is_blind or os.readlink(f"/proc/{process.pid}/ns/net") != network
                    self._note_torch(process)
            except OSError as error:
                if error.errno not in _ENDED:
                    raise
        return members

    def _has_rendezvous(self, process: Process) -> bool:
        with open(f"/proc/{process.pid}/environ", "rb") as stream:
            environment = b"\0" + stream.read()
        _, name, rest = environment.partition(b"\0MASTER_PORT=")
        port = rest.partition(b"\0")[0]
        if port.isdigit():
            self._ports.add(b"%04X" % int(port))
        self._is_blind = self._is_blind or any(each in environment for each in _MPI)
        return bool(name)

    def _note_torch(self, process: Process) -> None:
        """Record when a process first loaded torch: only then could it join a process group."""
        if self._torch_since is not None:
            self._torch_until = time.monotonic()
            return
        with open(f"/proc/{process.pid}/maps", "rb") as stream:
            if b"/libtorch" in stream.read():
                self._torch_since = time.monotonic()


def _connections() -> Iterator[TcpSocket]:
    """Yield this machine's TCP connections, including recently closed ones."""
    return (each for each in tcp_sockets() if each.state == _ESTABLISHED or each.state in _CLOSED)


def _is_loopback(address: bytes) -> bool:
    """Return whether an address is in 127.0.0.0/8; ``::1`` connects only to itself."""
    words = [int(address[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(address), 8)]
    return words[:-1] in ([], _MAPPED) and words[-1][0] == 127  # noqa: PLR2004
