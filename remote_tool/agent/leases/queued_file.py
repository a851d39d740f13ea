"""The file ``queued`` in the folder of a job that waits: its supervisor, and the reason of its wait."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from remote_tool.agent.proc import processes
from remote_tool.protocol import job_folder, strict_json
from remote_tool.protocol.job_fields import is_count, is_text
from remote_tool.protocol.limits import LONGEST_REASON
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional


class Queued(NamedTuple):
    """The state of a waiting job, as it says itself.

    Attributes:
        supervisor: The record ``{"pid", "start_time"}`` of its supervisor; empty when unknown.
        why: What it waits for, as far as only it knows.
    """

    supervisor: Dict[str, int]
    why: str


def write_queued(folder: int, why: str) -> None:
    """Write this supervisor's file; OSError when that is impossible."""
    process = processes.read_process(os.getpid())
    record: Dict[str, Any] = {"supervisor": {} if process is None else process.as_record(), "why": why}
    temporary = f".{job_folder.QUEUED}.{os.urandom(8).hex()}"
    # It says nothing after a crash, so it is not synced.
    try:
        file = job_folder.create_file(folder, temporary)
        try:
            job_folder.write_all(file, strict_json.encode(record))
        finally:
            os.close(file)
        os.rename(temporary, job_folder.QUEUED, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            job_folder.remove(folder, temporary)
        raise


def read_queued(folder: int) -> Optional[Queued]:
    """Read the file of a waiting job; None if it has never waited."""
    try:
        text = job_folder.read_bytes(folder, job_folder.QUEUED, LONGEST_REASON * 8)
        found = None if text is None else json.loads(text.decode("utf-8"))
    except (RecordError, ValueError, RecursionError):
        return Queued({}, "")
    if found is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("supervisor"), dict) or not is_text(found.get("why")):
        return Queued({}, "")
    supervisor = found["supervisor"]
    is_known = is_count(supervisor.get("pid")) and is_count(supervisor.get("start_time"))
    return Queued(supervisor if is_known else {}, found["why"])
