"""Logins that tests keep: a folder for their sockets, and the masters that run."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.processes import environments, read_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


@contextmanager
def keeping_logins(patch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder for sockets, whose path is short; the logins that are kept there end with the context."""
    folder = Path(tempfile.mkdtemp(prefix="rtk"))
    patch.setenv("XDG_RUNTIME_DIR", str(folder))
    try:
        yield folder
    finally:
        for socket in _sockets(folder):
            subprocess.run(["ssh", "-S", socket, "-O", "exit", "-"], check=False, capture_output=True, timeout=300)
        # A master that was just starting may still make a file here.
        deadline = time.monotonic() + 300
        while folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
            assert time.monotonic() < deadline, f"{folder} is not empty"


def wait_for_logins(folder: Path, count: int) -> None:
    """Wait until so many logins are kept."""
    deadline = time.monotonic() + 300
    while len(_sockets(folder)) < count:
        assert time.monotonic() < deadline, "no login is kept"
        time.sleep(0.05)


def _sockets(folder: Path) -> list[Path]:
    return [path for path in folder.glob("remote-tool/*/s????") if path.is_socket()]


def masters(homes: Path) -> list[int]:
    """Every ssh that keeps a login of a user whose home is this folder, or below it."""
    mark = b"\0HOME=" + os.fsencode(homes) + b"/"
    found = [pid for pid, environment in environments() if mark in b"\0" + environment.replace(b"\0", b"/\0")]
    return [pid for pid in found if _keeps_a_login(pid)]


def _keeps_a_login(pid: int) -> bool:
    words = read_of(pid, "cmdline").split(b"\0")
    return b"-M" in words and b"-S" in words
