"""Detect from its last lines that torchrun ended because another program had taken its port."""

from __future__ import annotations

import os
from typing import Optional

from remote_tool.protocol import job_folder
from remote_tool.protocol.records import RecordError

_TAIL = 64 * 1024
_COMMAND_LIMIT = 1024 * 1024
_SAYS = b"failed to listen on any local network address. port: "
_WHY = b" EADDRINUSE"


def find_taken_port(folder: int, own: bytes = b"") -> Optional[int]:
    """Return the port on which a job's torchrun could not listen; None if it ended for another reason.

    Args:
        folder: Descriptor of the job's folder.
        own: The port of a launch without torchrun, whose command does not name it.
    """
    try:
        lines = _tail(folder, job_folder.ERR).split(b"\n")
        command = job_folder.read_bytes(folder, job_folder.COMMAND, _COMMAND_LIMIT) or b""
    except (OSError, RecordError):
        return None
    for line in lines:
        port, _, rest = line.partition(_SAYS)[2].partition(b",")
        if port.isdigit() and _WHY in rest and (port == own or _meets_at(command, port)):
            return int(port)
    return None


def _meets_at(command: bytes, port: bytes) -> bool:
    """Return whether it is the launch's port; a rank may fail to listen on a port of its own."""
    words = command.split()
    for number, value in enumerate(words[1:]):
        if words[number] == b"--master-port" and value == port:
            return True
        if words[number] == b"--rdzv-endpoint" and value.rstrip(b"'").endswith(b":" + port):
            return True
    return False


def _tail(folder: int, name: str) -> bytes:
    with open(job_folder.open_file_beneath(folder, name), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, size - _TAIL))
        return stream.read(_TAIL)
