"""Determine a job's state from its records and its living processes."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from remote_tool.agent.proc import processes
from remote_tool.agent.proc.processes import Process, ProcessSnapshot
from remote_tool.protocol import job_folder
from remote_tool.protocol.job_folder import RESERVE
from remote_tool.protocol.limits import LONGEST_REASON, REBOOTED
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import ENDED, HELD, SPEC, STARTED, RecordError, state_of_ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional

    from remote_tool.agent.leases.standing import Standing
    from remote_tool.protocol.records import Record

# Without file locks, a start is trusted for this long.
_START_SECONDS = 60.0
_DISPLACED = "another folder has taken the place of its own, so its supervisor cannot record its end here"


class QueueView:
    """The queue of this machine, listed at most once."""

    def __init__(self) -> None:
        self._standing: Optional[Standing] = None

    def explain(self, folder: int, job_id: str) -> tuple[Optional[Process], str]:
        """Return the supervisor of a job in the queue, and what it waits for."""
        from remote_tool.agent.leases import standing  # noqa: PLC0415 - few jobs wait

        if self._standing is None:
            self._standing = standing.Standing()
        return self._standing.explain(folder, job_id)


class HostSnapshot(NamedTuple):
    """The state of this machine that jobs are judged by.

    Attributes:
        place: Where this process runs.
        snapshot: All processes.
        now: Seconds since the epoch.
        queue: The jobs that wait for GPUs, listed when needed.
    """

    place: Dict[str, str]
    snapshot: ProcessSnapshot
    now: float
    queue: QueueView


def scan() -> HostSnapshot:
    """Scan this machine."""
    return HostSnapshot(processes.place(), ProcessSnapshot(), time.time(), QueueView())


class CachedScan:
    """A scan of the machine shared by all jobs of one round: each scan reads every process."""

    def __init__(self) -> None:
        self._host: Optional[HostSnapshot] = None

    def forget(self) -> None:
        """Start a new round."""
        self._host = None

    def scan(self) -> HostSnapshot:
        """Return this round's scan."""
        if self._host is None:
            self._host = scan()
        return self._host


class JobRecords(NamedTuple):
    """A job's records, validated."""

    spec: Record
    started: Optional[Record]
    ended: Optional[Record]
    held: Optional[Record] = None


class JobStatus(NamedTuple):
    """The status of a job.

    Attributes:
        state: ``starting``, ``queued``, ``running``, ``succeeded``, ``failed``, ``killed``, ``lost`` or ``elsewhere``.
        reason: One sentence, or empty.
        supervisor: The job's living supervisor on this machine.
        members: The job's living processes on this machine.
        ran_here: Whether the job ran on this machine, judging by its names.
        held: Who starts the job in place of this program; None: nobody does.
    """

    spec: Record
    started: Optional[Record]
    ended: Optional[Record]
    state: str
    reason: str
    supervisor: Optional[Process] = None
    members: tuple[Process, ...] = ()
    ran_here: bool = True
    held: Optional[Record] = None

    @property
    def is_finished(self) -> bool:
        return self.state in {"succeeded", "failed", "killed"}

    def as_answer(self, job_id: str) -> Dict[str, Any]:
        return {
            "id": job_id,
            "spec": self.spec,
            "started": self.started,
            "ended": self.ended,
            "state": self.state,
            "reason": self.reason[:LONGEST_REASON],
            "ran_here": self.ran_here,
            "alive": self.supervisor is not None or bool(self.members),
            "processes": [process.pid for process in self.members],
            "held": self.held,
        }


def judge(folder: int, job_id: str, host: HostSnapshot) -> JobStatus:
    """Return a job's status.

    Args:
        folder: Descriptor of the job's folder.
        job_id: The job.
        host: The state of this machine.

    Raises:
        RecordError: A record is malformed.
    """
    spec = job_folder.read_record(folder, SPEC, job_id)
    if spec is None:
        raise RecordError(f"{SPEC}: is missing")
    ended = job_folder.read_record(folder, ENDED, job_id)
    started = job_folder.read_record(folder, STARTED, job_id)
    records = JobRecords(spec, started, ended, job_folder.read_record(folder, HELD, job_id))
    job_status = _judge_unended(folder, records, host) if ended is None else _judge_ended(folder, records, host)
    if job_status.state == "lost":
        # The job may have ended between the two reads.
        records = records._replace(ended=job_folder.read_record(folder, ENDED, job_id))
        if records.ended is not None:
            job_status = _judge_ended(folder, records, host)
    return job_status._replace(held=records.held)


def is_supervised(folder: int, job_id: str) -> bool:
    """Return whether a job's supervisor is alive on this machine and the job's records are readable.

    Gives the same answer as :func:`judge` without scanning every process.
    """
    try:
        spec = job_folder.read_record(folder, SPEC, job_id)
        started = job_folder.read_record(folder, STARTED, job_id)
    except (RecordError, OSError):
        return False
    if spec is None or started is None or not _is_here(started["place"], processes.place()):
        return False
    supervisor = processes.find_alive(started["supervisor"])
    return supervisor is not None and processes.holds(supervisor.pid, folder)


def is_looked_after(folder: int) -> bool:
    """Return whether a job's supervisor still holds its folder, even after recording the end."""
    return _lock_is_held(folder) is True


def _judge_ended(folder: int, records: JobRecords, host: HostSnapshot) -> JobStatus:
    spec, started, ended, _ = records
    assert ended is not None
    members: List[Process] = []
    if ended["unkillable"] and started is not None and _is_here(started["place"], host.place):
        members = host.snapshot.members(spec["id"], job_folder.path_of(folder), command=started["command"])
    ran_here = _is_same_machine((started or spec)["place"], host.place)
    return JobStatus(spec, started, ended, state_of_ended(ended), ended["reason"], None, tuple(members), ran_here)


def _judge_unended(folder: int, records: JobRecords, host: HostSnapshot) -> JobStatus:
    spec, started, _, held = records
    if started is None and held is not None:
        return JobStatus(spec, None, None, "queued", held["reason"])
    record = spec if started is None else started
    if not _is_here(record["place"], host.place):
        state, reason = _judge_from_afar(folder, record, host.place)
        return JobStatus(spec, started, None, state, reason)
    if started is None:
        return _starting(folder, spec, host)
    supervisor = processes.find_alive(started["supervisor"])
    pid = supervisor.pid if supervisor else 0
    members = host.snapshot.members(spec["id"], job_folder.path_of(folder), pid, started["command"])
    if supervisor is not None and not processes.holds(supervisor.pid, folder):
        return JobStatus(spec, started, None, "lost", _DISPLACED, None, tuple(members))
    if supervisor is not None:
        ending = processes.find_alive(started["command"]) is None
        reason = _ending_reason(folder) if ending else _running_reason(folder, spec, started)
        return JobStatus(spec, started, None, "running", reason, supervisor, tuple(members))
    return JobStatus(spec, started, None, "lost", _lost_reason(members), None, tuple(members))


def _ending_reason(folder: int) -> str:
    reason = "its command has ended, and its end is being recorded"
    return f"{reason}, but the disk is full" if job_folder.is_full(folder) else reason


def _running_reason(folder: int, spec: Record, started: Record) -> str:
    failed = started.get("failed_attempts")
    parts = [describe_attempt(failed, spec.get("retries") or 0)] if failed else []
    if spec.get("stop_if_idle"):
        with suppress(RecordError, OSError):
            parts.append((job_folder.read_bytes(folder, job_folder.NOTICE) or b"").decode("utf-8", "replace"))
    return "; ".join(part for part in parts if part)


def describe_attempt(failed: List[str], retries: int) -> str:
    """Return which attempt it is after these failed; one that others began again is not among the retries."""
    of = f" of {retries + 1}" if len(failed) <= retries else ""
    return f"attempt {len(failed) + 1}{of}, after {failed[-1]}"


def _lost_reason(members: List[Process]) -> str:
    if not members:
        return "its processes disappeared without a record"
    remain = "1 process remains" if len(members) == 1 else f"{len(members)} processes remain"
    return f"the supervisor is gone; {remain}"


def _starting(folder: int, spec: Record, host: HostSnapshot) -> JobStatus:
    held = _lock_is_held(folder)
    is_queued = job_folder.exists(folder, job_folder.QUEUED)
    if held is not False and is_queued:
        supervisor, reason = host.queue.explain(folder, spec["id"])
        # Without file locks, it waits as long as its supervisor lives.
        if held or supervisor is not None:
            return JobStatus(spec, None, None, "queued", reason, supervisor)
    if held is None:
        held = host.now - spec["received_at"] < _START_SECONDS
    if held:
        return JobStatus(spec, None, None, "starting", "")
    what = "its supervisor was killed while it waited" if is_queued else "its start was interrupted"
    return JobStatus(spec, None, None, "lost", f"{what}, and its command never ran")


def _is_here(place: Mapping[str, str], this: Mapping[str, str]) -> bool:
    """Return whether pids recorded at a place are valid here: same boot, same pid namespace."""
    return place["boot_id"] == this["boot_id"] and place["pid_namespace"] == this["pid_namespace"]


def _judge_from_afar(folder: int, record: Mapping[str, Any], this: Mapping[str, str]) -> tuple[str, str]:
    place = record["place"]
    if place["boot_id"] == this["boot_id"]:
        # Another container on this kernel: a lock is reliable on any file system.
        if record.get("locked", True) and _lock_is_held(folder) is False:
            return "lost", "the container that it ran in has ended"
    elif _is_same_machine(place, this):
        return "lost", REBOOTED
    return "elsewhere", f"it runs on another machine or container: {place['hostname']}"


def _is_same_machine(place: Mapping[str, str], this: Mapping[str, str]) -> bool:
    # Cloned disks share a machine id, so the hostname must match as well.
    known = place["machine_id"] or place["hostname"] not in {"", "localhost"}
    return bool(known) and all(place[name] == this[name] for name in ("machine_id", "hostname"))


def _lock_is_held(folder: int) -> Optional[bool]:
    """Return whether a process on this machine holds the job's lock; None when the file system cannot tell."""
    try:
        file = job_folder.open_file_beneath(folder, RESERVE)
    except FileNotFoundError:
        return False
    except OSError as error:
        if not job_folder.is_no_plain_file(error):
            raise
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)
    return False
