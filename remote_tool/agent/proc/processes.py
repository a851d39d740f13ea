"""Processes: who they are, which belong to a job, and how to end them.

A process is known by (boot id, pid namespace, pid, start time), never by its pid alone. It belongs to a job when its
environment has the job's marker, when its output goes into the job's folder, when it is the recorded command, or when
it descends from such a process or from the job's supervisor. Only what has thrown away all of these is not found once
the supervisor is dead.
"""

from __future__ import annotations

import errno
import os

from remote_tool.protocol.lean.namedtuple import NamedTuple
from remote_tool.protocol.lean.signal import signal
from remote_tool.protocol.marks import JOB_MARKER, PROJECT_MARKER, SUPERVISOR_MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

_ENVIRONMENT_LIMIT = 8 * 1024 * 1024
_STAT_FIELDS = 20
# Nothing can be opened just now, and who is not seen may well be there.
_NO_MEANS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class Process(NamedTuple):
    """A process as one look at ``/proc`` found it.

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
        """Whether it is in uninterruptible sleep, where no signal reaches it."""
        return self.state == "D"

    def as_record(self) -> Dict[str, int]:
        return {"pid": self.pid, "start_time": self.start_time}


def place() -> Dict[str, str]:
    """Where processes are known: this machine, this boot, this pid namespace; OSError when nobody can tell now."""
    return {
        "hostname": os.uname().nodename,
        "machine_id": _first_line("/etc/machine-id"),
        "boot_id": _first_line("/proc/sys/kernel/random/boot_id"),
        "pid_namespace": _link("/proc/self/ns/pid"),
    }


def read_process(pid: int) -> Optional[Process]:
    """Look at one process; None when there is none, OSError when nobody can tell now."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stream:
            text = stream.read(4096)
    except OSError as error:
        if error.errno in _NO_MEANS:
            raise
        return None
    # The name may hold spaces and parentheses, so the fields are counted from its last one.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < _STAT_FIELDS:
        return None
    return Process(pid, int(fields[1]), int(fields[19]), fields[0].decode("ascii"), int(fields[17]))


def find_alive(record: Mapping[str, Any]) -> Optional[Process]:
    """Return the process of a record ``{"pid", "start_time"}`` of this boot; None when it has gone."""
    process = read_process(record["pid"])
    if process is None or process.start_time != record["start_time"] or not process.is_alive:
        return None
    return process


def descriptors(pid: int) -> Dict[str, str]:
    """Return where each open descriptor of a process leads, by its number; OSError when that cannot be told."""
    folder = f"/proc/{pid}/fd"
    return {name: _link(f"{folder}/{name}") for name in os.listdir(folder)}


def holds(pid: int, folder: int) -> bool:
    """Whether a process has this very folder open, also when that cannot be told now.

    One that was removed, renamed away or replaced is another one than that which has its name.
    """
    this = os.fstat(folder)
    path = _link(f"/proc/self/fd/{folder}")
    try:
        found = descriptors(pid)
    except OSError:
        return True
    # One that is just ending has none any more.
    return not found or any(_is_same(this, path, f"/proc/{pid}/fd/{name}", other) for name, other in found.items())


def _is_same(this: os.stat_result, path: str, descriptor: str, other: str) -> bool:
    try:
        status = os.stat(descriptor)
    except OSError:
        # It was closed just now, or a network disk says that it is gone.
        return False
    # A network disk that is mounted twice has two numbers.
    return status.st_ino == this.st_ino and (status.st_dev == this.st_dev or other == path)


def is_own(process: Process, namespace: str) -> bool:
    """Whether a process is this user's, and not of a container below."""
    try:
        is_users = os.stat(f"/proc/{process.pid}").st_uid == os.geteuid()
        return is_users and os.readlink(f"/proc/{process.pid}/ns/pid") == namespace
    except OSError:
        return False


def send_signal(process: Process, number: int) -> bool:
    """Signal this very process, never another one that got its pid; False when it is gone or not ours."""
    descriptor = _open_descriptor(process.pid)
    try:
        # With a descriptor the pid cannot change hands after this look; without one it is the next best.
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
    """Open a descriptor of a process; None on Python 3.8, on old kernels and when it is gone."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


class Owner(NamedTuple):
    """What the processes of a job are known by."""

    job_id: str
    folder: str
    supervisor: int
    command: Optional[Mapping[str, Any]]


class Mark(NamedTuple):
    """What the environment of a process says of us.

    Attributes:
        is_supervisor: Whether it is one of our own programs.
        job_id: Whose it is; None when it does not say.
        project: The folder of the job's project; None when it does not say.
    """

    is_supervisor: bool = False
    job_id: Optional[str] = None
    project: Optional[str] = None


class Snapshot:
    """One look at all processes of this machine."""

    def __init__(self) -> None:
        self.processes: Dict[int, Process] = {}
        self._outputs: Dict[int, Tuple[str, ...]] = {}
        self._marks: Dict[int, Mark] = {}
        # Filled by :mod:`remote_tool.agent.supervisor.missing_folder`, when it is needed.
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
    ) -> "list[Process]":
        """Return the living processes of a job, but its supervisor.

        Args:
            job_id: Whose.
            folder: The job's folder, absolute and without links; empty when it has none.
            supervisor: Pid of the living supervisor, 0 when it has gone.
            command: The record ``{"pid", "start_time"}`` of its command, when that is of this boot.
            since: Start time of what started it all: an older process cannot be of it, and is not looked into.
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
            # What a job starts through remote-tool is another job's, or nobody's: its neighbour is not touched.
            if is_supervisor:
                return False
            if marker is not None:
                return marker == owner.job_id
            if owner.folder and self._writes_into(current, owner.folder):
                return True
        return False

    def is_marked(self, process: Process, job_id: str) -> bool:
        """Whether a process has the job's mark, or descends from one that has."""
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
        """Whether the stdout or stderr of a process is a file below a folder."""
        if process.pid not in self._outputs:
            self._outputs[process.pid] = tuple(_link(f"/proc/{process.pid}/fd/{number}") for number in (1, 2))
        return any(output.startswith(f"{folder}/") for output in self._outputs[process.pid])

    def mark(self, process: Process) -> Mark:
        """Return what the environment of a process says of us, as it was when its program began."""
        if process.pid not in self._marks:
            self._marks[process.pid] = _read_mark(process.pid)
        return self._marks[process.pid]


def _read_mark(pid: int) -> Mark:
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
