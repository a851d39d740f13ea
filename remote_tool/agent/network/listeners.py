"""Find the ports on which the processes of a job listen."""

from __future__ import annotations

import os
import socket
import sys
from typing import List, NamedTuple, Optional, Set, Tuple

from remote_tool.agent import states
from remote_tool.agent.network.reachability import ephemeral_range
from remote_tool.agent.proc.sockets import socket_inodes, tcp_sockets
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import NO_SUCH_JOB, RequestError

_LISTENING = b"0A"


class Listeners(NamedTuple):
    """The ports of a job.

    Attributes:
        ports: Host and port, as this machine reaches them.
        chosen_by_system: Ports that a program has not chosen itself, such as those of process groups.
        is_elsewhere: Whether processes of the job have a network of their own, whose ports are not listed.
    """

    ports: List[Tuple[str, int]]
    chosen_by_system: List[int]
    is_elsewhere: bool


def find_listeners(jobs: Optional[int], job_id: str) -> Optional[Listeners]:
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
    inodes, is_elsewhere = _inodes([process.pid for process in status.members])
    low, high = ephemeral_range()
    found = {_address(each.local) for each in tcp_sockets() if each.state == _LISTENING and each.inode in inodes}
    return Listeners(
        sorted(each for each in found if not low <= each[1] <= high),
        sorted({port for _, port in found if low <= port <= high}),
        is_elsewhere,
    )


def _inodes(pids: List[int]) -> Tuple[Set[bytes], bool]:
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


def _address(end: bytes) -> Tuple[str, int]:
    """Return the host and port of a line's end such as ``0100007F:1F90``."""
    digits, _, port = end.partition(b":")
    words = [int(digits[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(digits), 8)]
    packed = b"".join(words)
    host = socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)
    is_here = not any(packed) or host == "::1" or host.startswith(("127.", "::ffff:127."))
    return "localhost" if is_here else host, int(port, 16)
