"""What tests leave on the machine when they are killed, and how the next run removes it.

Namespaces, links, mounts and stores of containers have a name that begins with ``rt``, the pid of the test's process
and ``n``: what a killed run has left is found by the pid that is no more.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

_MARK = re.compile(r"rt([0-9]+)n[0-9]+", re.ASCII)
_KILL = 9
_numbers = itertools.count(1)


def new_name() -> str:
    """Return a name that nothing else on this machine has."""
    return f"rt{os.getpid()}n{next(_numbers)}"


def remove_leftovers(*, of_this_process: bool = False) -> None:
    """Remove what tests left whose process is no more; and networks and disks of this process, when asked."""
    for name in _namespaces():
        if _is_left(name, of_this_process=of_this_process):
            _remove_namespace(name)
    for _, name in socket.if_nameindex():
        if _is_left(name, of_this_process=of_this_process):
            try_to("ip", "link", "del", name)
    for source, target in _mounts():
        if _is_left(source, of_this_process=of_this_process):
            try_to("umount", "--lazy", target)
    _remove_stores()


def traces(mark: str = "rt") -> list[str]:
    """Return the namespaces, links and mounts whose name begins so."""
    names = [*_namespaces(), *(name for _, name in socket.if_nameindex()), *(source for source, _ in _mounts())]
    return [name for name in names if _MARK.match(name) and name.startswith(mark)]


def try_to(*words: str) -> None:
    """Run a command that may have nothing to do."""
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=300)


def _remove_namespace(name: str) -> None:
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    for pid in pids.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), _KILL)
    try_to("ip", "netns", "del", name)


def _remove_stores() -> None:
    for store in Path(tempfile.gettempdir()).glob("rt*n*"):
        if _is_left(store.name, of_this_process=False) and _is_ours(store):
            try_to(str(store / "bin" / "podman"), "rm", "--all", "--force", "--time", "0")
            shutil.rmtree(store, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        # Another worker of this run has removed it.
        return False


def _is_left(name: str, *, of_this_process: bool) -> bool:
    match = _MARK.match(name)
    if match is None:
        return False
    pid = int(match[1])
    return of_this_process if pid == os.getpid() else not Path(f"/proc/{pid}").exists()


def _namespaces() -> list[str]:
    folder = Path("/run/netns")
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _mounts() -> list[tuple[str, str]]:
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [(line[0], line[1].replace("\\040", " ")) for line in lines]
