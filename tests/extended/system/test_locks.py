"""A lock keeps other programs out, and names its holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remote_tool.system.locks import holders, lock, unlock

LISTED = Path("/proc/locks")
HOLD = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


def test_a_lock_is_waited_for_within_its_bound_and_free_when_its_holder_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with (
        path.open("rb") as file,
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder,
    ):
        assert holder.stdout is not None
        holder.stdout.readline()
        began = time.monotonic()
        with pytest.raises(BlockingIOError, match="another program holds its lock"):
            lock(file.fileno(), seconds=0.1)
        assert 0.1 <= time.monotonic() - began < 30
        if LISTED.exists():
            assert holders(file.fileno()) == [holder.pid]
        holder.kill()
        holder.wait()
        lock(file.fileno())


def test_a_child_that_was_forked_under_a_lock_does_not_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    held = os.open(path, os.O_RDWR)
    lock(held)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(1)
    try:
        with path.open("rb") as other:
            with pytest.raises(BlockingIOError):
                lock(other.fileno())
            unlock(held)
            lock(other.fileno())
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(held)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
