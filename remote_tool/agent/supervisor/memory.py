"""Detect OOM kills from the kernel's counters."""

from __future__ import annotations

from typing import Optional, Tuple

_COUNT = b"oom_kill "


def count_kills() -> Tuple[int, int]:
    """Return the OOM kills so far: in our control group, and on the machine."""
    return _count_in_groups(), _read_count("/proc/vmstat") or 0


def explain_kills(before: Tuple[int, int]) -> str:
    """Return the OOM kills since a count, as part of a sentence; empty if none."""
    group, machine = count_kills()
    if group > before[0]:
        return "out of memory: the kernel killed it at the memory limit of its control group"
    if machine > before[1]:
        return "probably out of memory: the kernel killed a process for lack of memory while it ran"
    return ""


def _count_in_groups() -> int:
    total = 0
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as stream:
            lines = stream.read(65536).splitlines()
    except OSError:
        return 0
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            total += _read_count(f"/sys/fs/cgroup{path}/memory.events") or 0
        elif "memory" in controllers.split(","):
            total += _read_count(f"/sys/fs/cgroup/memory{path}/memory.oom_control") or 0
    return total


def _read_count(path: str) -> Optional[int]:
    try:
        with open(path, "rb") as stream:
            lines = stream.read(65536).split(b"\n")
    except OSError:
        return None
    counts = [line[len(_COUNT) :] for line in lines if line.startswith(_COUNT)]
    return int(counts[0]) if counts and counts[0].isdigit() else None
