"""Collect the Python stacks of jobs: on a signal, each process writes its stacks to a file of its own.

A start-up hook in the jobs' Python (see :mod:`remote_tool.agent.hook.sitecustomize`) prepares that. A process gets
the signal only if it catches it and has that file open: any other process would end.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from remote_tool.agent.proc.processes import descriptors, find_alive, send_signal
from remote_tool.protocol import job_folder
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional

    from remote_tool.agent.proc.processes import Process

# All together answer within this time, or not at all: one that cannot run does not answer.
_SECONDS = 2.0
_PAUSE = 0.005
# The dump is complete when it has not grown for so many looks: on a busy machine, its writer waits for its turn.
_QUIET_LOOKS = 10
_LONGEST_DUMP = 256 * 1024
_ENVIRONMENT_LIMIT = 8 * 1024 * 1024
# As in the hook.
_SIGNAL = 58
_FILE_NAME = "remote-tool-stacks-"
_RANKS = (b"RANK", b"PMI_RANK", b"OMPI_COMM_WORLD_RANK", b"SLURM_PROCID")
_LOCAL_RANK = b"LOCAL_RANK"
_MOST_DIGITS = 7
_STOPPED = {"T": "it is stopped", "t": "a debugger has stopped it", "D": "it waits in the kernel and cannot answer"}
_NO_HOOK = "it was started with python -I, -S or -E, or with another PYTHONPATH"


class _Dump(NamedTuple):
    """A process that was asked: its file, and how far that was written before."""

    process: Process
    file: int
    before: int


class Stack(NamedTuple):
    """A Python process, and the text of its stacks or why there is none."""

    process: Process
    text: str
    why: str = ""


def store(folder: int, taken: Iterable[Stack]) -> None:
    """Add the stacks to a file in the job's folder."""
    parts = [time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime())]
    for stack in taken:
        rank = rank_of(stack.process.pid).get("rank")
        who = f"process {stack.process.pid}" if rank is None else f"rank {rank}, process {stack.process.pid}"
        parts.append(f"{who}: {stack.why or stack.text}\n")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        file = os.open(job_folder.STACKS, flags, 0o600, dir_fd=folder)
        try:
            job_folder.write_all(file, "\n".join(parts).encode("utf-8", "replace"))
        finally:
            os.close(file)


def take(members: Iterable[Process]) -> List[Stack]:
    """Ask all Python processes for their stacks, and wait until they have written them."""
    deadline = time.monotonic() + _SECONDS
    found: List[Stack] = []
    left = [process for process in members if _is_python(process.pid)]
    while left:
        asked: List[_Dump] = []
        files = set()
        again = []
        for process in left:
            dump = _open_file(process)
            if dump is None:
                found.append(Stack(process, "", _NO_HOOK))
                continue
            identity = os.fstat(dump.file).st_ino
            # Two copies of one process that forked without Python write to one file: one after the other.
            if identity in files:
                again.append(process)
                os.close(dump.file)
            elif send_signal(process, _SIGNAL):
                files.add(identity)
                asked.append(dump)
            else:
                os.close(dump.file)
        found += _wait(asked, deadline)
        left = again
    return sorted(found, key=lambda stack: stack.process.pid)


def _open_file(process: Process) -> Optional[_Dump]:
    """Open the file that a process writes its stacks to; None if it does not catch the signal."""
    try:
        with open(f"/proc/{process.pid}/status", "rb") as stream:
            caught = next((line for line in stream if line.startswith(b"SigCgt:")), b"SigCgt: 0")
        if not int(caught.split()[1], 16) >> (_SIGNAL - 1) & 1:
            return None
        for number, target in descriptors(process.pid).items():
            if os.path.basename(target).startswith(_FILE_NAME):
                file = os.open(f"/proc/{process.pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
                return _Dump(process, file, os.fstat(file).st_size)
    except (OSError, ValueError):
        pass
    return None


def _wait(asked: List[_Dump], deadline: float) -> List[Stack]:
    """Read each file when it has grown and does not grow any more."""
    done: List[Stack] = []
    looks = {dump: (dump.before, 0) for dump in asked}
    while looks:
        time.sleep(_PAUSE)
        is_late = time.monotonic() > deadline
        for dump, (size, quiet) in list(looks.items()):
            now = os.fstat(dump.file).st_size
            looks[dump] = now, quiet + 1 if now == size > dump.before else 0
            if looks[dump][1] >= _QUIET_LOOKS or is_late or find_alive(dump.process.as_record()) is None:
                del looks[dump]
                done.append(_read(dump))
                os.close(dump.file)
    return done


def _read(dump: _Dump) -> Stack:
    text = os.pread(dump.file, _LONGEST_DUMP, dump.before).decode("utf-8", "replace")
    if text:
        return Stack(dump.process, text)
    current = find_alive(dump.process.as_record())
    state = "" if current is None else current.state
    return Stack(dump.process, "", "it has ended" if current is None else _STOPPED.get(state, "it did not answer"))


def _is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def rank_of(pid: int) -> Dict[str, int]:
    """Return ``{"rank": its global rank, "local_rank": that on its node}``; without those that it does not have."""
    values: Dict[bytes, int] = {}
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as stream:
        for entry in stream.read(_ENVIRONMENT_LIMIT).split(b"\0"):
            name, _, value = entry.partition(b"=")
            if (name in _RANKS or name == _LOCAL_RANK) and value.isdigit() and len(value) <= _MOST_DIGITS:
                values[name] = int(value)
    for name in _RANKS:
        if name in values:
            local = {"local_rank": values[_LOCAL_RANK]} if _LOCAL_RANK in values else {}
            return {"rank": values[name], **local}
    return {}
