"""Stopping jobs: the wish is written down, the supervisor carries it out, and without one we do it ourselves."""

from __future__ import annotations

import os
import time

from . import job_files, states
from .named_tuple import NamedTuple
from .processes import Process, Snapshot
from .records import ENDED, ENTRY, STOP, RecordError, is_grace, is_signal
from .requests import Request, is_list
from .signals import signal
from .states import Looks
from .trees import deliver, end_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional

    from .inside import Inside
    from .states import Standing

# Beyond the grace, for SIGKILL and for the record.
_EXTRA_SECONDS = 15.0
_LOOK_SECONDS = 0.5
_DONE = object()


class Wish(NamedTuple):
    """How a job shall end.

    Attributes:
        signal: Name of the first signal.
        grace: Seconds until SIGKILL; None for what the job was started with.
    """

    signal: str
    grace: Optional[float]


def stop(request: Request) -> None:
    """Answer op ``stop``: every job is told before any is waited for."""
    folders = request.folders()
    ids = request.get("ids", is_list)
    wish = Wish(
        request.get("signal", is_signal, "SIGTERM"),
        request.get("grace", lambda value: value is None or is_grace(value)),
    )
    jobs = job_files.open_jobs_folder(folders.jobs)
    job_files.allow_open_folders(len(ids))
    looks = Looks()
    stops = [JobStop(jobs, job_id, wish, looks) for job_id in ids]
    take_turns([job.steps() for job in stops], looks)
    request.answer({"jobs": [job.answer for job in stops], "now": time.time()})


def take_turns(going: List[Iterator[None]], looks: Looks) -> None:
    """Go a step on with each, again and again, until all have come to their ends."""
    pause = 0.02
    while going:
        looks.forget()
        going = [steps for steps in going if next(steps, _DONE) is not _DONE]
        time.sleep(pause if going else 0.0)
        pause = min(pause * 1.3, 0.2)


class JobStop:
    """One job on its way to its end.

    Attributes:
        answer: What is known of it; complete when the steps have ended.
    """

    def __init__(self, jobs: Optional[int], job_id: object, wish: Wish, looks: Looks) -> None:
        self.answer: Dict[str, Any] = {"id": job_id, "state": None, "ended": None, "left": [], "already": False}
        self._jobs = jobs
        self._job_id = str(job_id)
        self._wish = wish
        self._looks = looks
        self._folder = -1
        self._command: Optional[Dict[str, Any]] = None
        self._inside: Optional[Inside] = None

    def steps(self) -> Iterator[None]:
        """Go on to the end; a new round wherever there is something to wait for, or to look at anew."""
        try:
            yield from self._open_and_end()
        except (RecordError, OSError) as error:
            self.answer["error"] = str(error)

    def _open_and_end(self) -> Iterator[None]:
        folder = job_files.open_job(self._jobs, self._job_id)
        if folder is None:
            raise RecordError("there is no such job on this server")
        self._folder = folder
        try:
            yield from self._end()
        finally:
            os.close(folder)

    def _end(self) -> Iterator[None]:
        standing = self._judge()
        was_running = standing.state in {"running", "starting"}
        if standing.state == "elsewhere":
            self.answer["error"] = f"it cannot be stopped from here: {standing.reason}"
        elif was_running:
            yield from self._let_supervisor_end(standing)
            yield
            standing = self._judge()
        # What a supervisor could not end just now, we cannot either.
        has_been_tried = was_running and standing.ended is not None
        self._load_inside(standing)
        is_left = bool(standing.members) or (self._inside is not None and self._inside.signal(0) > 0)
        self.answer["already"] = not was_running and standing.state != "elsewhere" and not is_left
        if is_left and standing.supervisor is None and not has_been_tried:
            yield from self._end_members(standing)
            yield
            standing = self._judge()
        if standing.state in {"running", "starting"}:
            self.answer["error"] = "its supervisor did not end it in time"
        self.answer["state"] = standing.state
        self.answer["ended"] = standing.ended
        self.answer["left"] = [process.pid for process in standing.members]

    def _judge(self) -> Standing:
        standing = states.judge(self._folder, self._job_id, self._looks.look())
        self._command = standing.started["command"] if standing.started is not None else None
        return standing

    def _load_inside(self, standing: Standing) -> None:
        """Know how to reach what a job whose supervisor has gone runs behind its launch command."""
        if standing.state == "lost" and job_files.exists(self._folder, ENTRY):
            from .activation import without_strays  # noqa: PLC0415 - few jobs begin behind a launch command
            from .inside import load_inside  # noqa: PLC0415

            self._inside = load_inside(self._folder, self._job_id, without_strays(os.environb))

    def _grace(self, standing: Standing) -> float:
        return float(standing.spec["grace"] if self._wish.grace is None else self._wish.grace)

    def _let_supervisor_end(self, standing: Standing) -> Iterator[None]:
        """Tell the supervisor and wait; returns early when it dies over it."""
        grace = self._grace(standing)
        written = self._write_wish(grace)
        # Only a look after the wish is on disk tells whether the supervisor has seen it by itself.
        yield
        standing = self._judge()
        if standing.supervisor is not None:
            deliver(standing.supervisor, self._knock(written=written))
        deadline = time.monotonic() + grace + _EXTRA_SECONDS
        next_look = time.monotonic() + _LOOK_SECONDS
        while time.monotonic() < deadline and not job_files.exists(self._folder, ENDED):
            if time.monotonic() > next_look:
                if self._judge().state not in {"running", "starting"}:
                    return
                next_look = time.monotonic() + _LOOK_SECONDS
            yield

    def _knock(self, *, written: bool) -> int:
        if written:
            return signal.SIGUSR1
        # Nothing can be written on a full disk, so the signal itself is the wish.
        return signal.SIGUSR2 if self._wish.signal == "SIGKILL" else signal.SIGTERM

    def _write_wish(self, grace: float) -> bool:
        """Write stop.json: the first wish stays, but SIGKILL outdoes every other; whether one is on disk."""
        record = {"id": self._job_id, "signal": self._wish.signal, "grace": grace, "requested_at": time.time()}
        try:
            is_first = job_files.write_record(self._folder, STOP, record)
            if not is_first and self._wish.signal == "SIGKILL":
                job_files.write_record(self._folder, STOP, record, replace=True)
        except OSError:
            return False
        return True

    def _end_members(self, standing: Standing) -> Iterator[None]:
        """Do what the supervisor would have done, when it is gone."""
        yield from end_members(self._members, self._wish.signal, self._grace(standing), self._inside)
        if standing.ended is None:
            self._record(len(standing.members))

    def _members(self) -> List[Process]:
        return Snapshot().members(self._job_id, job_files.path_of(self._folder), command=self._command)

    def _record(self, count: int) -> None:
        left = [process.pid for process in self._members()]
        reason = f"the supervisor was gone; {count} remaining process{'es' if count != 1 else ''} had to be ended"
        rest = "" if self._inside is None else self._inside.rest
        ended = {
            "id": self._job_id,
            "exit_code": None,
            "signal": None,
            "core_dumped": False,
            "killed": True,
            "reason": f"{reason}; {rest}" if rest else reason,
            "ended_at": time.time(),
            "duration": None,
            "leftovers": count,
            "unkillable": left,
            "resources": None,
        }
        try:
            job_files.write_record(self._folder, ENDED, ended)
        except OSError as error:
            # Its processes are gone all the same: it counts as lost.
            why = job_files.explain(f"{job_files.path_of(self._folder)}/{ENDED}", error)
            self.answer["error"] = f"it was ended, but this could not be recorded: {why}"
