"""Query, signal and end processes behind a launch command, which may be missing from this server's process table."""

from __future__ import annotations

import os
import signal

from remote_tool.agent.proc.subprocess import talk
from remote_tool.agent.wrapper.wrapper import PODMAN
from remote_tool.protocol import job_folder
from remote_tool.protocol.marks import JOB_MARKER
from remote_tool.protocol.records import ENTRY, RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Mapping, Optional, Tuple

    from remote_tool.agent.proc.processes import Process, ProcessSnapshot
    from remote_tool.agent.wrapper.wrapper import CommandWrapper

ANSWER_SECONDS = 10.0
_ENGINE_PROGRAMS = {b"conmon", b"crun", b"runc"}
_END = b"remote-tool: end\n"
SAY_END = "echo 'remote-tool: end'"
# busybox's grep stops reading at the first NUL.
_SIGNAL = """
command -v grep >/dev/null && command -v tr >/dev/null || exit
count=0
for folder in /proc/[0-9]*; do
    { tr '\\0' '\\n' <"$folder/environ" | grep -qxF '@MARK@'; } 2>/dev/null || continue
    pid=${folder#/proc/}
    kill -@NUMBER@ "$pid" 2>/dev/null && count=$((count + 1))
    @WAKE@
done
echo "count $count"
echo 'remote-tool: end'
"""
_WAKE = 'kill -CONT "$pid" 2>/dev/null'


class WrappedProcesses:
    """The processes of a job behind its launch command."""

    def __init__(self, job_id: str, ask: List[str], end: List[str], environment: Mapping[bytes, bytes]) -> None:
        """Initialize.

        Args:
            job_id: The mark of the processes.
            ask: Starts a shell inside that reads its script from stdin.
            end: Removes the container; empty if it is not the job's own.
            environment: The launch command's environment.
        """
        self._job_id = job_id
        self._ask = ask
        self._end = end
        self._environment = environment
        self._is_deaf = False
        self._left = 0
        self._is_podman = os.path.basename(ask[0]) == PODMAN

    @property
    def is_own_container(self) -> bool:
        """Return whether the container is the job's own, and ends with its command."""
        return bool(self._end)

    @property
    def rest(self) -> str:
        """Return a note about processes that may be left, for the job's record; empty if none."""
        word = os.path.basename(self._ask[0])
        if self._left:
            return f"{'1 process' if self._left == 1 else f'{self._left} processes'} behind {word} would not die"
        if self._is_deaf and not self.is_own_container:
            return f"processes behind {word} could not be reached and may still be running"
        return ""

    def matching(self, members: List[Process], snapshot: ProcessSnapshot, number: int) -> List[Process]:
        """Signal the processes inside, and return the members outside that should get the signal.

        The launch command is spared while there is a process behind it: it forwards the rest of their output,
        and ends when they have.
        """
        if number == signal.SIGKILL:
            return members
        marked = [process for process in members if snapshot.is_marked(process, self._job_id)]
        return marked if marked or self.signal(number) else members

    def without_engine(self, members: List[Process]) -> List[Process]:
        """Leave out podman's own helpers beside a container: they clean up and end with it."""
        return [process for process in members if not _is_of_engine(process.pid)] if self._is_podman else members

    def count(self) -> int:
        """Return the number of processes inside; 0 if unknown."""
        return 0 if self.is_own_container else self.signal(0)

    def signal(self, number: int) -> int:
        """Signal the processes inside; return their number, 0 if unknown."""
        if self._is_deaf:
            return 0
        script = _SIGNAL.replace("@MARK@", f"{JOB_MARKER}={self._job_id}").replace("@NUMBER@", f"{number:d}")
        script = script.replace("@WAKE@", _WAKE if number not in {0, signal.SIGKILL} else "")
        lines = ask(self._ask, script.encode("ascii"), self._environment)[0].splitlines()
        counts = [line.partition(b" ")[2] for line in lines if line.startswith(b"count ")]
        # Not queried again: each query would take as long.
        self._is_deaf = not counts
        return int(counts[0]) if counts and counts[0].isdigit() else 0

    def kill(self) -> int:
        """SIGKILL the processes inside, and remove a container of the job's own; return how many were left to kill."""
        if self.is_own_container:
            self.remove()
        else:
            self._left = self.signal(signal.SIGKILL)
        return self._left

    def remove(self) -> None:
        """Remove the container if it is the job's own."""
        if self._end:
            talk(self._end, b"", self._environment, ANSWER_SECONDS)


def _is_of_engine(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            words = stream.read(65536).split(b"\0")
    except OSError:
        return False
    program = os.path.basename(words[0])
    return program in _ENGINE_PROGRAMS or (program == PODMAN.encode() and b"cleanup" in words)


def load_inside(folder: int, job_id: str, environment: Mapping[bytes, bytes]) -> Optional[WrappedProcesses]:
    """Return the wrapped processes of a job without a supervisor; None without a launch command."""
    try:
        record = job_folder.read_record(folder, ENTRY, job_id)
    except (RecordError, OSError):
        return None
    return None if record is None else WrappedProcesses(job_id, record["ask"], record["end"], environment)


def wake_engine(command_wrapper: CommandWrapper, environment: Mapping[bytes, bytes]) -> None:
    """Start rootless podman's lasting helper now: started below a job, it would end with the job."""
    if command_wrapper.end and os.path.basename(command_wrapper.end[0]) == PODMAN and os.geteuid() != 0:
        talk([command_wrapper.end[0], "unshare", "true"], b"", environment, ANSWER_SECONDS)


def ask(
    words: List[str], script: bytes, environment: Mapping[bytes, bytes], seconds: float = ANSWER_SECONDS
) -> Tuple[bytes, bytes]:
    """Run a script in a shell inside; it prints ``remote-tool: end`` last.

    Returns:
        Its stdout, empty when it did not finish in time, and its stderr.
    """
    ended = talk(words, script, environment, seconds)
    return (ended.output if ended.output.endswith(_END) else b""), ended.errors
