"""A line for each removed job, so that every laptop can still learn how it ended."""

from __future__ import annotations

import os
from contextlib import suppress

from remote_tool.protocol import job_folder
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import RecordError, is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence

FILE = ".removed"
# Of the newest; a line has at most 120 bytes.
MOST = 4096
_LARGEST = 1024 * 1024
_STATES = {"succeeded", "failed", "killed", "lost"}
_NOTHING = "-"
_FIELDS = 5


class RemovedJob(NamedTuple):
    """How a removed job ended."""

    job_id: str
    state: str
    exit_code: Optional[int]
    signal: Optional[str]
    ended_at: float

    def as_answer(self) -> Dict[str, Any]:
        return {
            "id": self.job_id,
            "state": self.state,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "ended_at": self.ended_at,
        }


def recall(jobs: Optional[int]) -> Dict[str, RemovedJob]:
    """Return the removed jobs by id, oldest first; damaged lines are skipped.

    Raises:
        OSError: It cannot be read now.
    """
    if jobs is None:
        return {}
    try:
        text = (job_folder.read_bytes(jobs, FILE, _LARGEST) or b"").decode("ascii", "replace")
    except RecordError:
        return {}
    found = [_parse(line) for line in text.splitlines()]
    return {each.job_id: each for each in found if each is not None}


def is_removed(jobs: int, job_id: str) -> bool:
    """Return whether a job was removed, without reading every line.

    Raises:
        OSError: It cannot be read now.
    """
    try:
        text = job_folder.read_bytes(jobs, FILE, _LARGEST) or b""
    except RecordError:
        return False
    return f"\n{job_id} ".encode("ascii") in b"\n" + text


def remember(jobs: int, removed: Sequence[RemovedJob]) -> None:
    """Add jobs before their folders are removed, so that a reader finds one or the other.

    Raises:
        OSError: The disk cannot be written; then nothing may be removed.
    """
    known = recall(jobs)
    known.update({each.job_id: each for each in removed})
    lines = [_format(each) for each in list(known.values())[-MOST:]]
    temporary = f"{FILE}.{os.urandom(8).hex()}"
    try:
        job_folder.write_file(jobs, temporary, "".join(lines).encode("ascii"))
        job_folder.publish(jobs, temporary, FILE, replace=True)
    finally:
        job_folder.remove(jobs, temporary)


def _format(job: RemovedJob) -> str:
    code = _NOTHING if job.exit_code is None else job.exit_code
    return f"{job.job_id} {job.state} {code} {job.signal or _NOTHING} {job.ended_at:.3f}\n"


def _parse(line: str) -> Optional[RemovedJob]:
    words: List[str] = line.split(" ")
    with suppress(ValueError):
        if len(words) == _FIELDS and is_job_id(words[0]) and words[1] in _STATES:
            code = None if words[2] == _NOTHING else int(words[2])
            signal = None if words[3] == _NOTHING else words[3]
            return RemovedJob(words[0], words[1], code, signal, float(words[4]))
    return None
