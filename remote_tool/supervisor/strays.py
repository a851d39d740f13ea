"""Strays: processes with the mark of a job that nothing looks after any more; which there are, and their end.

A stray is this user's, of this project, in this pid namespace, and no program of ours is above it. Its job has ended,
is lost, or is not known here: a ``run`` whose end was cut off, or a job whose folder was removed.
"""

from __future__ import annotations

import os
import time

from . import job_files, processes, states
from .asking import output_of
from .named_tuple import NamedTuple
from .processes import Process, Snapshot
from .records import RecordError, is_grace, is_signal
from .requests import Folders, Request, RequestError, is_list
from .states import Looks
from .stopping import JobStop, Wish, take_turns
from .trees import end_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

_UNKNOWN = "unknown"
_LOST = "lost"
_COMMAND_LIMIT = 4096
_SHOWN_COMMAND = 500
_MOST = 2000
_KIBIBYTE = 1024
_GPU_QUERY = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]


class Group(NamedTuple):
    """The strays of one job.

    Attributes:
        state: Of the job: ``succeeded``, ``failed``, ``killed``, ``lost`` or ``unknown``.
        folder: Of the job, absolute and without links; empty when it has none.
        command: The record of its command's process, when that is of this boot.
    """

    job_id: str
    state: str
    members: List[Process]
    folder: str = ""
    command: Optional[Mapping[str, Any]] = None


def strays(request: Request) -> None:
    """Answer op ``strays``: say which there are; nothing is ended."""
    groups = Search(request.folders()).groups()
    gpu_memory = _gpu_memory() if groups else {}
    found = [_describe(group, process, gpu_memory) for group in groups for process in group.members]
    request.answer({"now": time.time(), "identity": processes.place(), "strays": found[:_MOST]})


def end_strays(request: Request) -> None:
    """Answer op ``end_strays``: end those that were listed, with everything that belongs to them."""
    folders = request.folders()
    listed = _read_listed(request.get("jobs", is_list))
    place = request.get("identity", lambda value: isinstance(value, dict))
    wish = Wish(request.get("signal", is_signal, "SIGTERM"), request.get("grace", is_grace, 10.0))
    if any(place.get(name) != processes.place()[name] for name in ("boot_id", "pid_namespace")):
        raise RequestError("The server was started anew since its strays were listed", hint="job-kill --strays again")
    groups = [group for group in Search(folders).groups() if _is_listed(group, listed.get(group.job_id, set()))]
    _end_all(folders, groups, wish)
    left = {group.job_id: group.members for group in Search(folders).groups()}
    jobs = [{"id": group.job_id, "left": [each.pid for each in left.get(group.job_id, [])]} for group in groups]
    request.answer({"jobs": jobs, "now": time.time()})


class Search:
    """One look for strays."""

    def __init__(self, folders: Folders) -> None:
        self._project = folders.project
        self._jobs = job_files.open_jobs_folder(folders.jobs)
        self._here = states.look()
        self._snapshot = self._here.snapshot
        self._namespace = self._here.place["pid_namespace"]

    def groups(self) -> List[Group]:
        """Return the strays of each job."""
        found = [self._look_at(job_id, marked) for job_id, marked in sorted(self._marked().items())]
        return [group for group in found if group is not None and group.members]

    def _marked(self) -> Dict[str, List[Process]]:
        """Return the processes that carry the mark of each job; of one that is looked after, none."""
        marked: Dict[str, List[Process]] = {}
        supervised: Set[str] = set()
        for process in self._snapshot.processes.values():
            mark = self._snapshot.mark(process)
            if not mark.job_id or mark.is_supervisor or not process.is_alive:
                continue
            marked.setdefault(mark.job_id, []).append(process)
            if self._is_supervised(process):
                supervised.add(mark.job_id)
        return {job_id: members for job_id, members in marked.items() if job_id not in supervised}

    def _is_supervised(self, process: Process) -> bool:
        """Whether a program of ours lives above a process."""
        lineage = self._snapshot.lineage(process)
        return any(each.is_alive and self._snapshot.mark(each).is_supervisor for each in lineage)

    def _look_at(self, job_id: str, marked: List[Process]) -> Optional[Group]:
        try:
            folder = job_files.open_job(self._jobs, job_id)
            if folder is None:
                return self._unknown(job_id, marked)
            try:
                standing = states.judge(folder, job_id, self._here)
                path = job_files.path_of(folder)
            finally:
                os.close(folder)
        except (RecordError, OSError):
            return None  # nobody can tell whether it runs
        if not standing.is_finished and standing.state != _LOST:
            return None
        started = standing.started
        command = started["command"] if started and started["place"] == self._here.place else None
        members = self._snapshot.members(job_id, path, command=command)
        return Group(job_id, standing.state, self._ours(members), path, command)

    def _unknown(self, job_id: str, marked: List[Process]) -> Optional[Group]:
        """What has no folder here may be of another project, where it may well be known."""
        if not all(self._snapshot.mark(process).project == self._project for process in marked):
            return None
        return Group(job_id, _UNKNOWN, self._ours(self._snapshot.members(job_id, "")))

    def _ours(self, members: List[Process]) -> List[Process]:
        return [process for process in members if is_own(process, self._namespace)]


def is_own(process: Process, namespace: str) -> bool:
    """Whether a process is this user's, and not of a container below."""
    try:
        is_users = os.stat(f"/proc/{process.pid}").st_uid == os.geteuid()
        return is_users and os.readlink(f"/proc/{process.pid}/ns/pid") == namespace
    except OSError:
        return False


def _read_listed(jobs: List[Any]) -> Dict[str, Set[Tuple[int, int]]]:
    try:
        return {str(job["id"]): {(int(pid), int(start)) for pid, start in job["processes"]} for job in jobs}
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"The strays to end cannot be read: {error!r}") from error


def _is_listed(group: Group, listed: Set[Tuple[int, int]]) -> bool:
    """Whether one of those that were listed is left; what it started since is ended with it."""
    return any((process.pid, process.start_time) in listed for process in group.members)


def _end_all(folders: Folders, groups: List[Group], wish: Wish) -> None:
    """Signal all before any is waited for."""
    jobs = job_files.open_jobs_folder(folders.jobs)
    looks = Looks()
    take_turns([_steps(jobs, group, wish, looks) for group in groups], looks)


def _steps(jobs: Optional[int], group: Group, wish: Wish, looks: Looks) -> Iterator[None]:
    if group.state == _LOST:
        # Its record then says that it was ended.
        yield from JobStop(jobs, group.job_id, wish, looks).steps()
        return
    namespace = processes.place()["pid_namespace"]

    def look() -> List[Process]:
        members = Snapshot().members(group.job_id, group.folder, command=group.command)
        return [process for process in members if is_own(process, namespace)]

    yield from end_members(look, wish.signal, wish.grace or 0.0)


def _describe(group: Group, process: Process, gpu_memory: Mapping[int, int]) -> Dict[str, Any]:
    ticks = process.start_time / os.sysconf("SC_CLK_TCK")
    return {
        "job": group.job_id,
        "state": group.state,
        "pid": process.pid,
        "start_time": process.start_time,
        "command": _command_of(process.pid),
        "age": max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks),
        "memory": _memory_of(process.pid),
        "gpu_memory": gpu_memory.get(process.pid),
    }


def _command_of(pid: int) -> str:
    words = _read(f"/proc/{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ")
    name = words or b"[" + _read(f"/proc/{pid}/comm").strip() + b"]"
    return name.decode("utf-8", "replace")[:_SHOWN_COMMAND]


def _memory_of(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(_COMMAND_LIMIT)
    except OSError:
        return b""


def _gpu_memory() -> Dict[int, int]:
    """Return the bytes that processes have on GPUs, as nvidia-smi tells: in a container it knows other pids."""
    found: Dict[int, int] = {}
    for line in output_of(_GPU_QUERY, dict(os.environ)).splitlines():
        pid, _, mebibytes = line.partition(",")
        if pid.strip().isdigit() and mebibytes.strip().isdigit():
            found[int(pid)] = found.get(int(pid), 0) + int(mebibytes) * _KIBIBYTE * _KIBIBYTE
    return found
