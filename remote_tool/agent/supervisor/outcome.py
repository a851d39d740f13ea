"""The end of a job, as its supervisor records it."""

from __future__ import annotations

from remote_tool.agent.supervisor.shell import CommandEnd, decode_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from remote_tool.agent.proc.processes import Process

_OOM_KILLS = b"oom_kill "


class JobOutcome:
    """The end of a job.

    Attributes:
        notes: Parts of the reason in the final record.
        command: The command's first process, once started.
        status: The command's wait status.
        ended: When it ended, in seconds since the epoch and by the monotonic clock.
        killed: Whether a user killed the job.
        ended_with_launch: Whether it was ended because another node failed, was killed or was lost.
        ended_with_rank: Whether it was ended because one of its own ranks failed.
        had_to_end: Whether processes had to be signaled.
        never_began: Whether the launch command ended before the command began.
        setup_failed: Whether the setup script is why the command did not run.
        leftovers: How many processes a finished command left behind.
        unkillable: Processes that SIGKILL did not end.
        taken_port: The launch's port, if another program had it.
        moved: What takes the job's place on another server, if it was withdrawn while it waited.

    Args:
        may_run_elsewhere: Whether its processes may be in control groups of their own, such as those of a container.
    """

    def __init__(self, *, may_run_elsewhere: bool = False) -> None:
        self.notes: List[str] = []
        self.command: Optional[Process] = None
        self.status: Optional[int] = None
        self.ended: Optional[Tuple[float, float]] = None
        self.killed = False
        self.ended_with_launch = False
        self.ended_with_rank = False
        self.had_to_end = False
        self.never_began = False
        self.setup_failed = False
        self.leftovers = 0
        self.unkillable: List[Process] = []
        self.taken_port: Optional[int] = None
        self.moved: Dict[str, str] = {}
        self._may_run_elsewhere = may_run_elsewhere
        self._kills_before = _count_kills()

    def begin_again(self, note: str) -> None:
        """Forget how an attempt ended, before the next one."""
        self.notes = [note]
        self.command = self.status = self.ended = None
        self.had_to_end = self.never_began = self.setup_failed = False
        self.leftovers = 0

    @property
    def end(self) -> CommandEnd:
        """Return how the command ended; without a command, an exit code of 0 means nothing."""
        end = decode_status(self.status)
        return CommandEnd() if (self.setup_failed or self.never_began) and end.exit_code == 0 else end

    @property
    def was_stopped(self) -> bool:
        """Return whether it was ended from outside, which explains its end."""
        return self.killed or self.ended_with_launch

    def reason(self, log_note: str) -> str:
        """Return the reason for the final record, or an empty string."""
        end = self.end
        notes = list(self.notes)
        if end.signal is not None and not self.killed and not self.ended_with_rank:
            notes.insert(0, f"ended by {end.signal}{' (core dumped)' if end.core_dumped else ''}")
        if not self.killed and end.exit_code != 0 and self.command is not None:
            notes.append(self._explain_kills())
        notes.append(log_note)
        return "; ".join(note for note in notes if note)

    def _explain_kills(self) -> str:
        """Describe OOM kills while it ran, as part of a sentence; empty if none.

        Those on the machine may be of other users' processes, so they count only where our control group tells less.
        """
        (group_before, machine_before), (group, machine) = self._kills_before, _count_kills()
        if (group or 0) > (group_before or 0):
            return "out of memory: the kernel killed it at the memory limit of the machine or of its control group"
        if (group is None or self._may_run_elsewhere) and machine > machine_before:
            return "probably out of memory: the kernel killed a process for lack of memory while it ran"
        return ""


def _count_kills() -> Tuple[Optional[int], int]:
    """Count the OOM kills so far: in our control groups, None if these do not count them, and on the machine."""
    return _count_in_groups(), _read_count("/proc/vmstat") or 0


def _count_in_groups() -> Optional[int]:
    counts = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as stream:
            lines = stream.read(65536).splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            counts.append(_read_count(f"/sys/fs/cgroup{path}/memory.events"))
        elif "memory" in controllers.split(","):
            counts.append(_read_count(f"/sys/fs/cgroup/memory{path}/memory.oom_control"))
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _read_count(path: str) -> Optional[int]:
    try:
        with open(path, "rb") as stream:
            lines = stream.read(65536).split(b"\n")
    except OSError:
        return None
    counts = [line[len(_OOM_KILLS) :] for line in lines if line.startswith(_OOM_KILLS)]
    return int(counts[0]) if counts and counts[0].isdigit() else None
