"""Find supervisors without their job's folder, removed, renamed or replaced, by open descriptors, and end them."""

from __future__ import annotations

import os
import signal
import time

from remote_tool.agent.proc import processes
from remote_tool.agent.proc.processes import find_alive, send_signal
from remote_tool.agent.supervisor.tree import KILL_SECONDS, deliver
from remote_tool.protocol import job_folder, strict_json
from remote_tool.protocol.records import SPEC, RecordError, is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List

    from remote_tool.agent.proc.processes import Process, ProcessSnapshot

# Time for the final record, which may be on a slow disk.
_RECORD_SECONDS = 5.0
_DELETED = " (deleted)"


def supervisors_by_job(snapshot: ProcessSnapshot) -> Dict[str, List[Process]]:
    """Return every living supervisor by job id, wherever the job's folder is now."""
    if snapshot.supervisors is not None:
        return snapshot.supervisors
    found = snapshot.supervisors = {}
    for process in snapshot.processes.values():
        if process.is_alive and snapshot.mark(process).is_supervisor:
            job_id = _job_of(process.pid)
            if job_id:
                found.setdefault(job_id, []).append(process)
    return found


def _job_of(pid: int) -> str:
    """Return the job that one of our programs supervises; empty for one that answers a client."""
    try:
        descriptors = processes.descriptors(pid)
    except OSError:
        return ""
    if descriptors.get("0") != os.devnull:
        return ""
    return next(filter(None, (_job_in(f"/proc/{pid}/fd/{name}", path) for name, path in descriptors.items())), "")


def _job_in(descriptor: str, path: str) -> str:
    """Return the id of the job if a descriptor refers to its folder; empty for other targets."""
    try:
        folder = os.open(descriptor, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        spec = strict_json.parse(job_folder.read_bytes(folder, SPEC) or b"")
        name = str(spec.get("id")) if isinstance(spec, dict) else ""
    except (RecordError, OSError, ValueError):
        # Only the name of a removed folder is left.
        name = os.path.basename(path[: -len(_DELETED)] if path.endswith(_DELETED) else path)
    finally:
        os.close(folder)
    return name if is_job_id(name) else ""


def end_supervisors(supervisors: List[Process], name: str, grace: float) -> Iterator[None]:
    """Signal supervisors to end their jobs: they cannot read a request, so the signal is the request.

    Args:
        supervisors: Supervisors without their job's folder.
        name: The first signal; anything but SIGKILL and SIGTERM becomes SIGTERM.
        grace: Seconds until SIGKILL, unless the job was started with less.
    """
    hurry = time.monotonic() + (0.0 if name == "SIGKILL" else grace)
    deadline = hurry + KILL_SECONDS + _RECORD_SECONDS
    signals = [signal.SIGUSR2] if name == "SIGKILL" else [signal.SIGUSR2, signal.SIGTERM]
    living = supervisors
    while living and time.monotonic() < deadline:
        if signals and (len(signals) > 1 or time.monotonic() >= hurry):
            number = signals.pop()
            for process in living:
                deliver(process, number)
        yield
        living = [process for process in living if find_alive(process.as_record())]
    for process in living:
        send_signal(process, signal.SIGKILL)
