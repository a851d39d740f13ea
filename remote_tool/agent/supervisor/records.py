"""Write a job's records: how it started, and how it ended."""

from __future__ import annotations

import errno
import os
import resource
import time

from remote_tool.protocol import job_folder
from remote_tool.protocol.records import ENDED, STARTED, encode_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence

    from remote_tool.agent.proc.processes import Process
    from remote_tool.agent.supervisor.outcome import JobOutcome
    from remote_tool.agent.supervisor.plan import Plan

RESERVED_BYTES = 16 * 1024
_RETRY_SECONDS = 86400.0
# Error of a network disk for a folder that another machine has removed.
_NO_SUCH_FOLDER = {errno.ESTALE, errno.ENOENT}


class RecordWriter:
    """The records of one job.

    Attributes:
        started: When the job started, by the monotonic clock.
        leased_gpus: The UUIDs of its GPUs; None without a lease.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.started = time.monotonic()
        self._started_at: Optional[float] = None
        self.leased_gpus: Optional[List[str]] = None

    def write_start(
        self, command: Process, supervisor: Process, *, is_subreaper: bool, failed_attempts: Sequence[str] = ()
    ) -> None:
        """Write started.json, before each attempt; OSError when it cannot be written."""
        if self._started_at is None:
            self._started_at, self.started = time.time(), time.monotonic()
        record = {
            "id": self._plan.job_id,
            "pid": command.pid,
            "command": command.as_record(),
            "supervisor": supervisor.as_record(),
            "place": self._plan.spec["place"],
            "started_at": self._started_at,
            "monotonic": self.started,
            "subreaper": is_subreaper,
            "locked": self._plan.locked,
            "failed_attempts": list(failed_attempts),
            "leased_gpus": self.leased_gpus,
        }
        job_folder.write_record(self._plan.folder, STARTED, record, replace=True)

    def write_end(
        self, outcome: JobOutcome, reason: str, *, lost_node: Optional[int], trained_alone: bool
    ) -> Dict[str, Any]:
        """Write ended.json, retrying for as long as needed; return it."""
        end = outcome.end
        ended_at, ended = outcome.ended or (time.time(), time.monotonic())
        record = {
            "id": self._plan.job_id,
            "exit_code": end.exit_code,
            "signal": end.signal,
            "core_dumped": end.core_dumped,
            "killed": outcome.killed,
            "reason": reason,
            "ended_at": ended_at,
            "duration": round(ended - self.started, 3),
            "leftovers": outcome.leftovers,
            "unkillable": [process.pid for process in outcome.unkillable],
            "stopped_with_launch": outcome.ended_with_launch,
            "lost_node": lost_node,
            "taken_port": outcome.taken_port,
            "trained_alone": trained_alone,
            "resources": _resources(),
            **outcome.moved,
        }
        deadline = time.monotonic() + _RETRY_SECONDS
        pause = 0.1
        # A full disk may have space later; there is nothing else left to do.
        while not self._try_to_record(record) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 2, 5.0)
        return record

    def add_to_log(self, lines: Sequence[str]) -> None:
        """Add lines of ours to the job's output; OSError when it cannot be written."""
        # What a terminal shows is counted by those who watch it.
        if lines and not self._plan.spec["terminal"]:
            job_folder.add_lines(self._plan.folder, lines)

    def _try_to_record(self, record: Mapping[str, Any]) -> bool:
        """Write ended.json into its reserved space; return True once written, or when it can never be read."""
        try:
            if os.fstat(self._plan.folder).st_nlink == 0:
                return True
            if job_folder.exists(self._plan.folder, job_folder.RESERVE):
                _fill_reserve(self._plan.folder, self._plan.reserve, record)
            else:
                job_folder.write_record(self._plan.folder, ENDED, record)
        except OSError as error:
            return error.errno in _NO_SUCH_FOLDER and self._has_lost_its_name()
        return True

    def _has_lost_its_name(self) -> bool:
        """Return whether the folder's path leads nowhere; an unreachable network disk does not count."""
        try:
            os.stat(self._plan.path)
        except OSError as error:
            return error.errno == errno.ENOENT
        return False


def _resources() -> Dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "user_seconds": round(usage.ru_utime, 3),
        "system_seconds": round(usage.ru_stime, 3),
        "max_rss_bytes": usage.ru_maxrss * 1024,
    }


def _fill_reserve(folder: int, reserve: int, record: Mapping[str, Any]) -> None:
    """Turn the reserved file into ended.json, unless there is one; uses no free space."""
    data = encode_record(record)
    os.lseek(reserve, 0, os.SEEK_SET)
    job_folder.write_all(reserve, data)
    os.ftruncate(reserve, len(data))
    os.fsync(reserve)
    job_folder.publish(folder, job_folder.RESERVE, ENDED)
    job_folder.remove(folder, job_folder.RESERVE)
