"""End a job: upon request, with its launch, and any processes that its command left behind."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

from remote_tool.agent.proc import stacks
from remote_tool.agent.supervisor.shell import LEFTOVER_GRACE, SETTLE_SECONDS, decode_status, describe_end
from remote_tool.agent.supervisor.tree import Tree
from remote_tool.protocol import job_folder
from remote_tool.protocol.limits import SHELL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional

    from remote_tool.agent.proc.processes import Process
    from remote_tool.agent.supervisor.events import Events
    from remote_tool.agent.supervisor.outcome import JobOutcome
    from remote_tool.agent.supervisor.plan import Plan
    from remote_tool.agent.wrapper.container import WrappedProcesses

_MOST_PIDS = 500
_STATUS_SECONDS = 5.0


class JobEnding:
    """Ends the processes of a job and records how."""

    def __init__(self, plan: Plan, events: Events, outcome: JobOutcome, *, is_subreaper: bool) -> None:
        """Initialize.

        Args:
            plan: The job.
            events: The supervisor's events.
            outcome: Receives what happened.
            is_subreaper: Whether orphans of the job become children of this process.
        """
        self._plan = plan
        self._events = events
        self._outcome = outcome
        self._subreaper = is_subreaper
        self._wrapped = _make_wrapped(plan)
        self._tree = Tree(plan.job_id, job_folder.path_of(plan.folder), events.pause, self._wrapped)

    def stop(self, request: Mapping[str, Any]) -> None:
        """Carry out a stop request."""
        self._outcome.killed = True
        name = self._first_signal(request["signal"])
        how = "stopped by a signal to its supervisor" if "by_signal" in request else f"stopped with {name}"
        if "why" in request:
            how = f"stopped because it {request['why']}"
        self._outcome.notes.append(how)
        self.end_tree(request["signal"], request["grace"])

    def _first_signal(self, name: str) -> str:
        """Return the signal with which a stop begins: the job's own takes the place of SIGTERM."""
        return self._plan.spec["first_signal"] or name if name == "SIGTERM" else name

    def end_tree(self, name: str, grace: float) -> None:
        """End every process: a signal, the grace period, SIGKILL."""
        self._outcome.had_to_end = True
        name = self._first_signal(name)
        if name != "SIGKILL":
            self._tree.signal(signal.Signals.__members__.get(name, signal.SIGTERM))
            if self._plan.spec["terminal"] == SHELL:
                # An interactive shell ignores SIGTERM.
                self._tree.signal(signal.SIGHUP)
            if self._tree.wait(grace, self._events.must_hurry):
                self._learn_status()
                return
            self._outcome.notes.append("SIGKILL ended the remaining processes")
        self._give_up_on(self._tree.kill())
        self._learn_status()

    def _learn_status(self) -> None:
        """Wait until the first process says how the command ended: a terminal's does so when all others have."""
        deadline = time.monotonic() + _STATUS_SECONDS
        while self._events.reap() and self._outcome.status is None and time.monotonic() < deadline:
            self._events.pause(_STATUS_SECONDS)

    def keep_stacks(self) -> None:
        """Write where the Python processes are into the job's folder."""
        # During a long job, this program may have been removed.
        with suppress(OSError, ImportError):
            taken = stacks.take(self._tree.members())
            if taken:
                stacks.store(self._plan.folder, taken)

    def end_leftovers(self) -> None:
        """End processes that a finished command left behind: an unsupervised process may hold a GPU for ever."""
        if self._outcome.was_stopped or self._has_left_nothing():
            return
        self._outcome.had_to_end = True
        leftovers = self._tree.signal(signal.SIGTERM)
        self._outcome.leftovers = len(leftovers)
        if leftovers:
            self._outcome.notes.append(f"{_count(leftovers)} left behind by the command had to be ended")
        if not self._tree.wait(LEFTOVER_GRACE, self._events.must_hurry):
            self._give_up_on(self._tree.kill())

    def _has_left_nothing(self) -> bool:
        """Wait briefly for processes that end on their own; return whether none is left."""
        if not self._subreaper or self._wrapped is not None:
            return self._tree.wait(SETTLE_SECONDS, self._events.must_hurry)
        # A subreaper inherits orphans: without children, it need not scan all processes.
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._events.reap() and not self._events.must_hurry():
            left = deadline - time.monotonic()
            if left <= 0:
                return not self._tree.members()
            self._events.pause(left)
        return not self._events.reap()

    def leave_wrapper(self) -> None:
        """Remove the container, and detect a launch command that ended before the command began."""
        if self._wrapped is None:
            return
        self._wrapped.remove()
        outcome = self._outcome
        if outcome.had_to_end and self._wrapped.rest:
            outcome.notes.append(self._wrapped.rest)
        with suppress(OSError):
            outcome.never_began = not outcome.killed and not job_folder.exists(self._plan.folder, job_folder.BEGUN)
        if outcome.never_began:
            assert self._plan.request.command_wrapper is not None
            how = describe_end(decode_status(outcome.status))
            outcome.notes.append(f"{self._plan.request.command_wrapper.words[0]} {how} before the command began")

    def _give_up_on(self, members: List[Process]) -> None:
        if not members:
            return
        self._outcome.unkillable = members[:_MOST_PIDS]
        stuck = " (uninterruptible sleep)" if any(process.is_stuck for process in members) else ""
        pids = ", ".join(str(process.pid) for process in members[:20])
        self._outcome.notes.append(f"{_count(members)} could not be killed{stuck}: {pids}")


def _make_wrapped(plan: Plan) -> Optional[WrappedProcesses]:
    wrapper = plan.request.command_wrapper
    if wrapper is None:
        return None
    from remote_tool.agent.wrapper.container import WrappedProcesses  # noqa: PLC0415 - few jobs have a launch command

    return WrappedProcesses(plan.job_id, wrapper.ask, wrapper.end, plan.environment)


def _count(members: List[Process]) -> str:
    return "1 process" if len(members) == 1 else f"{len(members)} processes"
