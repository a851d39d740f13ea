"""Identify processes, find those of a job, and signal them.

A process is identified by (boot id, pid namespace, pid, start time), never by its pid alone. It belongs to a job if
its environment has the job's marker, its output goes into the job's folder, it is the recorded command, or it
descends from such a process or from the job's supervisor. Only a process that has shed all of these is missed once
the supervisor is dead.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

from remote_tool.protocol.marks import JOB_MARKER, PROJECT_MARKER, SUPERVISOR_MARKER
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

_ENVIRONMENT_LIMIT = 8 * 1024 * 1024
_STAT_FIELDS = 20
# These errors mean that it cannot be read now, not that the process has ended.
_NO_MEANS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class Process(NamedTuple):
    """A process in one scan of ``/proc``.

    Attributes:
        start_time: In clock ticks since the boot, field 22 of ``/proc/PID/stat``.
        state: One letter, as ``ps`` shows it.
        threads: A zombie with more than one is alive: only its first thread has ended.
    """

    pid: int
    parent: int
    start_time: int
    state: str
    threads: int

    @property
    def is_alive(self) -> bool:
        return self.state not in {"Z", "X", "x"} or self.threads > 1

    @property
    def is_stuck(self) -> bool:
        """Return whether it is in uninterruptible sleep, where no signal reaches it."""
        return self.state == "D"

    def as_record(self) -> Dict[str, int]:
        return {"pid": self.pid, "start_time": self.start_time}


def place() -> Dict[str, str]:
    """Return the machine, boot and pid namespace, in which pids are unique; OSError when unknown now."""
    return {
        "hostname": os.uname().nodename,
        "machine_id": _first_line("/etc/machine-id"),
        "boot_id": _first_line("/proc/sys/kernel/random/boot_id"),
        "pid_namespace": _link("/proc/self/ns/pid"),
    }


def read_process(pid: int) -> Optional[Process]:
    """Read one process; None if there is none, OSError when unknown now."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stream:
            text = stream.read(4096)
    except OSError as error:
        if error.errno in _NO_MEANS:
            raise
        return None
    # The name may contain spaces and parentheses, so fields are counted from its last one.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < _STAT_FIELDS:
        return None
    return Process(pid, int(fields[1]), int(fields[19]), fields[0].decode("ascii"), int(fields[17]))


def find_alive(record: Mapping[str, Any]) -> Optional[Process]:
    """Return the process of a record ``{"pid", "start_time"}`` of this boot; None if it has ended."""
    process = read_process(record["pid"])
    if process is None or process.start_time != record["start_time"] or not process.is_alive:
        return None
    return process


def descriptors(pid: int) -> Dict[str, str]:
    """Return the target of each open descriptor of a process; OSError when unknown."""
    folder = f"/proc/{pid}/fd"
    return {name: _link(f"{folder}/{name}") for name in os.listdir(folder)}


def close_descriptors(keep: Set[int]) -> None:
    """Close every descriptor of this process but the standard streams and these."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in {0, 1, 2, *keep}:
            # One of them was the listing's own.
            with suppress(OSError):
                os.close(int(name))


def holds(pid: int, folder: int) -> bool:
    """Return whether a process has this very folder open, or this cannot be determined now.

    A folder that was removed, renamed or replaced is not the one that now has its name.
    """
    this = os.fstat(folder)
    path = _link(f"/proc/self/fd/{folder}")
    try:
        found = descriptors(pid)
    except OSError:
        return True
    # An exiting process has no descriptors.
    return not found or any(_is_same(this, path, f"/proc/{pid}/fd/{name}", other) for name, other in found.items())


def _is_same(this: os.stat_result, path: str, descriptor: str, other: str) -> bool:
    try:
        status = os.stat(descriptor)
    except OSError:
        # Closed just now, or reported as gone by a network disk.
        return False
    # A network disk that is mounted twice has two device numbers.
    return status.st_ino == this.st_ino and (status.st_dev == this.st_dev or other == path)


def is_own(process: Process, namespace: str) -> bool:
    """Return whether a process is this user's, and in this pid namespace."""
    try:
        is_users = os.stat(f"/proc/{process.pid}").st_uid == os.geteuid()
        return is_users and os.readlink(f"/proc/{process.pid}/ns/pid") == namespace
    except OSError:
        return False


def send_signal(process: Process, number: int) -> bool:
    """Signal this very process, never another with its pid; return False when it has ended or is not ours."""
    descriptor = _open_descriptor(process.pid)
    try:
        # A pidfd prevents reuse of the pid after this check; without one, a small race remains.
        if find_alive(process.as_record()) is None:
            return False
        if descriptor is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def _open_descriptor(pid: int) -> Optional[int]:
    """Open a pidfd; None on Python 3.8, on old kernels and when the process has ended."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


class Owner(NamedTuple):
    """The marks that identify the processes of a job."""

    job_id: str
    folder: str
    supervisor: int
    command: Optional[Mapping[str, Any]]


class Mark(NamedTuple):
    """Our marks in the environment of a process.

    Attributes:
        is_supervisor: Whether it is one of our own programs.
        job_id: The job; None if unmarked.
        project: The folder of the job's project; None if unmarked.
    """

    is_supervisor: bool = False
    job_id: Optional[str] = None
    project: Optional[str] = None


class ProcessSnapshot:
    """One scan of all processes of this machine."""

    def __init__(self) -> None:
        self.processes: Dict[int, Process] = {}
        self._outputs: Dict[int, Tuple[str, ...]] = {}
        self._marks: Dict[int, Mark] = {}
        # Filled by :mod:`remote_tool.agent.supervisor.missing_folder` on demand.
        self.supervisors: Optional[Dict[str, List[Process]]] = None
        for name in os.listdir("/proc"):
            if name.isdigit():
                process = read_process(int(name))
                if process is not None:
                    self.processes[process.pid] = process

    def members(
        self,
        job_id: str,
        folder: str,
        supervisor: int = 0,
        command: Optional[Mapping[str, Any]] = None,
        *,
        since: int = 0,
    ) -> list[Process]:
        """Return the living processes of a job, without its supervisor.

        Args:
            job_id: The job.
            folder: The job's folder, absolute and without links; empty when there is none.
            supervisor: Pid of the living supervisor, 0 when it is dead.
            command: The record ``{"pid", "start_time"}`` of its command, if from this boot.
            since: Earliest start time: older processes cannot belong to the job, and are not inspected.
        """
        owner = Owner(job_id, folder, supervisor, command)
        young = (process for process in self.processes.values() if process.start_time >= since)
        others = (process for process in young if process.is_alive and process.pid != supervisor)
        return [process for process in others if self._belongs(process, owner)]

    def _belongs(self, process: Process, owner: Owner) -> bool:
        for current in self.lineage(process):
            if current.pid == owner.supervisor or current.as_record() == owner.command:
                return True
            is_supervisor, marker, _ = self.mark(current)
            # Processes that a job starts through remote-tool belong to another job or to none.
            if is_supervisor:
                return False
            if marker is not None:
                return marker == owner.job_id
            if owner.folder and self._writes_into(current, owner.folder):
                return True
        return False

    def is_marked(self, process: Process, job_id: str) -> bool:
        """Return whether a process or an ancestor of it has the job's mark."""
        for current in self.lineage(process):
            is_supervisor, marker, _ = self.mark(current)
            if is_supervisor or marker is not None:
                return marker == job_id
        return False

    def lineage(self, process: Process) -> Iterator[Process]:
        """Yield a process, its parent, and so on upward."""
        seen = set()
        current: Optional[Process] = process
        while current is not None and current.pid not in seen:
            seen.add(current.pid)
            yield current
            current = self.processes.get(current.parent)

    def _writes_into(self, process: Process, folder: str) -> bool:
        """Return whether the stdout or stderr of a process is a file below a folder."""
        if process.pid not in self._outputs:
            self._outputs[process.pid] = tuple(_link(f"/proc/{process.pid}/fd/{number}") for number in (1, 2))
        return any(output.startswith(f"{folder}/") for output in self._outputs[process.pid])

    def mark(self, process: Process) -> Mark:
        """Return our marks in the environment of a process, as of its exec."""
        if process.pid not in self._marks:
            self._marks[process.pid] = read_mark(process.pid)
        return self._marks[process.pid]


def read_mark(pid: int) -> Mark:
    """Return our marks in the environment of a process; none when it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            text = b"\0" + stream.read(_ENVIRONMENT_LIMIT)
    except OSError as error:
        if error.errno in _NO_MEANS:
            raise
        return Mark()
    is_supervisor = _value(text, SUPERVISOR_MARKER) is not None
    return Mark(is_supervisor, _value(text, JOB_MARKER), _value(text, PROJECT_MARKER))


def _value(text: bytes, name: str) -> Optional[str]:
    marker = b"\0" + name.encode("ascii") + b"="
    start = text.find(marker)
    if start < 0:
        return None
    start += len(marker)
    end = text.find(b"\0", start)
    return text[start : end if end >= 0 else len(text)].decode("utf-8", "surrogateescape")


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.readline(256).strip()
    except OSError as error:
        if error.errno in _NO_MEANS:
            raise
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in _NO_MEANS:
            raise
        return ""
