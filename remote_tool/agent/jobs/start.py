"""Start jobs exactly once: whichever process creates the job's folder starts the job."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import time
from contextlib import suppress

from remote_tool.agent import activation, states
from remote_tool.agent.activation import ActivationError
from remote_tool.agent.cleaning import leftovers
from remote_tool.agent.jobs import new_folder
from remote_tool.agent.jobs.job_request import check_job
from remote_tool.agent.leases.folders import have_leases
from remote_tool.agent.requests import Folders, Request, is_flag, is_list, is_text
from remote_tool.agent.supervisor import supervise
from remote_tool.agent.supervisor.plan import Plan, RequestedJob
from remote_tool.protocol import job_folder, limits, strict_json
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.framing import HEADER_LIMIT
from remote_tool.protocol.job_fields import is_count
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import ENDED, SPEC, STARTED, RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Optional, Tuple

    from remote_tool.agent.frozen.copies import Copies
    from remote_tool.protocol.records import Record

# The answer waits this long for the commands to run.
_START_SECONDS = 10.0
# The client asks for the jobs missing from a full answer by their ids; space is reserved for the last one.
_ANSWER_LIMIT = HEADER_LIMIT // 2
# A supervisor's first message: the job's folder was created, exists already, or why it could not be created.
_MADE = b"m"
_ALREADY = b"a"
_FAILED = b"f"
# Limit for removing old jobs during a start.
_CLEAN_SECONDS = 2.0


class PendingStart(NamedTuple):
    """A job that is being started.

    Attributes:
        spec: The job's record.
        first_message: Descriptor of the supervisor's message; closed when the command runs, or is known not to.
        error: Why there is no supervisor.
    """

    spec: Record
    first_message: int = -1
    error: str = ""

    @property
    def job_id(self) -> str:
        return str(self.spec["id"])


class Call(NamedTuple):
    """The common parts of one start request.

    Attributes:
        jobs: Descriptor of the folder of all jobs.
        folders: The project's folders on this server.
        again: Whether an earlier try, whose answer was lost, may have started the jobs.
        open_files: Soft and hard limits of open files.
        copies: Descriptor of the folder of the project's copies, if a job runs in one.
        attempt: Of jobs that were held, 1 for the first; 0: the jobs are new.
        why: Why there is another attempt.
    """

    jobs: int
    folders: Folders
    again: bool
    open_files: Tuple[int, int]
    copies: int = -1
    attempt: int = 0
    why: str = ""

    @property
    def locks(self) -> set[int]:
        """Descriptors of the locks to hold until the job has its folder."""
        return {self.jobs, self.copies} - {-1}


def start(request: Request) -> None:
    """Answer op ``start``: start as many jobs at once as the system allows before waiting for any.

    ``begun`` is false if nothing requested is running or ever will: for all jobs with an error of the whole call,
    else for one job. It is never false when the same jobs were requested before.

    With ``attempt``, the jobs are those that op ``hold`` has made: 2 or more begins one again that was ended from
    outside, and ``why`` says how.
    """
    again = request.get("again", is_flag, default=False)
    to_clean = request.get("clean", is_list, default=[])
    request.fields_of_errors["begun"] = again
    try:
        call, job_requests = read_call(request, again=again)
    except OSError as error:
        raise RequestError(job_folder.explain(str(error.filename or "The folder of the jobs"), error)) from error
    request.fields_of_errors["begun"] = True
    answers, are_starting = _start_all(call, job_requests)
    answer = {"jobs": answers, "folder_id": job_folder.make_folder_id(call.jobs), "now": time.time()}
    if to_clean:
        from remote_tool.agent.cleaning import clean  # noqa: PLC0415 - few starts have something to remove

        # A job that is still being started has no folder yet that would keep its copy.
        copies = -1 if are_starting else call.copies
        answer["cleaned"] = clean.remove_some(call.jobs, request, _CLEAN_SECONDS, copies)
    reserved = _describe_reserved(job_requests)
    if reserved:
        answer["reserved"] = reserved
    request.answer({**answer, **_low_space(request, call.folders)})
    if _has_other_versions(call.folders):
        leftovers.remove_old_versions(call.folders.scripts)


def _describe_reserved(jobs: List[RequestedJob]) -> str:
    """Warn when jobs that reserve no GPU may use GPUs that others have reserved."""
    if all(job.spec["gpu_count"] for job in jobs) or not have_leases():
        return ""
    # They have started: nothing may fail now.
    with suppress(OSError):
        from remote_tool.agent.jobs import reserved  # noqa: PLC0415 - only where GPUs have been leased

        return reserved.describe_reserved(jobs)
    return ""


def _low_space(request: Request, folders: Folders) -> Dict[str, int]:
    """Return the free space when below the threshold that the client gave."""
    least = request.get("min_free", limits.is_min_free, default=[0, 0])
    free, total = limits.disk_space_of(folders.project)
    return {"free": free, "total": total} if limits.is_low(free, total, least) else {}


def _has_other_versions(folders: Folders) -> bool:
    # The start is answered already; if the folder cannot be read now, the next start checks again.
    with suppress(OSError):
        return sum(name.startswith("supervisor-") for name in os.listdir(folders.scripts)) > 1
    return False


def read_call(request: Request, *, again: bool) -> Tuple[Call, List[RequestedJob]]:
    """Validate the whole request; if refused here, nothing has started."""
    folders = request.folders()
    _bring_home(folders)
    asked = request.get("jobs", is_list)
    attempt = request.get("attempt", is_count, default=0)
    try:
        active = activation.load_activation(folders.activation)
        copies = _lock_copies(asked, folders)
        held = new_folder.read_held(folders.jobs, asked) if attempt else {}
        job_requests = [check_job(job, active, folders, copies, held.get(job.get("id"))) for job in asked]
        for job in job_requests:
            supervise.load_for(job)
    except ActivationError as error:
        raise RequestError(str(error), hint="remote-tool setup") from error
    jobs = _open_jobs(folders)
    _refuse_half_a_project(jobs, folders, job_requests)
    new_folder.remove_abandoned(jobs)
    limits_now = resource.getrlimit(resource.RLIMIT_NOFILE)
    why = request.get("why", is_text, default="")
    return Call(jobs, folders, again, limits_now, -1 if copies is None else copies.folder, attempt, why), job_requests


def _bring_home(folders: Folders) -> None:
    """Bring the output of lost jobs from their copies into the project."""
    if os.path.isdir(folders.copies):
        from remote_tool.agent.frozen import home  # noqa: PLC0415 - few projects have copies

        home.bring_pending(folders)


def _lock_copies(asked: List[Any], folders: Folders) -> Optional[Copies]:
    """Return the copies of the project, if a job runs in one."""
    if not any(isinstance(job, dict) and job.get("copy") for job in asked):
        return None
    from remote_tool.agent.frozen.copies import Copies  # noqa: PLC0415 - few projects have copies

    return Copies(folders)


def _open_jobs(folders: Folders) -> int:
    """Open the folder of all jobs, and block ``clean --all`` until the jobs have their folders."""
    jobs = job_folder.open_jobs_folder(folders.jobs, create=True)
    assert jobs is not None
    try:
        fcntl.flock(jobs, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RequestError("remote-tool is being removed from this server", hint="remote-tool prepare") from None
    except OSError:
        pass  # a file system without locks
    if not os.path.exists(folders.activation):
        raise RequestError("remote-tool was removed from this server", hint="remote-tool prepare")
    return jobs


def _start_all(call: Call, job_requests: List[RequestedJob]) -> Tuple[List[Dict[str, Any]], bool]:
    """Start as many jobs at once as the limit of open files allows.

    Return their answers, up to a maximum length, and whether any of all jobs is still being started.
    """
    deadline = time.monotonic() + _START_SECONDS
    at_once = job_folder.allow_open_files(len(job_requests))
    answers: List[Dict[str, Any]] = []
    size, are_starting = 0, False
    for first in range(0, len(job_requests), at_once):
        pending = _begin_all(call, job_requests[first : first + at_once])
        for job in pending:
            answer = _finish(call, job, deadline)
            are_starting = are_starting or answer.get("state") == "starting"
            size += len(strict_json.encode(answer))
            if size <= _ANSWER_LIMIT:
                answers.append(answer)
    return answers, are_starting


def _refuse_half_a_project(jobs: int, folders: Folders, job_requests: List[RequestedJob]) -> None:
    """Refuse new starts after an incomplete sync; jobs that exist already do not depend on it, nor those in copies."""
    here = [job for job in job_requests if job.copy is None]
    if not all(job_folder.exists(jobs, job.spec["id"]) for job in here):
        folders.refuse_half_a_project()


def _begin_all(call: Call, job_requests: List[RequestedJob]) -> List[PendingStart]:
    arrivals: Tuple[int, ...] = ()
    if any(job.queue is not None and job.queue.slots for job in job_requests):
        with suppress(OSError):
            arrivals = os.pipe()
    try:
        return [_begin(call, _with_arrivals(job, arrivals)) for job in job_requests]
    finally:
        for descriptor in arrivals:
            os.close(descriptor)


def _with_arrivals(job: RequestedJob, arrivals: Tuple[int, ...]) -> RequestedJob:
    """Let a job for a slot know when the others of its request have their places: they begin in their order."""
    if job.queue is None or not job.queue.slots:
        return job
    return job._replace(queue=job.queue._replace(arrivals=arrivals))


def _begin(call: Call, job: RequestedJob) -> PendingStart:
    """Fork the job's supervisor, which also creates its folder: jobs wait for the disk in parallel."""
    try:
        first_message, writer = os.pipe()
    except OSError as error:
        return PendingStart(job.spec, error=job_folder.explain("A pipe to the supervisor", error))
    try:
        pid = os.fork()
    except OSError as error:
        os.close(first_message)
        return PendingStart(job.spec, error=job_folder.explain("The supervisor", error))
    else:
        if pid == 0:
            _become_supervisor(call, job, writer)
        return PendingStart(job.spec, first_message)
    finally:
        os.close(writer)


def _become_supervisor(call: Call, job: RequestedJob, writer: int) -> NoReturn:
    """After the fork: create the job's folder and supervise the command."""
    what = f"{call.folders.jobs}/{job.spec['id']}"
    try:
        arrivals = () if job.queue is None else job.queue.arrivals
        umask = supervise.leave_client({*call.locks, writer, *arrivals})
        # The job's own programs may use select(), which takes no descriptor above 1023.
        resource.setrlimit(resource.RLIMIT_NOFILE, call.open_files)
        plan = _plan(call, job)
        for lock in call.locks:
            os.close(lock)
        # The client may have disconnected; the job continues.
        with suppress(BrokenPipeError):
            os.write(writer, _ALREADY if plan is None else _MADE)
        if plan is not None:
            supervise.supervise(plan, writer, umask)
    except OSError as error:
        os.write(writer, _FAILED + job_folder.explain(what, error).encode("utf-8", "replace"))
    except BaseException as error:  # noqa: BLE001 - the client gets it, and this must never return
        os.write(writer, _FAILED + f"{what}: {error!r:.500}".encode("utf-8", "replace"))
    finally:
        os._exit(1)


def _plan(call: Call, job: RequestedJob) -> Optional[Plan]:
    """Create the job's folder and return the supervisor's plan; None when another start has created it."""
    if call.attempt:
        taken = new_folder.take_over(call.jobs, job, call.why if call.attempt > 1 else "")
        made, job = (None, job) if taken is None else taken
    else:
        made = new_folder.make_folder(call.jobs, job)
    if made is None:
        return None
    project = job.copy.code if job.copy else call.folders.project
    return Plan(
        job,
        made.folder,
        f"{call.folders.jobs}/{job.spec['id']}",
        made.reserve,
        made.locked,
        os.path.join(project, job.spec["workdir"]),
        job.environment,
        job.script,
    )


def _finish(call: Call, pending: PendingStart, deadline: float) -> Dict[str, Any]:
    """Wait until a job runs or is known not to, and return the answer of its supervisor and its folder."""
    answer: Dict[str, Any] = {"id": pending.job_id, "spec": pending.spec, "already": False, "begun": True}
    answer["started"] = answer["ended"] = None
    try:
        message = _read_first_message(pending, deadline)
        if message is None:
            # The machine is slow, and the job may still start.
            return {**answer, "state": "starting"}
        # A job that cannot be started now may have been started before.
        folder = job_folder.open_job(call.jobs, pending.job_id)
        if folder is None and message == _MADE:
            return {**answer, "error": "its folder was removed"}
        if folder is None:
            why = message[len(_FAILED) :].decode("utf-8", "replace") or "its supervisor was killed before it started"
            return {**answer, "error": why, "begun": call.again}
        answer["already"] = message not in {_MADE, b""}
        try:
            _wait_for_message(folder, pending, answer, deadline)
        finally:
            os.close(folder)
    except OSError as error:
        answer["error"] = job_folder.explain(f"{call.folders.jobs}/{pending.job_id}", error)
    finally:
        if pending.first_message >= 0:
            os.close(pending.first_message)
    return answer


def _read_first_message(pending: PendingStart, deadline: float) -> Optional[bytes]:
    """Return a supervisor's first message: empty if it was killed, None if still to come."""
    if pending.first_message < 0:
        return _FAILED + pending.error.encode("utf-8")
    return os.read(pending.first_message, 4096) if _can_be_read(pending.first_message, deadline) else None


def _can_be_read(descriptor: int, deadline: float) -> bool:
    """Wait for bytes or their end with poll(): select() takes no descriptor above 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def _wait_for_message(folder: int, pending: PendingStart, answer: Dict[str, Any], deadline: float) -> None:
    try:
        if answer["already"]:
            _wait_for_other(folder, pending.job_id, deadline)
        else:
            _can_be_read(pending.first_message, deadline)
        for key, name in (("spec", SPEC), ("ended", ENDED), ("started", STARTED)):
            answer[key] = job_folder.read_record(folder, name, pending.job_id)
    except RecordError as error:
        answer["error"] = str(error)
    if answer["ended"] is not None and _never_ran(answer["ended"]):
        answer["state"], answer["reason"] = "failed", answer["ended"]["reason"][: limits.LONGEST_REASON]
    if answer["started"] is None and answer["ended"] is None and "error" not in answer:
        # As above: a slow machine.
        answer["state"] = "queued" if job_folder.exists(folder, job_folder.QUEUED) else "starting"


def _never_ran(ended: Record) -> bool:
    return not ended["killed"] and ended["exit_code"] is None and ended["signal"] is None


def _wait_for_other(folder: int, job_id: str, deadline: float) -> None:
    """Wait while another process starts the job."""
    while time.monotonic() < deadline:
        names = (STARTED, ENDED, job_folder.QUEUED)
        if any(job_folder.exists(folder, name) for name in names):
            return
        if states.judge(folder, job_id, states.scan()).state != "starting":
            return
        time.sleep(0.02)
