"""Whether a torchrun ended because another program had taken its port: it says so among its last lines."""

from __future__ import annotations

import os
import re

from . import job_files
from .records import RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_TAIL = 64 * 1024
_COMMAND_LIMIT = 1024 * 1024
_SAYS = re.compile(rb"failed to listen on any local network address\. port: ([0-9]+),[^\n]* EADDRINUSE")


def find_taken_port(folder: int) -> Optional[int]:
    """Return the port that a job's torchrun was to listen on and could not; None when that is not why it ended.

    Args:
        folder: Descriptor of the job's folder.
    """
    try:
        said = _SAYS.search(_tail(folder, job_files.ERR))
        command = job_files.read_bytes(folder, job_files.COMMAND, _COMMAND_LIMIT) or b""
    except (OSError, RecordError):
        return None
    if said is None or not _meets_at(command, said[1]):
        return None
    return int(said[1])


def _meets_at(command: bytes, port: bytes) -> bool:
    """Whether it is the port of the launch; a rank may fail to listen on one of its own."""
    options = rb"--master-port " + port + rb"\s|--rdzv-endpoint \S*:" + port + rb"'?\s"
    return re.search(options, command) is not None


def _tail(folder: int, name: str) -> bytes:
    with open(job_files.open_file_beneath(folder, name), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, size - _TAIL))
        return stream.read(_TAIL)
