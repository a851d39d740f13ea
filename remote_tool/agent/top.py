"""Send the use of this machine and the changes of its jobs, again and again, until the client has disconnected."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

from remote_tool.agent.leases import report
from remote_tool.agent.leases.folders import have_leases
from remote_tool.agent.machine.gpu_use import GpuUse
from remote_tool.agent.machine.job_watch import JobWatch, RankWatch
from remote_tool.agent.requests import Folders, Request, client_is_gone, is_flag
from remote_tool.protocol.limits import LONGEST_INTERVAL, SHORTEST_INTERVAL
from remote_tool.protocol.nvidia_smi import SILENCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

# The load of a processor is a difference.
_FIRST_SECONDS = 0.5
# A disk that takes longer is not waited for.
_DISK_SECONDS = 2.0
_KIBIBYTE = 1024
_MOUNTS = 1024 * 1024
_IDLE_FIELDS = slice(3, 5)
_UNKNOWN_DISK = {"disk_total": None, "disk_free": None, "disk_kind": ""}
# The type of a file system is the word after this one: proc_pid_mountinfo(5).
_END_OF_OPTIONAL = "-"
_NO_ANSWER: Dict[str, Any] = {"disk": _UNKNOWN_DISK, "disk_problem": "the project's disk does not answer", "tails": ()}


def top(request: Request) -> None:
    """Answer op ``top``: a sample every ``interval`` seconds, with the jobs when one of them has changed.

    After it comes the end of the output of each running job that has written. With ``once``, there is one sample, which
    waits for the GPUs.
    """
    interval = request.get("interval", _is_interval)
    once = request.get("once", is_flag, default=False)
    use, files, busy = GpuUse(interval), _Aside(_Files(request.folders()).look), _busy()
    is_late = False
    use.update(time.monotonic())
    try:
        seconds, patience = _FIRST_SECONDS, time.monotonic() + SILENCE
        while not client_is_gone(seconds):
            use.update(time.monotonic())
            if once and not use.is_known and time.monotonic() < patience:
                continue
            from_disk = files.take(0.0 if is_late else _DISK_SECONDS)
            is_late = from_disk is None
            header = {**(_NO_ANSWER if from_disk is None else from_disk)}
            tails, disk = header.pop("tails"), header.pop("disk")
            busy, before = _busy(), busy
            sample = {"machine": {**_machine(before, busy), **disk}, "gpus": _with_leases(use.as_answer())}
            request.answer({**sample, "gpu_problem": use.problem, **header})
            if once:
                return
            for job_id, texts in tails:
                request.answer({"tail": job_id, "texts": texts})
            seconds = interval
    finally:
        use.end()


def _with_leases(gpus: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Add to each GPU the user that has reserved it; nothing if that cannot be read now."""
    if not gpus or not have_leases():
        return gpus
    with suppress(OSError):
        leases = report.find_leases()
        return [{**gpu, "lease": leases.get(gpu["uuid"])} for gpu in gpus]
    return gpus


class _Files:
    """Reads the jobs and the free space from the disk of the project."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._jobs = JobWatch(folders.jobs)
        self._ranks = RankWatch(folders.jobs)

    def look(self) -> Dict[str, Any]:
        changed = self._jobs.look()
        ranks = self._ranks.look(self._jobs.running, time.monotonic())
        return {**_disk(self._folders.project), **changed, "ranks": ranks, "tails": self._jobs.tails()}


def _machine(before: Tuple[int, int], now: Tuple[int, int]) -> Dict[str, Any]:
    total = now[1] - before[1]
    memory = _memory()
    return {
        "cpu": round(100.0 * (now[0] - before[0]) / total, 1) if total > 0 else None,
        "cores": os.cpu_count(),
        "load": _load(),
        "memory_total": memory.get("MemTotal"),
        "memory_available": memory.get("MemAvailable"),
    }


def _busy() -> Tuple[int, int]:
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


def _disk(project: str) -> Dict[str, Any]:
    # A server that is not prepared has none yet.
    place = project if os.path.lexists(project) else os.environ["HOME"]
    try:
        space, device = os.statvfs(place), os.stat(place).st_dev
    except OSError as error:
        return {"disk": _UNKNOWN_DISK, "disk_problem": f"the project's disk: {error.strerror}"}
    sizes = {"disk_total": space.f_blocks * space.f_frsize, "disk_free": space.f_bavail * space.f_frsize}
    return {"disk": {**sizes, "disk_kind": _kind_of_disk(device)}}


def _kind_of_disk(device: int) -> str:
    """Return the type of the file system of a device, such as ``ext4``; empty if unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in _read("/proc/self/mountinfo", _MOUNTS).splitlines():
        words = line.split(" ")
        if words[2:3] == [number] and _END_OF_OPTIONAL in words:
            return words[words.index(_END_OF_OPTIONAL) + 1]
    return ""


def _read(path: str, most: int = 8192) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read(most)
    except OSError:
        return ""


def _is_interval(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return SHORTEST_INTERVAL <= value <= LONGEST_INTERVAL


class _Aside:
    """Does work that may hang in the kernel, such as reading a network disk, in a thread, again after each result."""

    def __init__(self, work: Callable[[], Dict[str, Any]]) -> None:
        self._work = work
        self._result: Optional[Dict[str, Any]] = None
        self._is_asked = False
        self._asked, self._done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def take(self, seconds: float) -> Optional[Dict[str, Any]]:
        """Return the result; None if it is not ready within this time, or if the work failed."""
        if not self._is_asked:
            self._is_asked = True
            self._asked.release()
        if not self._done.acquire(timeout=seconds):
            return None
        self._is_asked = False
        return self._result

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            try:
                self._result = self._work()
            except OSError:
                self._result = None
            self._done.release()
