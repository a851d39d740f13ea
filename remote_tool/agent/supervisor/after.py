"""The jobs of the same project that must have ended before another one begins."""

from __future__ import annotations

import os
import select
import time

from remote_tool.agent import states
from remote_tool.agent.cleaning import removed_jobs
from remote_tool.agent.leases.queued_file import read_queued
from remote_tool.agent.proc.processes import find_alive
from remote_tool.protocol import job_folder
from remote_tool.protocol.records import ENDED, STARTED, RecordError, state_of_ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple

    from remote_tool.agent.states import HostSnapshot

_MOST_SHOWN = 3
# A supervisor may live on after the end of its job.
_LOOK_SECONDS, _BLIND_SECONDS = 10.0, 1.0
# Jobs of one request get their folders in any order: a missing one may still come, for this long.
_NEW_SECONDS = 60.0
_MISSING = "does not exist on this server"


class WatchedSupervisors:
    """The supervisors of jobs; poll() reports their end."""

    def __init__(self, pids: List[int]) -> None:
        self._descriptors = pids

    def __enter__(self) -> select.poll:
        poll = select.poll()
        for descriptor in self._descriptors:
            poll.register(descriptor, select.POLLIN)
        return poll

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


class EarlierJobs:
    """Jobs to wait for.

    Attributes:
        seconds: For how long to wait until the next look, unless a supervisor ends first.
    """

    def __init__(self, jobs: str, ids: Tuple[str, ...], *, may_be_new: bool = False) -> None:
        """Initialize.

        Args:
            jobs: The folder of all jobs.
            ids: The jobs.
            may_be_new: Whether some may be started by the same request.
        """
        self._missing_until = time.monotonic() + _NEW_SECONDS if may_be_new else 0.0
        self.seconds = _LOOK_SECONDS
        self._jobs = jobs
        self._left = list(ids)
        self._failed: List[str] = []
        self._supervisors: List[Dict[str, Any]] = []

    def look(self) -> Tuple[str, str]:
        """Return the jobs that have not ended, and how the first one failed; empty if none."""
        self._supervisors = []
        left = []
        if self._left:
            try:
                jobs = job_folder.open_jobs_folder(self._jobs)
            except (OSError, job_folder.FolderError):
                return "jobs that cannot be read now", ""
            try:
                left = [job_id for job_id in self._left if not self._has_ended(jobs, job_id)]
            finally:
                if jobs is not None:
                    os.close(jobs)
        self._left = left
        shown = ", ".join(f"job {job_id}" for job_id in left[:_MOST_SHOWN])
        more = f" and {len(left) - _MOST_SHOWN} more" if len(left) > _MOST_SHOWN else ""
        return shown + more, self._failed[0] if self._failed else ""

    def watch(self) -> WatchedSupervisors:
        """Return descriptors that report the end of the supervisors which the last look found."""
        found = [_open(record) for record in self._supervisors]
        self.seconds = _BLIND_SECONDS if None in found or not found else _LOOK_SECONDS
        return WatchedSupervisors([descriptor for descriptor in found if descriptor is not None])

    def _has_ended(self, jobs: Optional[int], job_id: str) -> bool:
        try:
            folder = job_folder.open_job(jobs, job_id)
            if folder is None:
                state = _recall(jobs, job_id)
                if state == _MISSING and time.monotonic() < self._missing_until:
                    return False
                self._note(job_id, state)
                return True
            try:
                state = self._state(folder, job_id)
            finally:
                os.close(folder)
        except RecordError as error:
            state = f"has an unreadable record ({error})"
        except OSError:
            # A disk that does not answer now.
            return False
        self._note(job_id, state)
        return bool(state)

    def _note(self, job_id: str, state: str) -> None:
        if state not in {"", "succeeded"}:
            self._failed.append(f"it begins only if job {job_id} succeeds, which {state}")

    def _state(self, folder: int, job_id: str) -> str:
        """Return how a job ended; empty if it has not."""
        ended = job_folder.read_record(folder, ENDED, job_id)
        if ended is None and states.is_looked_after(folder):
            self._supervisors.append(_supervisor_of(folder, job_id))
            return ""
        if ended is None:
            status = states.judge(folder, job_id, states.scan())
            if not status.is_finished and status.state != "lost":
                self._supervisors.append(_supervisor_of(folder, job_id))
                return ""
            return _describe(status.state)
        return _describe(state_of_ended(ended))


def find_left(jobs: str, ids: Iterable[str]) -> List[str]:
    """Return the jobs, out of some without a supervisor, that may still have processes."""
    host = states.scan()
    try:
        folder = job_folder.open_jobs_folder(jobs)
    except (OSError, job_folder.FolderError):
        return list(ids)
    try:
        return [job_id for job_id in ids if _may_be_left(folder, job_id, host)]
    finally:
        if folder is not None:
            os.close(folder)


def _may_be_left(jobs: Optional[int], job_id: str, host: HostSnapshot) -> bool:
    try:
        folder = job_folder.open_job(jobs, job_id)
        if folder is None:
            return bool(host.snapshot.members(job_id, ""))
        try:
            status = states.judge(folder, job_id, host)
        finally:
            os.close(folder)
    except (RecordError, OSError):
        # A disk that does not answer now.
        return True
    return bool(status.members) or status.state in {"starting", "running", "elsewhere"}


def _describe(state: str) -> str:
    return {"killed": "was killed", "lost": "was lost"}.get(state, state)


def _recall(jobs: Optional[int], job_id: str) -> str:
    """Return how a removed job ended."""
    if jobs is not None:
        known = removed_jobs.recall(jobs).get(job_id)
        if known is not None:
            return _describe(known.state)
    return _MISSING


def _supervisor_of(folder: int, job_id: str) -> Dict[str, Any]:
    started = job_folder.read_record(folder, STARTED, job_id)
    if started is not None:
        supervisor: Dict[str, Any] = started["supervisor"]
        return supervisor
    queued = read_queued(folder)
    return {} if queued is None else dict(queued.supervisor)


def _open(record: Dict[str, Any]) -> Optional[int]:
    """Open a process; None on Python 3.8, on old kernels and if it has ended or is unknown."""
    if not record or not hasattr(os, "pidfd_open"):
        return None
    try:
        descriptor = os.pidfd_open(record["pid"])
    except OSError:
        return None
    if find_alive(record) is None:
        os.close(descriptor)
        return None
    return descriptor
