"""A supervisor's record of how its job ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from remote_tool.agent.supervisor import memory
from remote_tool.agent.supervisor.shell import End, decode_status

if TYPE_CHECKING:
    from remote_tool.agent.proc.processes import Process


class Outcome:
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
    """

    def __init__(self) -> None:
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
        self._memory = memory.count_kills()

    def begin_again(self, note: str) -> None:
        """Forget how an attempt ended, before the next one."""
        self.notes = [note]
        self.command = self.status = self.ended = None
        self.had_to_end = self.never_began = self.setup_failed = False
        self.leftovers = 0

    @property
    def end(self) -> End:
        """Return how the command ended; without a command, an exit code of 0 means nothing."""
        end = decode_status(self.status)
        return End() if (self.setup_failed or self.never_began) and end.exit_code == 0 else end

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
            notes.append(memory.explain_kills(self._memory))
        notes.append(log_note)
        return "; ".join(note for note in notes if note)
