"""Send the use of this machine and the changes of its jobs, again and again, until the client has gone."""

from __future__ import annotations

import os
import time

from remote_tool.agent.machine.gpu_use import SILENCE, GpuUse
from remote_tool.agent.proc import processes
from remote_tool.agent.requests import Request, client_is_gone, is_flag
from remote_tool.protocol import job_folder
from remote_tool.protocol.limits import LONGEST_INTERVAL, SHORTEST_INTERVAL
from remote_tool.protocol.records import ENDED, STARTED, RecordError, is_job_id
from remote_tool.protocol.streams import last_output, stream_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

# The load of a processor is a difference.
_FIRST_SECONDS = 0.5
_KIBIBYTE = 1024
_MOST_TAILS = 64
_IDLE_FIELDS = slice(3, 5)


def top(request: Request) -> None:
    """Answer op ``top``: a sample every ``interval`` seconds, with the jobs when one of them has changed.

    After it comes the end of the output of each running job that has written. With ``once``, there is one sample, which
    waits for the GPUs.
    """
    interval = request.get("interval", _is_interval)
    once = request.get("once", is_flag, default=False)
    folders = request.folders()
    use, jobs, busy = GpuUse(interval), JobWatch(folders.jobs), _busy()
    use.update(time.monotonic())
    try:
        seconds, patience = _FIRST_SECONDS, time.monotonic() + SILENCE
        while not client_is_gone(seconds):
            use.update(time.monotonic())
            if once and not use.is_known and time.monotonic() < patience:
                continue
            busy, before = _busy(), busy
            sample = {"machine": _machine(folders.project, before, busy), "gpus": use.as_answer()}
            request.answer({**sample, "gpu_problem": use.problem, **({} if once else jobs.look())})
            if once:
                return
            for job_id, texts in jobs.tails():
                request.answer({"tail": job_id, "texts": texts})
            seconds = interval
    finally:
        use.end()


class JobWatch:
    """Notices what changes about the jobs in a folder, from a few files of each job that has not ended."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._place = processes.place()
        self._ended: "set[str]" = set()
        self._supervisors: Dict[str, Dict[str, Any]] = {}
        self._said: Optional[Dict[str, str]] = None
        self._sizes: Dict[str, Dict[str, int]] = {}

    def look(self) -> Dict[str, Any]:
        """Return ``jobs``, the states of those that have not ended, if they have changed since the last call."""
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

    def tails(self) -> "List[Tuple[str, List[str]]]":
        """Return the end of the output of each running job that has written since the last call."""
        news = []
        for name in [name for name, state in (self._said or {}).items() if state == "running"][:_MOST_TAILS]:
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
        """Return ``starting``, ``running``, ``gone`` or ``unknown``; empty for a job that has ended."""
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
                return "starting"
            where = started["place"]
            if any(where[key] != self._place[key] for key in ("boot_id", "pid_namespace")):
                # Of another machine that shares this folder, or of one before a reboot.
                return "elsewhere"
            self._supervisors[name] = started["supervisor"]
        return "running" if processes.find_alive(self._supervisors[name]) else "gone"


def _machine(project: str, before: "Tuple[int, int]", now: "Tuple[int, int]") -> Dict[str, Any]:
    total = now[1] - before[1]
    memory = _memory()
    return {
        "cpu": round(100.0 * (now[0] - before[0]) / total, 1) if total > 0 else None,
        "cores": os.cpu_count(),
        "load": _load(),
        "memory_total": memory.get("MemTotal"),
        "memory_available": memory.get("MemAvailable"),
        **_disk(project),
    }


def _busy() -> "Tuple[int, int]":
    """Return the clock ticks in which processors worked, and all of them."""
    fields = [int(field) for field in _read("/proc/stat").partition("\n")[0].split()[1:9]]
    return sum(fields) - sum(fields[_IDLE_FIELDS]), sum(fields)


def _load() -> Optional[float]:
    words = _read("/proc/loadavg").split()
    return float(words[0]) if words else None


def _memory() -> Dict[str, int]:
    """Return sizes in bytes."""
    found = {}
    for line in _read("/proc/meminfo").splitlines()[:4]:
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            found[name] = int(number[0]) * _KIBIBYTE
    return found


def _disk(project: str) -> Dict[str, Optional[int]]:
    try:
        room = os.statvfs(project)
    except OSError:
        return {"disk_total": None, "disk_free": None}
    return {"disk_total": room.f_blocks * room.f_frsize, "disk_free": room.f_bavail * room.f_frsize}


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read(8192)
    except OSError:
        return ""


def _is_interval(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return SHORTEST_INTERVAL <= value <= LONGEST_INTERVAL
