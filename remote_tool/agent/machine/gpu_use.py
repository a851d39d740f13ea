"""The use of this machine's GPUs, from nvidia-smi, which is never waited for: it may hang in the kernel."""

from __future__ import annotations

import os
import pwd
import signal
import time
from contextlib import suppress

from remote_tool.agent.machine.gpus import count_gpus, count_nvidia
from remote_tool.agent.proc import processes
from remote_tool.protocol import nvidia_smi
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.nvidia_smi import ASK_GPUS, ASK_PROCESSES, FORMAT, LONGEST_TEXT, SILENCE, parse_gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

# Starting nvidia-smi takes up to half a second of a core.
_PROCESSES_SECONDS = 30.0
# From the end of its output to its own.
_END_SECONDS, _SOON = 1.0, 0.005
_MOST_LINES = 1024


class Program:
    """A running nvidia-smi; OSError when it cannot start.

    Attributes:
        pid: Its process.
        output: A descriptor, to wait for.
        has_ended: Whether its output has.
        failure: After :meth:`end`, how it failed, as far as that is known; empty if it did not.
    """

    def __init__(self, *options: str) -> None:
        self._rest = b""
        self.failure = ""
        self.output, write = os.pipe()
        try:
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, write, 1),
                (os.POSIX_SPAWN_DUP2, write, 2),
            ]
            words = ["nvidia-smi", *options]
            # Its own loop ends with SIGPIPE, should this process be killed.
            pid = os.posix_spawnp(
                words[0], words, os.environ, file_actions=actions, setsigmask=(), setsigdef=(signal.SIGPIPE,)
            )
            # A supervisor reaps all its children.
            self._process = processes.read_process(pid)
            self.pid = pid
        except OSError:
            os.close(self.output)
            raise
        finally:
            os.close(write)
        os.set_blocking(self.output, False)
        self.has_ended = False

    def read(self) -> List[str]:
        """Return the lines that have come since the last call."""
        try:
            data = os.read(self.output, 65536)
        except BlockingIOError:
            return []
        self.has_ended = not data
        *lines, self._rest = (self._rest + (data or b"\n")).split(b"\n")
        # A program that writes without line breaks must not fill the memory.
        self._rest = self._rest[-LONGEST_TEXT:]
        return [line.decode("utf-8", "replace").strip() for line in lines[-_MOST_LINES:] if line.strip()]

    def end(self) -> None:
        """End it; one that hangs in the kernel is left to the system."""
        os.close(self.output)
        if self._process is None:
            return
        # Who has closed its output is about to end by itself.
        deadline = time.monotonic() + (_END_SECONDS if self.has_ended else 0.0)
        with suppress(OSError):
            while not self._reap(os.WNOHANG) and time.monotonic() < deadline:
                time.sleep(_SOON)
            processes.send_signal(self._process, signal.SIGKILL)
            self._reap(0 if self.has_ended else os.WNOHANG)

    def _reap(self, options: int) -> bool:
        """Take its exit status; OSError once that was taken."""
        pid, status = os.waitpid(self.pid, options)
        if os.WIFSIGNALED(status):
            self.failure = f"it ended with signal {os.WTERMSIG(status)}"
        elif status:
            self.failure = f"it ended with exit code {os.WEXITSTATUS(status)}"
        return pid != 0


class ProcessOnGpu(NamedTuple):
    """A process on a GPU; the job is of this project or another, and empty without one."""

    uuid: str
    pid: int
    used: Optional[float]
    user: str
    job: str


class GpuUse:
    """The newest answers of nvidia-smi.

    Attributes:
        problem: Why there is no answer now; empty with one, and without GPUs.
    """

    def __init__(self, interval: float) -> None:
        self.problem = ""
        # Loading the driver's library for each answer would cost more than the answer.
        self._loop = ["-l", str(max(1, round(interval)))]
        self._gpus: Dict[str, Dict[str, Any]] = {}
        self._answered_at: Optional[float] = None
        self._program: Optional[Program] = None
        self._is_missing = False
        self._asked_at = 0.0
        self._processes: List[ProcessOnGpu] = []
        self._listing: Optional[Program] = None
        self._found: List[ProcessOnGpu] = []
        self._listed_at = float("-inf")

    @property
    def is_known(self) -> bool:
        """Whether there is an answer, or a reason that there is none, about GPUs and about their processes."""
        no_gpus = self._is_missing or bool(self.problem)
        return no_gpus or (bool(self._gpus) and self._listing is None and self._listed_at > float("-inf"))

    def update(self, now: float) -> None:
        """Take the answers that are there, and ask again where needed; never waits."""
        if self._is_missing:
            return
        try:
            self._update_gpus(now)
            if self._gpus:
                self._update_processes(now)
        except FileNotFoundError:
            self._is_missing = True
            amd = "AMD GPUs are not shown" if count_gpus() else ""
            self.problem = "GPU found, but no nvidia-smi" if count_nvidia() else amd
        except OSError as error:
            self.problem = f"nvidia-smi: {error.strerror}"

    def as_answer(self) -> List[Dict[str, Any]]:
        """Return the GPUs, each with its processes; none while there is a problem."""
        answer = []
        for gpu in () if self.problem else self._gpus.values():
            mine = [each._asdict() for each in self._processes if each.uuid == gpu["uuid"]]
            answer.append({**gpu, "processes": mine})
        return answer

    def end(self) -> None:
        """End the programs that were started."""
        for program in (self._program, self._listing):
            if program is not None:
                program.end()

    def _update_gpus(self, now: float) -> None:
        if self._program is None:
            self._program, self._asked_at = Program(ASK_GPUS, FORMAT, *self._loop), now
        for line in self._program.read():
            gpu = parse_gpu(line)
            if gpu is None:
                self.problem = f"nvidia-smi: {line[:LONGEST_TEXT]}"
            else:
                self._gpus[gpu["uuid"]] = gpu
                self._answered_at, self.problem = now, ""
        since = self._asked_at if self._answered_at is None else max(self._asked_at, self._answered_at)
        is_silent = now - since > SILENCE + float(self._loop[-1] if self._loop else 0)
        if is_silent:
            self._gpus, self.problem = {}, "nvidia-smi does not answer"
            # One that keeps its answers until it ends is started for each.
            self._loop = []
        if is_silent or (self._program.has_ended and now - self._asked_at >= self._pause):
            self._program.end()
            self._program = None

    @property
    def _pause(self) -> float:
        return SILENCE if self.problem or not self._loop else 1.0

    def _update_processes(self, now: float) -> None:
        if self._listing is None:
            if now - self._listed_at < _PROCESSES_SECONDS:
                return
            self._listing, self._found, self._listed_at = Program(ASK_PROCESSES, FORMAT), [], now
        self._found += [each for each in map(parse_process, self._listing.read()) if each is not None]
        if self._listing.has_ended or now - self._listed_at > SILENCE:
            self._processes = self._found
            self._listing.end()
            self._listing = None


def parse_process(line: str) -> Optional[ProcessOnGpu]:
    """Return a process of an answer; None if the line is something else."""
    found = nvidia_smi.parse_process(line)
    if found is None:
        return None
    uuid, pid, used = found
    return ProcessOnGpu(uuid, pid, used, _user_of(pid), processes.read_mark(pid).job_id or "")


def _user_of(pid: int) -> str:
    """Return the user of a process; empty when it is unknown here, as in a container."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)
