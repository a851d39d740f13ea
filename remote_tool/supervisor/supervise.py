"""One supervisor per job: it starts the command, waits, ends what is left, and records how it went.

It is forked from the control program, has no terminal and no descriptor of it, and is the parent that orphans of the
job fall to. Whatever happens to the connection does not reach it.
"""

from __future__ import annotations

import errno
import os
import resource
import time

from . import job_files, memory, processes, subreaper
from .commands import LEFTOVER_GRACE, SETTLE_SECONDS, End, decode_status, describe_end, restore_signals, run_shell
from .launch_cause import FAILED, KILLED, LOST, Cause, Membership
from .log_limit import DEFAULT_LIMIT, LogLimit
from .named_tuple import NamedTuple
from .records import ENDED, STARTED, STOP, RecordError, encode_record
from .setup_script import DONE, FILE, describe_failure
from .signals import number_of, signal
from .suppressing import suppress
from .taken_port import find_taken_port
from .trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, NoReturn, Optional, Tuple

    from .entering import Door
    from .inside import Inside
    from .launch_watch import Watch
    from .processes import Process

RESERVED_BYTES = 16 * 1024
# A request to stop is in stop.json and comes with SIGUSR1; this is for one whose sender died in between.
_IDLE_SECONDS = 10.0
_RECORD_RETRY_SECONDS = 86400.0
_MOST_PIDS = 500
_SIGNALS = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
# On a full disk stop.json cannot be written, and the signal itself is the wish.
_WISHES: Dict[int, str] = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGTERM", signal.SIGUSR2: "SIGKILL"}


class Plan(NamedTuple):
    """What a supervisor is to do.

    Attributes:
        job_id: Of the job.
        folder: Descriptor of its folder.
        path: The same folder, absolute.
        reserve: Descriptor of the file kept for the final record, locked.
        locked: Whether the lock was to be had.
        project: The working folder, absolute.
        environment: Of the command.
        grace: Seconds, when a request to stop does not say.
        place: This machine.
        membership: Its place in a launch of several nodes; None without one.
        log_limit: Bytes that each of its output files may have.
        door: Behind which launch command it begins; None without one.
        script: What the shell there reads.
    """

    job_id: str
    folder: int
    path: str
    reserve: int
    locked: bool
    project: str
    environment: Dict[bytes, bytes]
    grace: float
    place: Dict[str, str]
    membership: Optional[Membership] = None
    log_limit: int = DEFAULT_LIMIT
    door: "Optional[Door]" = None
    script: bytes = b""


def leave_client(keep: "set[int]") -> int:
    """Go on in a session of one's own, with these descriptors alone and away from every folder; returns the umask."""
    os.setsid()
    umask = os.umask(0o077)
    _close_descriptors(keep)
    os.chdir("/")
    return umask


def supervise(plan: Plan, tell: int, umask: int) -> NoReturn:
    """Be the supervisor of a job to its end, after :func:`leave_client`.

    Args:
        plan: The job.
        tell: Is closed when the command runs, or is known not to.
        umask: The command's.
    """
    try:
        Supervisor(plan, tell, umask).run()
    except BaseException:  # noqa: BLE001 - nobody above could show it, and this must never return into the caller
        _note_crash(plan)
        os._exit(1)
    finally:
        os._exit(0)


def _close_descriptors(keep: "set[int]") -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in {0, 1, 2, *keep}:
            # One of them was the listing's own.
            with suppress(OSError):
                os.close(int(name))


def _note_crash(plan: Plan) -> None:
    import traceback  # noqa: PLC0415 - it is for a bug, and costs what all the rest does

    # The job counts as lost then, which is what it is.
    with suppress(OSError):
        job_files.write_file(plan.folder, "supervisor.log", traceback.format_exc().encode("utf-8", "replace"))


class Supervisor:
    """Watches one command from its start to its record."""

    def __init__(self, plan: Plan, tell: int, umask: int) -> None:
        self._plan = plan
        self._tell = tell
        self._umask = umask
        self._subreaper = subreaper.become_subreaper()
        self._memory = memory.count_kills()
        self._inside = _make_inside(plan)
        self._tree = Tree(plan.job_id, job_files.path_of(plan.folder), self._pause, self._inside)
        self._command: Optional[Process] = None
        self._status: Optional[int] = None
        self._started = time.monotonic()
        self._killed = False
        self._wish = ""
        self._had_to_end = False
        self._leftovers = 0
        self._unkillable: List[Process] = []
        self._notes: List[str] = []
        self._watch: Optional[Watch] = None
        self._log_limit = LogLimit(plan.folder, plan.log_limit)
        self._ended_with_launch = False
        self._taken_port: Optional[int] = None
        self._never_began = False
        self._setup_failed = False

    def run(self) -> None:
        """Do all of it; the final record is written when this returns."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        if self._make_watch() and self._start():
            self._start_watch()
            self._tell_started()
            self._wait_for_command()
            self._end_leftovers()
            self._leave_inside()
            self._look_at_setup()
        else:
            self._start_watch()
        self._look_for_taken_port()
        self._agree_on_cause()
        self._record()
        self._tell_started()
        if self._watch is not None:
            self._watch.leave()

    def _tell_started(self) -> None:
        if self._tell >= 0:
            os.close(self._tell)
            self._tell = -1

    def _make_watch(self) -> bool:
        """Be ready to watch the other nodes of a launch; False when this node could not be reached by them."""
        membership = self._plan.membership
        if membership is None:
            return True
        from . import launch_watch  # noqa: PLC0415 - only launches need threads and sockets

        try:
            self._watch = launch_watch.make_watch(membership, self._plan.folder)
        except OSError as error:
            where = f"{membership.address} port {membership.port}"
            self._notes.append(f"the command could not be started: {where}: {error.strerror}")
            self._taken_port = membership.port if error.errno == errno.EADDRINUSE else None
            return False
        return True

    def _start_watch(self) -> None:
        # A thread only now: the command was forked without one.
        if self._watch is not None:
            self._watch.start()
            self._watch.meet()

    def _report(self, kind: str, what: str, **how: Any) -> None:  # noqa: ANN401 - fields of a cause
        membership = self._plan.membership
        if self._watch is not None and membership is not None:
            self._watch.report(Cause(membership.rank, kind, what, **how))

    def _look_at_setup(self) -> None:
        """Say when the setup script is why the command did not run."""
        folder = self._plan.folder
        if self._killed or self._ended_with_launch or self._never_began:
            return
        # A disk that does not answer now says nothing of it.
        with suppress(OSError):
            self._setup_failed = job_files.exists(folder, FILE) and not job_files.exists(folder, DONE)
        if self._setup_failed:
            self._notes.insert(0, describe_failure(describe_end(decode_status(self._status))))

    def _end(self) -> End:
        """How the command ended; of one that did not run, the exit code 0 of what came before says nothing."""
        end = decode_status(self._status)
        return End() if (self._setup_failed or self._never_began) and end.exit_code == 0 else end

    def _look_for_taken_port(self) -> None:
        """The port was free when the launch was planned, and torchrun opened it some seconds later."""
        if self._killed or self._ended_with_launch or self._end().exit_code in {None, 0}:
            return
        self._taken_port = find_taken_port(self._plan.folder)
        if self._taken_port is not None:
            self._notes.append(f"another program had taken port {self._taken_port} when torchrun was to listen on it")

    def _agree_on_cause(self) -> None:
        """Have the record name what ended the launch first, when that was on another node."""
        end = self._end()
        if self._watch is None or self._plan.membership is None or self._killed or end.exit_code == 0:
            return
        if not self._ended_with_launch:
            is_explained = self._status is None or self._taken_port is not None or self._setup_failed
            self._report(FAILED, "; ".join(self._notes) if is_explained else describe_end(end))
        cause = self._watch.wait_for_verdict()
        if cause is not None and cause.rank != self._plan.membership.rank and not self._ended_with_launch:
            self._notes.append(f"first {self._plan.membership.name(cause.rank)} {cause.what}")

    def _start(self) -> bool:
        gate = os.pipe()
        errors = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            self._notes.append(f"the command could not be started: cannot fork: {error.strerror}")
            return False
        if pid == 0:
            _become_command(self._plan, self._umask, gate, errors)
        os.close(gate[0])
        os.close(errors[1])
        may_run = self._record_start(pid)
        if may_run:
            # It may have been killed while it waited.
            with suppress(BrokenPipeError):
                os.write(gate[1], b"1")
        os.close(gate[1])
        failure = os.read(errors[0], 4096).decode("utf-8", "replace")
        os.close(errors[0])
        if failure:
            self._notes.append(f"the command could not be started: {failure}")
        if failure or not may_run:
            os.waitpid(pid, 0)
        return may_run and not failure

    def _record_start(self, pid: int) -> bool:
        """Write started.json, before the command may run; whether it may."""
        this = None
        with suppress(OSError):
            self._command = processes.read_process(pid)
            this = processes.read_process(os.getpid())
        if this is None or self._command is None:
            self._notes.append("the command could not be started: /proc does not show its process")
            return False
        record = {
            "id": self._plan.job_id,
            "pid": pid,
            "command": self._command.as_record(),
            "supervisor": this.as_record(),
            "place": self._plan.place,
            "started_at": time.time(),
            "monotonic": self._started,
            "subreaper": self._subreaper,
            "locked": self._plan.locked,
        }
        try:
            job_files.write_record(self._plan.folder, STARTED, record, replace=True)
        except OSError as error:
            why = job_files.explain(f"{self._plan.path}/{STARTED}", error)
            self._notes.append(f"the command could not be started: {why}")
            return False
        # Whoever wished it to end after this look finds started.json, and knocks.
        if self._read_stop() is not None:
            self._killed = True
            self._notes.append("it was killed before its command started")
            return False
        return True

    def _wait_for_command(self) -> None:
        while self._status is None:
            stop = self._read_stop()
            if stop is not None:
                self._report(KILLED, "was killed by the user", signal=stop["signal"], grace=stop["grace"])
                self._stop(stop)
                return
            if self._watch is not None and self._watch.verdict is not None:
                self._stop_with_launch(self._watch.verdict)
                return
            self._pause(min(_IDLE_SECONDS, self._log_limit.seconds))

    def _pause(self, seconds: float) -> None:
        """Wait for a signal, at most this long, then collect what has ended."""
        try:
            received = signal.sigtimedwait(_SIGNALS, seconds)
        except InterruptedError:
            received = None
        if received is not None and received.si_signo in _WISHES:
            self._wish = _WISHES[received.si_signo]
        self._reap()
        self._log_limit.look_if_due()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            # An orphan that is reaped later may have got the same pid.
            if self._status is None and self._command is not None and pid == self._command.pid:
                self._status = status

    def _read_stop(self) -> Optional[Mapping[str, Any]]:
        request = None
        try:
            request = job_files.read_record(self._plan.folder, STOP, self._plan.job_id)
        except (RecordError, OSError):
            # Somebody wanted it to end, whatever became of the details; a disk that does not answer wants nothing.
            with suppress(OSError):
                if job_files.exists(self._plan.folder, STOP):
                    request = {"signal": "SIGTERM", "grace": self._plan.grace}
        if self._wish and (request is None or self._wish == "SIGKILL"):
            return {"signal": self._wish, "grace": self._plan.grace, "by_signal": True}
        return request

    def _must_hurry(self) -> bool:
        request = self._read_stop()
        return request is not None and request["signal"] == "SIGKILL"

    def _stop(self, request: Mapping[str, Any]) -> None:
        self._killed = True
        by_signal = "by_signal" in request
        how = "stopped by a signal to its supervisor" if by_signal else f"stopped with {request['signal']}"
        self._notes.append(how)
        self._end_tree(request["signal"], request["grace"])

    def _stop_with_launch(self, cause: Cause) -> None:
        assert self._plan.membership is not None
        self._ended_with_launch = True
        self._killed = cause.kind == KILLED
        self._notes.append(f"stopped because {self._plan.membership.name(cause.rank)} {cause.what}")
        self._end_tree(cause.signal, cause.grace)

    def _end_tree(self, name: str, grace: float) -> None:
        self._had_to_end = True
        if name != "SIGKILL":
            self._tree.signal(number_of(name) or signal.SIGTERM)
            if self._tree.wait(grace, self._must_hurry):
                return
            self._notes.append("SIGKILL ended what was left")
        self._give_up_on(self._tree.kill())

    def _end_leftovers(self) -> None:
        """End what a finished command left behind: a process that nobody looks after holds a GPU for ever."""
        if self._killed or self._ended_with_launch or self._tree.wait(SETTLE_SECONDS, self._must_hurry):
            return
        self._had_to_end = True
        leftovers = self._tree.signal(signal.SIGTERM)
        self._leftovers = len(leftovers)
        if leftovers:
            self._notes.append(f"{_count(leftovers)} that it left behind had to be ended")
        if not self._tree.wait(LEFTOVER_GRACE, self._must_hurry):
            self._give_up_on(self._tree.kill())

    def _leave_inside(self) -> None:
        """See the container gone, and notice a launch command that ended without the command having begun."""
        if self._inside is None:
            return
        self._inside.remove()
        if self._had_to_end and self._inside.rest:
            self._notes.append(self._inside.rest)
        with suppress(OSError):
            self._never_began = not self._killed and not job_files.exists(self._plan.folder, job_files.BEGUN)
        if self._never_began:
            assert self._plan.door is not None
            how = describe_end(decode_status(self._status))
            self._notes.append(f"{self._plan.door.words[0]} {how} before the command began")

    def _give_up_on(self, members: List[Process]) -> None:
        if not members:
            return
        self._unkillable = members[:_MOST_PIDS]
        stuck = " (uninterruptible sleep)" if any(process.is_stuck for process in members) else ""
        pids = ", ".join(str(process.pid) for process in members[:20])
        verb = "does" if len(members) == 1 else "do"
        self._notes.append(f"{_count(members)} {verb} not die{stuck}: {pids}")

    def _record(self) -> None:
        end = self._end()
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        record = {
            "id": self._plan.job_id,
            "exit_code": end.exit_code,
            "signal": end.signal,
            "core_dumped": end.core_dumped,
            "killed": self._killed,
            "reason": self._reason(end),
            "ended_at": time.time(),
            "duration": round(time.monotonic() - self._started, 3),
            "leftovers": self._leftovers,
            "unkillable": [process.pid for process in self._unkillable],
            "stopped_with_launch": self._ended_with_launch,
            "lost_node": self._lost_node(),
            "taken_port": self._taken_port,
            "resources": {
                "user_seconds": round(usage.ru_utime, 3),
                "system_seconds": round(usage.ru_stime, 3),
                "max_rss_bytes": usage.ru_maxrss * 1024,
            },
        }
        deadline = time.monotonic() + _RECORD_RETRY_SECONDS
        pause = 0.1
        # A full disk may have room later; nothing else is left to do.
        while not self._try_to_record(record) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def _lost_node(self) -> Optional[int]:
        cause = self._watch.verdict if self._watch is not None else None
        return cause.rank if cause is not None and cause.kind == LOST else None

    def _try_to_record(self, record: Mapping[str, Any]) -> bool:
        """Write ended.json into the space kept for it; True when it is there, or when nobody can ever read it."""
        try:
            if os.fstat(self._plan.folder).st_nlink == 0:
                return True
            if job_files.exists(self._plan.folder, job_files.RESERVE):
                fill_reserve(self._plan.folder, self._plan.reserve, record)
            else:
                job_files.write_record(self._plan.folder, ENDED, record)
        except OSError:
            return False
        return True

    def _reason(self, end: End) -> str:
        notes = list(self._notes)
        if end.signal is not None and not self._killed:
            notes.insert(0, f"ended by {end.signal}{' (core dumped)' if end.core_dumped else ''}")
        if not self._killed and end.exit_code != 0 and self._command is not None:
            notes.append(memory.explain_kills(self._memory))
        notes.append(self._log_limit.note)
        return "; ".join(note for note in notes if note)


def _make_inside(plan: Plan) -> "Optional[Inside]":
    if plan.door is None:
        return None
    from .inside import Inside  # noqa: PLC0415 - few jobs begin behind a launch command

    return Inside(plan.job_id, plan.door.ask, plan.door.end, plan.environment)


def fill_reserve(folder: int, reserve: int, record: Mapping[str, Any]) -> None:
    """Turn the reserved file into ended.json, unless there is one; needs no free space."""
    data = encode_record(record)
    os.lseek(reserve, 0, os.SEEK_SET)
    job_files.write_all(reserve, data)
    os.ftruncate(reserve, len(data))
    os.fsync(reserve)
    job_files.publish(folder, job_files.RESERVE, ENDED)
    job_files.remove(folder, job_files.RESERVE)


def _become_command(plan: Plan, umask: int, gate: Tuple[int, int], errors: Tuple[int, int]) -> NoReturn:
    """In the forked child: wait until the start is recorded, then become the command."""
    try:
        os.setsid()
        # Else the gate would stay open when the supervisor dies.
        os.close(gate[1])
        if os.read(gate[0], 1) == b"1":
            restore_signals()
            os.umask(umask)
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
            os.dup2(os.open(job_files.OUT, flags, dir_fd=plan.folder), 1)
            os.dup2(os.open(job_files.ERR, flags, dir_fd=plan.folder), 2)
            os.chdir(plan.project)
            if plan.door is not None:
                from .entering import enter  # noqa: PLC0415 - few jobs begin behind a launch command

                enter(plan.door.words, plan.script, plan.environment)
            run_shell(f"{plan.path}/{job_files.COMMAND}", plan.environment)
    except BaseException as error:  # noqa: BLE001 - it is told to the supervisor, and this must never return
        os.write(errors[1], str(error).encode("utf-8", "replace")[:4000])
    finally:
        os._exit(127)


def _count(members: List[Process]) -> str:
    return "1 process" if len(members) == 1 else f"{len(members)} processes"
