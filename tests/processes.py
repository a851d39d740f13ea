"""Processes of this machine as a test sees them: each may end while it is looked at."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def environments() -> Iterator[tuple[int, bytes]]:
    """Yield the pid and the environment of every process that we may read."""
    # Elsewhere than on Linux there is no /proc, and no server that has left any.
    for entry in Path("/proc").glob("*"):
        if entry.name.isdigit():
            with suppress(OSError):
                yield int(entry.name), (entry / "environ").read_bytes()


def processes_of(job_id: str) -> list[int]:
    """Return the pids that carry the mark of a job."""
    return [pid for pid, environment in environments() if f"REMOTE_TOOL_JOB_ID={job_id}".encode() in environment]


def read_of(pid: int, name: str) -> bytes:
    """Return a file of a process in /proc, such as ``cmdline``; nothing if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def parents() -> dict[int, int]:
    """Return the parent of every process."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    # The name of a program, which comes before, may hold anything.
    found = {pid: read_of(pid, "stat").rpartition(b")")[2].split() for pid in pids}
    return {pid: int(fields[1]) for pid, fields in found.items() if fields}


def is_running(pid: int) -> bool:
    """Whether a process is there and is more than a zombie, which waits only for its parent."""
    _, _, fields = read_of(pid, "stat").rpartition(b")")
    return bool(fields) and fields.split()[0] != b"Z"


def open_files(pid: int) -> dict[int, str]:
    """Return what each descriptor of a process leads to; those that it closes meanwhile are left out."""
    found = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found[int(entry.name)] = str(entry.readlink())
    return found


def users_of(folder: str) -> list[int]:
    """Return the processes that have something open in a folder."""
    return [pid for pid, _ in environments() if any(name.startswith(folder) for name in open_files(pid).values())]
