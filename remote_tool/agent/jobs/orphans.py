"""Orphans: list and end processes that carry a job's marker but have no supervisor.

An orphan belongs to this user, this project and this pid namespace, and has none of our programs as an ancestor. Its
job has ended, is lost, or is unknown here: an interrupted ``run``, or a job whose folder was removed.
"""

from __future__ import annotations

import os
import time

from remote_tool.agent import states
from remote_tool.agent.jobs.stop import JobStop, StopRequest, take_turns
from remote_tool.agent.proc import processes
from remote_tool.agent.proc.processes import Process, ProcessSnapshot, holds, is_own
from remote_tool.agent.proc.subprocess import output_of
from remote_tool.agent.requests import Folders, Request, is_list
from remote_tool.agent.states import CachedScan
from remote_tool.agent.supervisor.missing_folder import supervisors_by_job
from remote_tool.agent.supervisor.tree import end_members
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import RecordError, is_grace, is_signal

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


class OrphanGroup(NamedTuple):
    """The orphans of one job.

    Attributes:
        state: The job's: ``succeeded``, ``failed``, ``killed``, ``lost`` or ``unknown``.
        folder: The job's folder, absolute and without links; empty when there is none.
        command: The record of the command's process, if from this boot.
    """

    job_id: str
    state: str
    members: List[Process]
    folder: str = ""
    command: Optional[Mapping[str, Any]] = None


def strays(request: Request) -> None:
    """Answer op ``strays``: list orphans and end none."""
    groups = OrphanSearch(request.folders()).groups()
    gpu_memory = _gpu_memory() if groups else {}
    found = [_describe(group, process, gpu_memory) for group in groups for process in group.members]
    request.answer({"now": time.time(), "identity": processes.place(), "strays": found[:_MOST]})


def end_strays(request: Request) -> None:
    """Answer op ``end_strays``: end the listed orphans and everything that belongs to them."""
    folders = request.folders()
    listed = _read_listed(request.get("jobs", is_list))
    place = request.get("identity", lambda value: isinstance(value, dict))
    stop_request = StopRequest(request.get("signal", is_signal, "SIGTERM"), request.get("grace", is_grace, 10.0))
    if any(place.get(name) != processes.place()[name] for name in ("boot_id", "pid_namespace")):
        raise RequestError("The server has restarted since its orphans were listed", hint="job-kill --orphans again")
    groups = [group for group in OrphanSearch(folders).groups() if _is_listed(group, listed.get(group.job_id, set()))]
    _end_all(folders, groups, stop_request)
    left = {group.job_id: group.members for group in OrphanSearch(folders).groups()}
    jobs = [{"id": group.job_id, "left": [each.pid for each in left.get(group.job_id, [])]} for group in groups]
    request.answer({"jobs": jobs, "now": time.time()})


class OrphanSearch:
    """A scan for orphans."""

    def __init__(self, folders: Folders) -> None:
        self._project = folders.project
        self._copies = os.path.join(folders.copies, "")
        self._jobs = job_folder.open_jobs_folder(folders.jobs)
        self._host = states.scan()
        self._snapshot = self._host.snapshot
        self._namespace = self._host.place["pid_namespace"]
        # Supervisors whose folder was removed, renamed or replaced protect no process.
        supervised = supervisors_by_job(self._snapshot).items()
        self._displaced = {job_id: some for job_id, some in supervised if not self._is_in_place(job_id, some)}
        self._powerless = {each.pid for some in self._displaced.values() for each in some}

    def groups(self) -> List[OrphanGroup]:
        """Return the orphans of each job."""
        found = [self._examine(job_id, marked) for job_id, marked in sorted(self._marked().items())]
        return [group for group in found if group is not None and group.members]

    def _marked(self) -> Dict[str, List[Process]]:
        """Return the processes carrying each job's marker, except for supervised jobs."""
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
        """Return whether one of our programs is a living ancestor of a process."""
        lineage = (each for each in self._snapshot.lineage(process) if each.pid not in self._powerless)
        return any(each.is_alive and self._snapshot.mark(each).is_supervisor for each in lineage)

    def _is_in_place(self, job_id: str, supervisors: List[Process]) -> bool:
        """Return whether a job's supervisor works in the job's current folder, or this cannot be determined."""
        try:
            folder = job_folder.open_job(self._jobs, job_id)
            if folder is None:
                return False
            try:
                return any(holds(supervisor.pid, folder) for supervisor in supervisors)
            finally:
                os.close(folder)
        except OSError:
            return True

    def _examine(self, job_id: str, marked: List[Process]) -> Optional[OrphanGroup]:
        try:
            folder = job_folder.open_job(self._jobs, job_id)
            if folder is None:
                return self._unknown(job_id, marked)
            try:
                job_status = states.judge(folder, job_id, self._host)
                path = job_folder.path_of(folder)
            finally:
                os.close(folder)
        except (RecordError, OSError):
            return None  # it cannot be determined whether it runs
        if not job_status.is_finished and job_status.state != _LOST:
            return None
        started = job_status.started
        command = started["command"] if started and started["place"] == self._host.place else None
        return OrphanGroup(job_id, job_status.state, self._members(job_id, path, command), path, command)

    def _unknown(self, job_id: str, marked: List[Process]) -> Optional[OrphanGroup]:
        """Return a group for a job without a folder here, unless another project has the job."""
        if not all(self._is_of_project(self._snapshot.mark(process).project or "") for process in marked):
            return None
        return OrphanGroup(job_id, _UNKNOWN, self._members(job_id, "", None))

    def _is_of_project(self, folder: str) -> bool:
        return folder == self._project or folder.startswith(self._copies)

    def _members(self, job_id: str, folder: str, command: Optional[Mapping[str, Any]]) -> List[Process]:
        supervisor = next((each.pid for each in self._displaced.get(job_id, [])), 0)
        members = self._snapshot.members(job_id, folder, supervisor, command)
        return [process for process in members if is_own(process, self._namespace)]


def _read_listed(jobs: List[Any]) -> Dict[str, Set[Tuple[int, int]]]:
    try:
        return {str(job["id"]): {(int(pid), int(start)) for pid, start in job["processes"]} for job in jobs}
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"The orphans to end cannot be read: {error!r}") from error


def _is_listed(group: OrphanGroup, listed: Set[Tuple[int, int]]) -> bool:
    """Return whether a listed process is left; processes it started since then are ended with it."""
    return any((process.pid, process.start_time) in listed for process in group.members)


def _end_all(folders: Folders, groups: List[OrphanGroup], stop_request: StopRequest) -> None:
    """Signal all groups before waiting for any."""
    jobs = job_folder.open_jobs_folder(folders.jobs)
    scans = CachedScan()
    take_turns([_steps(jobs, group, stop_request, scans) for group in groups], scans)


def _steps(jobs: Optional[int], group: OrphanGroup, stop_request: StopRequest, scans: CachedScan) -> Iterator[None]:
    if group.state in {_LOST, _UNKNOWN}:
        # Include a supervisor that works in another folder; its record then says that the job was ended.
        yield from JobStop(jobs, group.job_id, stop_request, scans).steps()
        return
    namespace = processes.place()["pid_namespace"]

    def scan() -> List[Process]:
        members = ProcessSnapshot().members(group.job_id, group.folder, command=group.command)
        return [process for process in members if is_own(process, namespace)]

    yield from end_members(scan, stop_request.signal, stop_request.grace or 0.0)


def _describe(group: OrphanGroup, process: Process, gpu_memory: Mapping[int, int]) -> Dict[str, Any]:
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
    """Return the GPU memory of processes in bytes from nvidia-smi, which in a container reports other pids."""
    found: Dict[int, int] = {}
    for line in output_of(_GPU_QUERY, dict(os.environ)).splitlines():
        pid, _, mebibytes = line.partition(",")
        if pid.strip().isdigit() and mebibytes.strip().isdigit():
            found[int(pid)] = found.get(int(pid), 0) + int(mebibytes) * _KIBIBYTE * _KIBIBYTE
    return found
