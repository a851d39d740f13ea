"""Stop jobs: write a request for the supervisor, or end the processes here if it is dead."""

from __future__ import annotations

import os
import signal
import time

from remote_tool.agent import states
from remote_tool.agent.proc import processes
from remote_tool.agent.proc.processes import Process, ProcessSnapshot, find_alive, holds, is_own
from remote_tool.agent.requests import Request, is_list
from remote_tool.agent.states import CachedScan
from remote_tool.agent.supervisor.missing_folder import end_supervisors, supervisors_by_job
from remote_tool.agent.supervisor.tree import deliver, end_members
from remote_tool.protocol import job_folder
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import (
    ENDED,
    ENTRY,
    STARTED,
    STOP,
    RecordError,
    end_without_record,
    is_grace,
    is_signal,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional

    from remote_tool.agent.states import JobStatus
    from remote_tool.agent.wrapper.container import WrappedProcesses
    from remote_tool.protocol.records import Record

# Beyond the grace period, for SIGKILL and for the record.
_EXTRA_SECONDS = 15.0
_LOOK_SECONDS = 0.5
# If no grace period is known: the longest default that a job is started with.
_LONGEST_USUAL_GRACE = 45.0
_GRACE = 10.0
_DONE = object()


class StopRequest(NamedTuple):
    """How to end a job.

    Attributes:
        signal: Name of the first signal.
        grace: Seconds until SIGKILL; None for the job's own.
    """

    signal: str
    grace: Optional[float]


def stop(request: Request) -> None:
    """Answer op ``stop``: signal all jobs before waiting for any, as far as the limit of open files allows."""
    folders = request.folders()
    ids = request.get("ids", is_list)
    stop_request = StopRequest(
        request.get("signal", is_signal, "SIGTERM"),
        request.get("grace", lambda value: value is None or is_grace(value)),
    )
    jobs = job_folder.open_jobs_folder(folders.jobs)
    at_once = job_folder.allow_open_files(len(ids))
    scans = CachedScan()
    stops = [JobStop(jobs, job_id, stop_request, scans) for job_id in ids]
    for first in range(0, len(stops), at_once):
        take_turns([job.steps() for job in stops[first : first + at_once]], scans)
    request.answer({"jobs": [job.answer for job in stops], "now": time.time()})


def take_turns(stops: List[Iterator[None]], scans: CachedScan) -> None:
    """Advance each generator in turn until all have ended."""
    pause = 0.02
    while stops:
        scans.forget()
        stops = [steps for steps in stops if next(steps, _DONE) is not _DONE]
        time.sleep(pause if stops else 0.0)
        pause = min(pause * 1.3, 0.2)


class JobStop:
    """The stopping of one job.

    Attributes:
        answer: The job's status; complete when the steps have ended.
    """

    def __init__(self, jobs: Optional[int], job_id: object, stop_request: StopRequest, scans: CachedScan) -> None:
        self.answer: Dict[str, Any] = {"id": job_id, "state": None, "ended": None, "left": [], "already": False}
        self._jobs = jobs
        self._job_id = str(job_id)
        self._stop_request = stop_request
        self._scans = scans
        self._folder = -1
        self._command: Optional[Dict[str, Any]] = None
        self._wrapped: Optional[WrappedProcesses] = None

    def steps(self) -> Iterator[None]:
        """Yield wherever there is something to wait for or to scan again."""
        try:
            yield from self._open_and_end()
        except (RecordError, OSError) as error:
            self.answer["error"] = str(error)

    def _open_and_end(self) -> Iterator[None]:
        folder = job_folder.open_job(self._jobs, self._job_id)
        if folder is None:
            yield from self._end_without_folder()
            return
        self._folder = folder
        try:
            yield from self._end()
        finally:
            os.close(folder)

    def _end_without_folder(self) -> Iterator[None]:
        """End the processes carrying the marker of a job without a folder, and its supervisor in another folder."""
        self.answer["folder_gone"] = True
        supervisors = self._find_supervisors(None)
        if not supervisors and not self._members():
            raise RecordError("there is no such job on this server")
        yield from self._end_all(supervisors, self._stop_request.grace)
        self.answer["left"] = [process.pid for process in (*self._living(supervisors), *self._members())]

    def _end(self) -> Iterator[None]:
        job_status = self._judge()
        if job_status.held is not None and job_status.state in {"queued", "elsewhere"}:
            self._end_held(job_status)
            return
        was_running = job_status.state in {"running", "starting", "queued"}
        if job_status.state == "elsewhere":
            self.answer["error"] = f"it cannot be stopped from here: {job_status.reason}"
        elif was_running:
            yield from self._wait_for_supervisor(job_status)
            yield
            job_status = self._judge()
        # If a supervisor could not end them just now, neither can we.
        has_been_tried = was_running and job_status.ended is not None
        self._load_inside(job_status)
        supervisors = self._find_supervisors(job_status.started) if job_status.state == "lost" else []
        is_left = bool(supervisors or job_status.members or (self._wrapped is not None and self._wrapped.signal(0) > 0))
        self.answer["already"] = not was_running and job_status.state != "elsewhere" and not is_left
        if is_left and job_status.supervisor is None and not has_been_tried:
            yield from self._end_members(job_status, supervisors)
            yield
            job_status = self._judge()
        if job_status.state in {"running", "starting", "queued"}:
            self.answer["error"] = "its supervisor did not end it in time"
        self.answer["state"] = job_status.state
        self.answer["ended"] = job_status.ended
        self.answer["left"] = [process.pid for process in job_status.members]

    def _end_held(self, job_status: JobStatus) -> None:
        """Ask for the end of a job that something else starts, and record it if it has not started.

        Its supervisor looks for the request before it lets the command begin.
        """
        self._write_request(self._grace(job_status))
        if not job_folder.exists(self._folder, STARTED):
            again = " again" if (job_status.held or {}).get("attempts") else ""
            ended = end_without_record(self._job_id, f"it was killed before it began{again}", killed=True)
            job_folder.write_record(self._folder, ENDED, ended)
        job_status = self._judge()
        self.answer["state"], self.answer["ended"] = job_status.state, job_status.ended
        self.answer["asked"] = job_status.ended is None

    def _judge(self) -> JobStatus:
        job_status = states.judge(self._folder, self._job_id, self._scans.scan())
        self._command = job_status.started["command"] if job_status.started is not None else None
        return job_status

    def _load_inside(self, job_status: JobStatus) -> None:
        """Load access to processes behind the launch command of a job without a supervisor."""
        if job_status.state == "lost" and job_folder.exists(self._folder, ENTRY):
            from remote_tool.agent.activation import without_foreign_variables  # noqa: PLC0415 - few jobs begin behind a launch command
            from remote_tool.agent.wrapper.container import load_inside  # noqa: PLC0415

            self._wrapped = load_inside(self._folder, self._job_id, without_foreign_variables(os.environb))

    def _grace(self, job_status: JobStatus) -> float:
        return float(job_status.spec["grace"] if self._stop_request.grace is None else self._stop_request.grace)

    def _wait_for_supervisor(self, job_status: JobStatus) -> Iterator[None]:
        """Notify the supervisor and wait; return early if it dies."""
        grace = self._grace(job_status)
        written = self._write_request(grace)
        # Only a scan after the request is on disk shows whether the supervisor has seen it already.
        yield
        job_status = self._judge()
        if job_status.supervisor is not None:
            deliver(job_status.supervisor, self._wake_signal(written=written))
        deadline = time.monotonic() + grace + _EXTRA_SECONDS
        next_look = time.monotonic() + _LOOK_SECONDS
        while time.monotonic() < deadline and not job_folder.exists(self._folder, ENDED):
            if time.monotonic() > next_look:
                state = self._judge().state
                if state not in {"running", "starting", "queued"}:
                    return
                if state == "starting":
                    for supervisor in self._find_unrecorded():
                        deliver(supervisor, self._wake_signal(written=written))
                next_look = time.monotonic() + _LOOK_SECONDS
            yield

    def _find_unrecorded(self) -> List[Process]:
        """Return the supervisor of a job that waits, when a full disk has no space for the file that names it."""
        host = self._scans.scan()
        found = supervisors_by_job(host.snapshot).get(self._job_id, [])
        own = (process for process in found if is_own(process, host.place["pid_namespace"]))
        return [process for process in own if holds(process.pid, self._folder) and _heeds_signals(process.pid)]

    def _wake_signal(self, *, written: bool) -> int:
        if written:
            return signal.SIGUSR1
        # On a full disk nothing can be written, so the signal itself is the request.
        return signal.SIGUSR2 if self._stop_request.signal == "SIGKILL" else signal.SIGTERM

    def _write_request(self, grace: float) -> bool:
        """Write stop.json: the first request counts, but SIGKILL overrides any other; return whether one is on disk."""
        record = {"id": self._job_id, "signal": self._stop_request.signal, "grace": grace, "requested_at": time.time()}
        try:
            is_first = job_folder.write_record(self._folder, STOP, record)
            if not is_first and self._stop_request.signal == "SIGKILL":
                job_folder.write_record(self._folder, STOP, record, replace=True)
        except OSError:
            return False
        return True

    def _end_members(self, job_status: JobStatus, supervisors: List[Process]) -> Iterator[None]:
        """Do the work of a supervisor that has died."""
        yield from self._end_all(supervisors, self._grace(job_status))
        if job_status.ended is None:
            self._record(len(job_status.members))

    def _end_all(self, supervisors: List[Process], grace: Optional[float]) -> Iterator[None]:
        yield from end_supervisors(
            supervisors, self._stop_request.signal, _LONGEST_USUAL_GRACE if grace is None else grace
        )
        # Processes that a supervisor left have had their grace period.
        name = "SIGKILL" if supervisors else self._stop_request.signal
        yield from end_members(self._members, name, _GRACE if grace is None else grace, self._wrapped)

    def _find_supervisors(self, started: Optional[Record]) -> List[Process]:
        """Return supervisors that work on the job in another folder."""
        host = self._scans.scan()
        found = [*supervisors_by_job(host.snapshot).get(self._job_id, [])]
        if started is not None and started["place"] == host.place:
            recorded = find_alive(started["supervisor"])
            found += [] if recorded is None or recorded in found else [recorded]
        own = (process for process in found if is_own(process, host.place["pid_namespace"]))
        return [process for process in own if self._folder < 0 or not holds(process.pid, self._folder)]

    @staticmethod
    def _living(supervisors: List[Process]) -> List[Process]:
        return [process for process in supervisors if find_alive(process.as_record())]

    def _members(self) -> List[Process]:
        snapshot = ProcessSnapshot()
        if self._folder >= 0:
            return snapshot.members(self._job_id, job_folder.path_of(self._folder), command=self._command)
        namespace = processes.place()["pid_namespace"]
        return [process for process in snapshot.members(self._job_id, "") if is_own(process, namespace)]

    def _record(self, count: int) -> None:
        left = [process.pid for process in self._members()]
        reason = f"the supervisor was gone; {count} remaining process{'es' if count != 1 else ''} had to be ended"
        rest = "" if self._wrapped is None else self._wrapped.rest
        why = f"{reason}; {rest}" if rest else reason
        ended = {**end_without_record(self._job_id, why, killed=True), "leftovers": count, "unkillable": left}
        try:
            job_folder.write_record(self._folder, ENDED, ended)
        except OSError as error:
            # Its processes have ended all the same: it counts as lost.
            why = job_folder.explain(f"{job_folder.path_of(self._folder)}/{ENDED}", error)
            self.answer["error"] = f"it was ended, but this could not be recorded: {why}"


def _heeds_signals(pid: int) -> bool:
    """Return whether a supervisor blocks or handles SIGTERM, which would end it as it begins."""
    try:
        with open(f"/proc/{pid}/status", "rb") as stream:
            masks = [int(line.split()[1], 16) for line in stream if line.startswith((b"SigBlk:", b"SigCgt:"))]
    except (OSError, ValueError):
        return False
    return any(mask & 1 << (signal.SIGTERM - 1) for mask in masks)
