"""Remove finished jobs: record how each ended, then remove its folder."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress

from remote_tool.agent import states
from remote_tool.agent.cleaning import leftovers, removed_jobs
from remote_tool.agent.cleaning.removed_jobs import RemovedJob
from remote_tool.protocol import job_folder, removing
from remote_tool.protocol.records import SPEC, STARTED, RecordError, is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from remote_tool.agent.requests import Folders
    from remote_tool.agent.states import HostSnapshot, JobStatus

JOBS = "jobs"
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class Removal:
    """The removal of jobs.

    Attributes:
        removed: Jobs that were removed, or would be.
        missing: Jobs that did not exist.
        kept: Jobs that remain, and why.
        young: Jobs that remain because they ended a shorter time ago than ``older`` seconds, if that is given.
        more: Whether time ran out.
    """

    def __init__(
        self,
        folders: Folders,
        *,
        dry_run: bool,
        deadline: float,
        jobs: Optional[int] = None,
        older: Optional[float] = None,
    ) -> None:
        self.folders = folders
        self.dry_run = dry_run
        self.deadline = deadline
        self.older = older
        self.jobs = job_folder.open_jobs_folder(folders.jobs) if jobs is None else jobs
        self.removed: List[str] = []
        self.missing: List[str] = []
        self.kept: List[Dict[str, str]] = []
        self.young: List[str] = []
        self.more = False
        self._bytes = 0

    def remove_jobs(self, ids: List[str], *, sized: bool = True) -> None:
        """Remove finished jobs without living processes, after recording how they ended."""
        host = states.scan()
        to_remove: List[RemovedJob] = []
        for job_id in ids:
            if removing.is_over(self.deadline):
                self.more = True
                break
            found = self._examine(job_id, host)
            if found is not None:
                to_remove.append(found)
                self._bytes += removing.size_of(self.jobs or 0, job_id, self.deadline) if sized else 0
        if self.jobs is not None and not self.dry_run and to_remove:
            to_remove = self._remember(self.jobs, to_remove)
        self.removed = [each.job_id for each in to_remove]
        if self.jobs is None or self.dry_run:
            return
        for each in to_remove:
            removing.set_aside(self.jobs, each.job_id)
        self.more = not removing.remove_marked(self.jobs, self.deadline) or self.more

    def _remember(self, jobs: int, to_remove: List[RemovedJob]) -> List[RemovedJob]:
        """Record how jobs ended, on a full disk in the space that they free; return those that may be removed."""
        try:
            removed_jobs.remember(jobs, to_remove)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            removing.remove_marked(jobs, self.deadline)
            for each in to_remove:
                _remove_all_but_records(jobs, each.job_id, self.deadline)
            try:
                removed_jobs.remember(jobs, to_remove)
            except OSError as still:
                self.kept += [{"id": each.job_id, "why": f"{still.strerror}, to record its end"} for each in to_remove]
                self._bytes = 0
                return []
        return to_remove

    def _examine(self, job_id: str, host: HostSnapshot) -> Optional[RemovedJob]:
        """Return how a job ended, if it may be removed."""
        try:
            folder = job_folder.open_job(self.jobs, job_id)
            if folder is None:
                self.missing.append(job_id)
                return None
            try:
                job_status = states.judge(folder, job_id, host)
                why = why_it_stays(folder, job_status)
                is_young = self.older is not None and _age(folder, job_status, host) < self.older
            finally:
                os.close(folder)
        except (RecordError, OSError) as error:
            self.kept.append({"id": job_id, "why": f"it cannot be read: {error}"})
            return None
        if why:
            self.kept.append({"id": job_id, "why": why})
            return None
        if is_young:
            self.young.append(job_id)
            return None
        ended = job_status.ended or {}
        moment = ended.get("ended_at") or host.now
        return RemovedJob(job_id, job_status.state, ended.get("exit_code"), ended.get("signal"), moment)

    def jobs_item(self) -> Dict[str, Any]:
        """Return the disk space of all jobs, and how much of it is freed."""
        names = [] if self.jobs is None else [name for name in removing.names_in(self.jobs) if is_job_id(name)]
        size = 0 if self.dry_run else self._bytes
        for name in names:
            if removing.is_over(self.deadline):
                break
            size += removing.size_of(self.jobs or 0, name, self.deadline)
        count = len(names) + (0 if self.dry_run else len(self.removed))
        return leftovers.item(JOBS, count, size, len(self.removed), self._bytes)

    def as_answer(self) -> Dict[str, Any]:
        return {
            "removed": self.removed,
            "gone": self.missing,
            "kept": self.kept,
            "young": self.young,
            "more": self.more,
        }


def _age(folder: int, job_status: JobStatus, host: HostSnapshot) -> float:
    """Return how many seconds ago a job ended, by this machine's clock alone: that of a laptop may be wrong."""
    moment = (job_status.ended or {}).get("ended_at") or _last_sign(folder)
    age = host.now - moment
    record = job_status.started or job_status.spec
    if record["place"]["boot_id"] == host.place["boot_id"]:
        # The clock may have been wrong then, and set since.
        age = min(age, time.clock_gettime(time.CLOCK_BOOTTIME))
    return float(age)


def _last_sign(folder: int) -> float:
    """Return when a job without a recorded end wrote something last."""
    moments = []
    for name in (SPEC, STARTED, job_folder.OUT, job_folder.ERR):
        with suppress(OSError):
            moments.append(os.stat(name, dir_fd=folder).st_mtime)
    return max(moments, default=0.0)


def _remove_all_but_records(jobs: int, name: str, deadline: float) -> None:
    """Remove the output of a job that is about to go; its records still say how it ended."""
    try:
        folder = job_folder.open_folder(name, jobs)
    except OSError:
        return
    try:
        for each in removing.names_in(folder):
            if not each.endswith(".json"):
                removing.remove(folder, each, deadline)
    finally:
        os.close(folder)


def why_it_stays(folder: int, job_status: JobStatus) -> str:
    """Return why a job is still in use, or an empty string."""
    if not job_status.is_finished and job_status.state != "lost":
        return f"it is {'on another machine' if job_status.state == 'elsewhere' else job_status.state}"
    if job_status.members:
        return "some of its processes are still running"
    if states.is_looked_after(folder):
        return "its supervisor is still running"
    return ""
