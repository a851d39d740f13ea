"""The supervisor of a job: start the command, wait, end leftovers, and record the result.

It is forked from the control program, without a terminal or inherited descriptors, and is the subreaper of the job's
processes. It is independent of the connection.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress

from remote_tool.agent.proc import py_spy, subreaper
from remote_tool.agent.proc.processes import close_descriptors
from remote_tool.agent.supervisor import causes, command, launch, on_end
from remote_tool.agent.supervisor.end import JobEnding
from remote_tool.agent.supervisor.events import Events
from remote_tool.agent.supervisor.limits import on_empty
from remote_tool.agent.supervisor.limits.attempts import Attempts
from remote_tool.agent.supervisor.limits.early_end import EarlyEnd
from remote_tool.agent.supervisor.outcome import JobOutcome
from remote_tool.agent.supervisor.records import RecordWriter
from remote_tool.protocol import job_folder
from remote_tool.protocol.records import STARTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, NoReturn, Optional

    from remote_tool.agent.frozen.copies import Copy
    from remote_tool.agent.launch.cause import Cause
    from remote_tool.agent.proc.processes import Process
    from remote_tool.agent.supervisor.launch import NodeOfLaunch
    from remote_tool.agent.supervisor.plan import Plan, RequestedJob
    from remote_tool.agent.supervisor.queue import JobQueue
    from remote_tool.agent.supervisor.terminal import JobTerminal
    from remote_tool.protocol.records import Record


MEBIBYTE = 1024 * 1024
_LONG_TO_COPY = 64 * MEBIBYTE
# After a request to stop: who asked for it waits 15 seconds longer than the grace period.
_COPY_SECONDS = 5.0


def load_for(job: RequestedJob) -> None:
    """Load the modules that only some supervisors need: an update may remove their files before the job ends."""
    if job.queue is not None:
        from remote_tool.agent.supervisor import queue  # noqa: F401, PLC0415 - few jobs wait
    if job.membership is not None:
        launch.class_of_watch(job.membership)
    if job.spec["terminal"]:
        from remote_tool.agent.supervisor import terminal  # noqa: F401, PLC0415 - few jobs have a terminal
    if job.copy is not None:
        from remote_tool.agent.frozen import copies, guests, home  # noqa: F401, PLC0415 - few projects have copies
    if job.command_wrapper is not None:
        from remote_tool.agent.wrapper import container, wrapper  # noqa: F401, PLC0415 - few jobs have a launch command


def leave_client(keep: set[int]) -> int:
    """Detach into a new session, keep only these descriptors, leave every folder; return the umask."""
    os.setsid()
    umask = os.umask(0o077)
    _close_descriptors(keep)
    os.chdir("/")
    return umask


def supervise(plan: Plan, started: int, umask: int) -> NoReturn:
    """Supervise a job to its end, after :func:`leave_client`.

    Args:
        plan: The job.
        started: Descriptor to close when the command runs, or is known not to.
        umask: The command's umask.
    """
    try:
        Supervisor(plan, started, umask).run()
    except BaseException:  # noqa: BLE001 - nobody above could show it, and this must never return into the caller
        _note_crash(plan)
        os._exit(1)
    finally:
        os._exit(0)


def _close_descriptors(keep: set[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    close_descriptors(keep)


def _note_crash(plan: Plan) -> None:
    import traceback  # noqa: PLC0415 - it is for a bug, and costs what all the rest does

    # The job then counts as lost, correctly.
    with suppress(OSError):
        job_folder.write_file(plan.folder, "supervisor.log", traceback.format_exc().encode("utf-8", "replace"))


class Supervisor:
    """Supervises one command from its start to its final record."""

    def __init__(self, plan: Plan, started: int, umask: int) -> None:
        self._plan = plan
        self._started = started
        self._umask = umask
        self._subreaper = subreaper.become_subreaper()
        self._outcome = JobOutcome(may_run_elsewhere=plan.request.command_wrapper is not None)
        self._records = RecordWriter(plan)
        self._events = Events(plan, self._outcome)
        self._ending = JobEnding(plan, self._events, self._outcome, is_subreaper=self._subreaper)
        self._launch: Optional[NodeOfLaunch] = None
        self._attempts = Attempts() if plan.spec["retries"] else None
        self._early_end: Optional[EarlyEnd] = None
        self._terminal: Optional[JobTerminal] = None
        self._queue: Optional[JobQueue] = None
        self._is_in_copy = False
        self._copies_until: Optional[float] = None

    def run(self) -> None:
        """Do all steps; the final record is written when this returns."""
        self._events.block_signals()
        if self._wait_in_queue() and self._join_launch() and self._open_terminal() and self._start_command():
            self._watch_launch()
            self._report_started()
            self._finish_command()
            while self._prepare_next_attempt() and self._start_command():
                self._finish_command()
        else:
            self._watch_launch()
        if self._queue is not None:
            self._queue.release()
        causes.note_taken_port(self._plan, self._outcome)
        self._note_cause()
        causes.note_full_disk(self._plan, self._outcome)
        # Others have the GPUs by now, and the launch knows of the end: this may take long.
        self._bring_home()
        self._drain_terminal()
        ended = self._record_end()
        self._report_started()
        if self._terminal is not None:
            self._terminal.finish(self._outcome)
        if self._launch is not None:
            self._launch.leave()
        self._run_commands_for_the_end(ended)

    def _run_commands_for_the_end(self, ended: Record) -> None:
        waiter = None
        if self._plan.request.on_empty is not None:
            waiter = on_empty.prepare(self._plan, self._events)
        # One that was moved has not ended for its user.
        if self._plan.request.on_end is not None and not self._outcome.moved:
            on_end.run(self._plan, ended)
            self._end_what_it_left()
        if waiter is not None and waiter.run():
            self._end_what_it_left()

    def _end_what_it_left(self) -> None:
        if self._events.reap() or not self._subreaper:
            self._ending.end_tree("SIGKILL", 0.0)

    def _finish_command(self) -> None:
        if self._early_end is None:
            # Its GPUs are known only now.
            self._early_end = EarlyEnd(self._plan, self._records)
        self._wait_for_command()
        self._early_end.pause()
        self._ending.end_leftovers()
        self._ending.leave_wrapper()
        causes.note_failed_setup(self._plan, self._outcome)

    def _prepare_next_attempt(self) -> bool:
        if self._attempts is None:
            return False
        return self._attempts.prepare_next(self._plan, self._outcome, is_stopping=self._events.read_stop() is not None)

    def _find_stop(self) -> Optional[Mapping[str, Any]]:
        """Return the request to stop: a user's, or by a limit of the job's own."""
        stop = self._events.read_stop()
        if stop is None and self._early_end is not None:
            stop = self._early_end.request()
        return stop

    def _report_started(self) -> None:
        if self._started >= 0:
            os.close(self._started)
            self._started = -1

    def _wait_in_queue(self) -> bool:
        """Wait for other jobs and for GPUs; return False when the command must not start."""
        if self._plan.request.queue is None:
            return True
        from remote_tool.agent.supervisor import queue  # noqa: PLC0415 - few jobs wait

        self._queue = queue.JobQueue(self._plan, self._events, self._outcome, self._report_started)
        may_start = self._queue.wait()
        self._records.started = time.monotonic()
        if may_start and self._queue.gpus:
            self._records.leased_gpus = list(self._queue.gpus)
            self._plan = queue.with_gpus(self._plan, self._queue.gpus)
        return may_start

    def _join_launch(self) -> bool:
        """Prepare the heartbeat of a launch; return False when the other nodes could not reach this one."""
        membership = self._plan.request.membership
        if membership is None:
            return True
        self._launch = launch.join_launch(self._plan, membership, self._outcome)
        return self._launch is not None

    def _open_terminal(self) -> bool:
        """Open the command's terminal, if it has one; return False when that is impossible."""
        if not self._plan.spec["terminal"]:
            return True
        from remote_tool.agent.supervisor import terminal  # noqa: PLC0415 - few jobs have a terminal

        try:
            self._terminal = terminal.JobTerminal(self._plan)
        except OSError as error:
            self._outcome.notes.append(f"{command.NOT_STARTED}: {job_folder.explain('its terminal', error)}")
        return self._terminal is not None

    def _start_command(self) -> bool:
        # An earlier attempt may have changed it itself, as a checkpoint.
        is_first = self._attempts is None or not self._attempts.failed
        if is_first and self._plan.request.copy is not None and self._has_changed(self._plan.request.copy):
            return False
        plan = self._plan if self._attempts is None else self._attempts.plan_for(self._plan)
        started = command.start(plan, self._umask, self._outcome, self._record_start, self._terminal)
        # Only now: the command's process was forked without the terminal's thread.
        if self._terminal is not None:
            self._terminal.start()
        return started

    def _has_changed(self, copy: Copy) -> bool:
        """Return whether the job's copy of the project is not as it was when the job was given."""
        from remote_tool.agent.frozen import copies, guests, home  # noqa: PLC0415 - few projects have copies

        self._is_in_copy = True
        # The job can run without.
        with suppress(OSError):
            home.enter(copy, self._plan.job_id, guests.ProjectJobs(os.path.dirname(self._plan.path)))
        try:
            changed = copies.changed_link(copy)
        except OSError as error:
            self._outcome.notes.append(f"{command.NOT_STARTED}: {job_folder.explain(copy.path, error)}")
            return True
        if changed:
            why = "changed since the job was given; the job's copy of the project shares it with the project"
            self._outcome.notes.append(f"{command.NOT_STARTED}: {job_folder.printable(changed)} {why}")
        return bool(changed)

    def _bring_home(self) -> None:
        """Bring the output of the job from its copy into the project, before others learn of its end."""
        copy = self._plan.request.copy
        if copy is None or not self._is_in_copy:
            return
        from remote_tool.agent.frozen import guests, home  # noqa: PLC0415 - few projects have copies

        try:
            jobs = guests.ProjectJobs(os.path.dirname(self._plan.path))
            homecoming = home.bring(copy, jobs, self._plan.job_id, see=self._see_copying)
            notes = homecoming.describe(copy.name)
        except OSError as error:
            notes = [f"its output is still in the copy {copy.name}: {job_folder.explain(copy.path, error)}"]
        except Exception as error:  # noqa: BLE001 - whatever fails, the end of the job must be recorded
            notes = [f"its output is still in the copy {copy.name}: {error!r:.200}"]
        self._outcome.notes += notes
        # The notes are in the record too.
        with suppress(OSError):
            self._records.add_to_log(notes)

    def _see_copying(self, path: str, done: int) -> None:
        """Log a long copy to another disk, for the job ends after that; InterruptedError soon after a stop."""
        if self._copies_until is None and self._events.read_stop() is not None:
            self._copies_until = time.monotonic() + _COPY_SECONDS
        if self._copies_until is not None and time.monotonic() > self._copies_until:
            raise InterruptedError(errno.EINTR, "the job was stopped while it was copied to another disk")
        if done == 0:
            size = os.lstat(path).st_size
            if size >= _LONG_TO_COPY:
                with suppress(OSError):
                    name = os.fsencode(os.path.basename(path)).decode("utf-8", "backslashreplace")
                    self._records.add_to_log([f"copies its output to another disk: {name} ({size // MEBIBYTE} MiB)"])

    def _drain_terminal(self) -> None:
        """Wait for the last output, which must be in the log before the final record is written."""
        if self._terminal is not None:
            self._terminal.drain()
            if self._terminal.note:
                self._outcome.notes.append(self._terminal.note)

    def _watch_launch(self) -> None:
        if self._launch is not None:
            self._launch.start_watch()

    def _record_start(self, process: Process, supervisor: Process) -> bool:
        """Write started.json before the command runs; return whether it may run."""
        notes = self._outcome.notes
        try:
            failed = [*self._plan.request.earlier, *([] if self._attempts is None else self._attempts.failed)]
            self._records.write_start(process, supervisor, is_subreaper=self._subreaper, failed_attempts=failed)
        except OSError as error:
            why = job_folder.explain(f"{self._plan.path}/{STARTED}", error)
            notes.append(f"{command.NOT_STARTED}: {why}")
            return False
        # A stop request that comes later finds started.json, and sends a signal.
        if self._events.read_stop() is not None:
            self._outcome.killed = True
            notes.append("it was killed before its command started")
            return False
        return True

    def _wait_for_command(self) -> None:
        while self._outcome.status is None:
            stop = self._find_stop()
            if stop is not None:
                if self._launch is not None:
                    self._launch.report_stop(stop)
                self._ending.stop(stop)
                return
            if self._launch is not None:
                if self._launch.verdict is not None:
                    self._stop_with_launch(self._launch, self._launch.verdict)
                    return
                self._launch.check_rendezvous()
            if self._queue is not None:
                self._queue.refresh_if_due()
            self._trace_if_asked()
            self._events.wait()

    def _trace_if_asked(self) -> None:
        # During a long job, this program may have been removed.
        with suppress(OSError, ImportError):
            if job_folder.exists(self._plan.folder, job_folder.TRACE):
                py_spy.trace_if_asked(self._plan.folder)

    def _stop_with_launch(self, launch: NodeOfLaunch, cause: Cause) -> None:
        # torchrun ends by itself when a rank fails, but it may take long.
        self._outcome.ended_with_rank = launch.is_own_failure(cause)
        if not self._outcome.ended_with_rank:
            self._outcome.ended_with_launch = True
            self._outcome.killed = cause.is_users
            self._outcome.notes.append(f"stopped because {launch.describe(cause)}")
        if not cause.is_users:
            # The others may hang in a collective: where is known only now.
            self._ending.keep_stacks()
        self._ending.end_tree(cause.signal, cause.grace)

    def _note_cause(self) -> None:
        """Record the first error that ended the job or its launch: a rank's, or another node's."""
        outcome = self._outcome
        if outcome.was_stopped or outcome.end.exit_code == 0:
            return
        is_explained = outcome.status is None or outcome.taken_port is not None or outcome.setup_failed
        cause = None if self._launch is None else self._launch.find_cause(outcome, is_explained=is_explained)
        if cause is not None:
            outcome.notes.append(cause)
        elif not is_explained:
            causes.note_rank_error(self._plan, outcome)

    def _record_end(self) -> Record:
        return self._records.write_end(
            self._outcome,
            self._outcome.reason(self._events.log_note),
            lost_node=None if self._launch is None else self._launch.lost_node,
            trained_alone=self._launch is not None and self._launch.trained_alone,
        )
