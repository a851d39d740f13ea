"""The lock of the registry: one writer at a time, with an error naming a process that holds it for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.system.locks import holders, lock

if TYPE_CHECKING:
    from pathlib import Path

LOCK_TIMEOUT = 20.0


def wait_for_lock(descriptor: int, path: Path) -> None:
    """Hold the lock of the registry; JobError when another program holds it for too long."""
    try:
        lock(descriptor, seconds=LOCK_TIMEOUT)
    except BlockingIOError:
        raise held_by_another(descriptor, path) from None


def held_by_another(descriptor: int, path: Path) -> JobError:
    """Return the error that names the holder of a lock."""
    pids = list(map(str, holders(descriptor)))
    who = f" (process {', '.join(pids)})" if pids else ""
    hint = f"ps -fp {','.join(pids)}" if pids else f"fuser -v {path}"
    return JobError(f"Another remote-tool{who} has held {path} for more than {LOCK_TIMEOUT:.0f} s", hint=hint)
