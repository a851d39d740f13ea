"""Report changes of the jobs of a project, for ``top``."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from remote_tool.agent.proc import processes
from remote_tool.protocol import job_folder
from remote_tool.protocol.records import ENDED, STARTED, RecordError, is_job_id
from remote_tool.protocol.streams import last_output, stream_sizes

_MOST_TAILS = 64


class JobWatch:
    """Notices what changes about the jobs in a folder, from a few files of each job that has not ended."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._place = processes.place()
        self._ended: set[str] = set()
        self._supervisors: Dict[str, Dict[str, int]] = {}
        self._said: Optional[Dict[str, str]] = None
        self._sizes: Dict[str, Dict[str, int]] = {}

    def look(self) -> Dict[str, Any]:
        """Return ``jobs``, the states of unfinished jobs, if they have changed since the last call."""
        try:
            jobs = job_folder.open_jobs_folder(self._path)
        except (OSError, job_folder.FolderError):
            return {}
        found = {}
        if jobs is not None:
            try:
                names = [name for name in os.listdir(jobs) if is_job_id(name)]
                self._ended.intersection_update(names)
                found = {name: self._state(jobs, name) for name in names if name not in self._ended}
            finally:
                os.close(jobs)
        states = {name: state for name, state in found.items() if state}
        if states == self._said:
            return {}
        self._said = states
        return {"jobs": states}

    @property
    def running(self) -> Dict[str, Dict[str, int]]:
        """The supervisors of the jobs that were running at the last look."""
        return {name: self._supervisors[name] for name, state in (self._said or {}).items() if state == "running"}

    def tails(self) -> List[Tuple[str, List[str]]]:
        """Return the end of the output of each running job that has written since the last call."""
        news = []
        for name in [*self.running][:_MOST_TAILS]:
            try:
                folder = job_folder.open_folder(f"{self._path}/{name}")
            except OSError:
                continue
            try:
                sizes = stream_sizes(folder)
                if any(sizes.values()) and sizes != self._sizes.get(name):
                    news.append((name, last_output(folder)))
                self._sizes[name] = sizes
            finally:
                os.close(folder)
        self._sizes = {name: sizes for name, sizes in self._sizes.items() if name not in self._ended}
        return news

    def _state(self, jobs: int, name: str) -> str:
        """Return ``starting``, ``queued``, ``running``, ``gone`` or ``unknown``; empty for a job that has ended."""
        try:
            folder = job_folder.open_job(jobs, name)
        except OSError:
            return "unknown"
        if folder is None:
            return ""
        try:
            if job_folder.exists(folder, ENDED):
                self._ended.add(name)
                self._supervisors.pop(name, None)
                return ""
            return self._unended_state(folder, name)
        except (OSError, RecordError):
            return "unknown"
        finally:
            os.close(folder)

    def _unended_state(self, folder: int, name: str) -> str:
        if name not in self._supervisors:
            started = job_folder.read_record(folder, STARTED, name)
            if started is None:
                return "queued" if job_folder.exists(folder, job_folder.QUEUED) else "starting"
            where = started["place"]
            if any(where[key] != self._place[key] for key in ("boot_id", "pid_namespace")):
                # Of another machine that shares this folder, or of one before a reboot.
                return "elsewhere"
            self._supervisors[name] = started["supervisor"]
        return "running" if processes.find_alive(self._supervisors[name]) else "gone"
