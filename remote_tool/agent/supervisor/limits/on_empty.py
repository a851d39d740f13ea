"""Run the user's on_empty command once nothing of theirs has run on this machine for a while.

The supervisor of the job waits for that after the job's end. There is no file and no lock: other waiters, jobs and
programs of remote-tool are found in ``/proc``. Of several waiters, the one whose job ended last is responsible.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from remote_tool.agent.activation import check_user
from remote_tool.agent.proc import processes
from remote_tool.agent.proc.processes import ProcessSnapshot
from remote_tool.agent.supervisor import on_end
from remote_tool.agent.supervisor.plan import OnEmpty
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.job_fields import is_seconds
from remote_tool.protocol.limits import LONGEST_DURATION
from remote_tool.protocol.records import is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Set, Tuple

    from remote_tool.agent.proc.processes import Process
    from remote_tool.agent.supervisor.events import Events
    from remote_tool.agent.supervisor.plan import Plan

# The name of an open file in memory marks a waiter for the others; the moment at which its job ended follows.
_MARK = "remote-tool-on-empty-"
# Seconds between two looks at all processes: at most these, and this part of the wait.
_LOOK_SECONDS, _LOOK_PART = 5.0, 4
# The meanings of another program of ours for a waiter.
_BUSY, _TAKES_OVER, _NOTHING = "busy", "takes over", ""


def read_on_empty(value: Any) -> OnEmpty:  # noqa: ANN401 - from the request, checked here
    """Return the command of a request; RequestError when it is malformed."""
    if not isinstance(value, dict) or not isinstance(value.get("command"), str):
        raise RequestError("The request's on_empty is not a command")
    if not is_seconds(value.get("after"), LONGEST_DURATION):
        raise RequestError("The request's on_empty does not say how long to wait")
    secrets = value.get("secrets") or {}
    check_user(secrets)
    return OnEmpty(value["command"], secrets, value["after"])


def prepare(plan: Plan, events: Events) -> Optional[OnEmptyWaiter]:
    """Return the waiter of a job that has just ended; None if the system is short of descriptors or memory."""
    try:
        return OnEmptyWaiter(plan, events)
    except OSError:
        return None


class OnEmptyWaiter:
    """Waits until nothing is left, from the end of a job on."""

    def __init__(self, plan: Plan, events: Events) -> None:
        assert plan.request.on_empty is not None
        self._plan = plan
        self._events = events
        self._on_empty = plan.request.on_empty
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._ended = int(time.clock_gettime(time.CLOCK_BOOTTIME) * self._ticks)
        self._namespace = processes.place()["pid_namespace"]
        self._home = os.environb.get(b"HOME", b"")
        self._stop = events.read_stop()
        self._known = self._jobs()
        # Others see its name; its contents are empty. Some builds of Python cannot make a file in memory.
        name = f"{_MARK}{self._ended}"
        has_memory = hasattr(os, "memfd_create")
        self._memory = os.memfd_create(name) if has_memory else job_folder.create_file(plan.folder, name)

    def run(self) -> bool:
        """Wait, and run the command; return False if another job has come, which decides then."""
        with suppress(OSError):
            log = job_folder.create_file(self._plan.folder, job_folder.ON_EMPTY)
            # The job's folder may be removed from now on.
            os.close(self._plan.reserve)
            if self._wait(log):
                variables = on_end.with_variables(self._plan, self._on_empty.secrets)
                on_end.run_logged(self._plan, self._on_empty.command, variables, log, "on_empty")
                return True
            job_folder.write_all(
                log, b"remote-tool: on_empty does not run: another job has come, or this was stopped\n"
            )
        return False

    def _wait(self, log: int) -> bool:
        """Return True after nothing else has been here for long enough."""
        empty_since: Optional[float] = None
        after = self._on_empty.after
        while True:
            found = self._look()
            now = time.monotonic()
            if found == _TAKES_OVER or self._events.read_stop() != self._stop or self._jobs() - self._known:
                return False
            if found == _BUSY:
                empty_since = None
            elif empty_since is None:
                empty_since = now
                job_folder.write_all(log, f"remote-tool: no job is left: on_empty runs in {after:g} s\n".encode())
            elif now - empty_since >= after:
                return True
            self._events.pause(min(_LOOK_SECONDS, max(after / _LOOK_PART, 0.05)))

    def _jobs(self) -> Set[str]:
        """Return the jobs of the project, also those that were too short to be seen; OSError without a project."""
        return set(filter(is_job_id, os.listdir(os.path.dirname(self._plan.path))))

    def _look(self) -> str:
        """Return how the other jobs affect this waiter, the most important first."""
        try:
            snapshot = ProcessSnapshot()
            found = {self._meaning(process) for process in snapshot.processes.values() if process.is_alive}
        except OSError:
            # Out of descriptors: nothing is known.
            return _BUSY
        return next((each for each in (_TAKES_OVER, _BUSY) if each in found), _NOTHING)

    def _meaning(self, process: Process) -> str:
        if process.pid == os.getpid() or not processes.is_own(process, self._namespace):
            return _NOTHING
        is_supervisor, job_id = self._marks(process.pid)
        if job_id == self._plan.job_id or not (is_supervisor or job_id):
            return _NOTHING
        if not is_supervisor:
            # Its supervisor shows whether the job is a later one.
            return _BUSY
        try:
            names = list(processes.descriptors(process.pid).values())
        except OSError:
            return _BUSY
        moments = [name.partition(_MARK)[2].partition(" ")[0] for name in names if _MARK in name]
        if moments:
            # It decides, or leaves as soon as it looks.
            return _TAKES_OVER if (int(moments[0]), process.pid) > (self._ended, os.getpid()) else _NOTHING
        return (
            self._meaning_of_job(process) if any(name.endswith(f"/{job_folder.RESERVE}") for name in names) else _BUSY
        )

    def _meaning_of_job(self, process: Process) -> str:
        """Return how another job affects this waiter: one that began later decides at its own end."""
        return _TAKES_OVER if process.start_time >= self._ended else _BUSY

    def _marks(self, pid: int) -> Tuple[bool, Optional[str]]:
        """Return whether a process of this account is our program, and the job that it belongs to."""
        with suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as stream:
                is_own_home = b"\0HOME=%b\0" % self._home in b"\0" + stream.read() + b"\0"
            if is_own_home:
                mark = processes.read_mark(pid)
                return mark.is_supervisor, mark.job_id
        return False, None
