"""Starting jobs: the folder that appears decides who starts, and a start that was asked for twice happens once."""

from __future__ import annotations

import fcntl
import os
import select
import time

from . import activation, job_files, processes, setup_script, states, supervise
from .activation import Activation, ActivationError, Origin
from .launch_cause import Membership, read_membership
from .log_limit import DEFAULT_LIMIT, SMALLEST_LIMIT
from .named_tuple import NamedTuple
from .records import (
    COMMAND_LIMIT,
    ENDED,
    ENTRY,
    SCHEMA,
    SPEC,
    STARTED,
    RecordError,
    check_record,
    encode_record,
    is_job_id,
)
from .requests import Folders, Request, RequestError, is_list, is_text
from .suppressing import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Optional

    from .entering import Door
    from .records import Record

# The answer waits this long for the command to run.
_START_SECONDS = 10.0
# What a supervisor tells first: its job's folder is made, another one's is there, or why there is none.
_MADE = b"m"
_ALREADY = b"a"
_FAILED = b"f"
_TEMPORARY = ".starting-"
_TEMPORARY_SECONDS = 3600.0
_SPEC_FIELDS = (
    *("server", "tags", "launch_id", "node_rank", "rank_offset", "grace", "snapshot", "artifacts"),
    "created_at",
)
_DEFAULTS: Dict[str, Any] = {"tags": [], "launch_id": "", "grace": 10.0, "snapshot": "", "artifacts": []}


class Wanted(NamedTuple):
    """A job that was asked for, checked."""

    spec: Record
    command: str
    environment: Dict[bytes, bytes]
    membership: Optional[Membership] = None
    log_limit: int = DEFAULT_LIMIT
    door: "Optional[Door]" = None
    script: bytes = b""
    setup: str = ""


class Begun(NamedTuple):
    """A job whose start has been asked for.

    Attributes:
        told: A descriptor with the first word of its supervisor; it ends when the command runs, or is known not to.
        error: Why there is no supervisor.
    """

    job_id: str
    told: int = -1
    error: str = ""


def start(request: Request) -> None:
    """Answer op ``start``: every job is begun before any is waited for."""
    folders = request.folders()
    asked = request.get("jobs", is_list)
    try:
        active = activation.load_activation(folders.activation)
        wanted = [_check_job(job, active, folders) for job in asked]
    except ActivationError as error:
        raise RequestError(str(error), hint="remote-tool setup") from error
    if not os.path.isdir(folders.project):
        raise RequestError(f"{folders.project} is not there", hint="remote-tool rsync")
    jobs = job_files.open_jobs_folder(folders.jobs, create=True)
    assert jobs is not None
    _refuse_half_a_project(jobs, folders, wanted)
    _remove_abandoned(jobs)
    begun = [_begin(jobs, folders, job) for job in wanted]
    deadline = time.monotonic() + _START_SECONDS
    request.answer({"jobs": [_finish(jobs, folders, job, deadline) for job in begun], "now": time.time()})


def _refuse_half_a_project(jobs: int, folders: Folders, wanted: List[Wanted]) -> None:
    """Start nothing new on what a sync left half-way; a job that is there already did not need this copy."""
    try:
        with open(folders.sync_state, "rb") as file:
            whole = not file.read(64).startswith(b"incomplete")
    except OSError:
        return  # never synced by us: the user's own copy
    if not whole and not all(job_files.exists(jobs, job.spec["id"]) for job in wanted):
        raise RequestError(
            f"{folders.project} is not whole: its last sync did not finish, or still goes on", hint="remote-tool rsync"
        )


def _check_job(job: object, active: Activation, folders: Folders) -> Wanted:
    if not isinstance(job, dict) or not is_job_id(job.get("id")):
        raise RequestError("The request holds a job without a proper id")
    command = job.get("command")
    if not isinstance(command, str) or "\0" in command:
        raise RequestError(f"The command of job {job['id']} is no text")
    user = job.get("environment") or {}
    origin = Origin(folders.project, job["id"], str(job.get("server")))
    surroundings = _surround(job.get("entry"), active, user, origin, folders)
    spec = {
        **{name: job.get(name, _DEFAULTS.get(name)) for name in _SPEC_FIELDS},
        "schema": SCHEMA,
        "id": job["id"],
        "command": command[:COMMAND_LIMIT],
        "command_length": len(command),
        "environment_names": sorted(user),
        "received_at": time.time(),
        "place": processes.place(),
    }
    try:
        record = check_record(SPEC, spec, job["id"])
    except RecordError as error:
        raise RequestError(f"Job {job['id']}: {error}") from error
    log_limit = job.get("log_limit") or DEFAULT_LIMIT
    if type(log_limit) is not int or log_limit < SMALLEST_LIMIT:
        raise RequestError(f"Job {job['id']}: its log_limit cannot be {log_limit!r:.40}")
    setup = job.get("setup") or ""
    if not is_text(setup):
        raise RequestError(f"Job {job['id']}: its setup script is no text")
    membership = _read_membership(job.get("watch"), record)
    where = (surroundings.door, surroundings.script)
    return Wanted(record, command, surroundings.environment, membership, log_limit, *where, setup)


class Surroundings(NamedTuple):
    """What a command begins in: its environment, or that of a launch command and what is set behind it."""

    environment: Dict[bytes, bytes]
    door: "Optional[Door]" = None
    script: bytes = b""


def _surround(
    entry: Any,  # noqa: ANN401 - from the request, checked where it is read
    active: Activation,
    user: Dict[str, str],
    origin: Origin,
    folders: Folders,
) -> Surroundings:
    if entry is None:
        return Surroundings(activation.build_environment(os.environb, active, user, origin))
    from . import entering, inside  # noqa: PLC0415 - few jobs begin behind a launch command

    door = entering.read_door(entry, f"remote-tool-{origin.job_id}", folders)
    assert door is not None
    entering.make_home(door)
    environment = entering.outside_environment(os.environb)
    inside.wake_engine(door, environment)
    settings = entering.settings_for(door, active, user, origin)
    return Surroundings(environment, door, entering.job_script(door, settings, f"{folders.jobs}/{origin.job_id}"))


def _read_membership(watch: Any, spec: Record) -> Optional[Membership]:  # noqa: ANN401 - from the request, checked here
    """Return a node's place in its launch; its secret goes into no file."""
    if watch is None:
        return None
    try:
        return read_membership(watch, spec["node_rank"], spec["rank_offset"])
    except ValueError as error:
        raise RequestError(f"Job {spec['id']}: {error}") from error


def _begin(jobs: int, folders: Folders, wanted: Wanted) -> Begun:
    """Fork the job's supervisor, which makes its folder, too: so all jobs wait for the disk together."""
    told, tell = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(told)
        return Begun(wanted.spec["id"], error=job_files.explain("The supervisor", error))
    else:
        if pid == 0:
            _become_supervisor(jobs, folders, wanted, tell)
        return Begun(wanted.spec["id"], told)
    finally:
        os.close(tell)


def _become_supervisor(jobs: int, folders: Folders, wanted: Wanted, tell: int) -> NoReturn:
    """In the fork: make the job's folder, and supervise what is started in it."""
    what = f"{folders.jobs}/{wanted.spec['id']}"
    try:
        umask = supervise.leave_client({jobs, tell})
        plan = _prepare(jobs, folders, wanted)
        os.close(jobs)
        # Whoever asked may have gone; the job goes on.
        with suppress(BrokenPipeError):
            os.write(tell, _ALREADY if plan is None else _MADE)
        if plan is not None:
            supervise.supervise(plan, tell, umask)
    except OSError as error:
        os.write(tell, _FAILED + job_files.explain(what, error).encode("utf-8", "replace"))
    except BaseException as error:  # noqa: BLE001 - it is told to the client, and this must never return
        os.write(tell, _FAILED + f"{what}: {error!r:.500}".encode("utf-8", "replace"))
    finally:
        os._exit(1)


def _prepare(jobs: int, folders: Folders, wanted: Wanted) -> Optional[supervise.Plan]:
    """Make the whole folder beside and rename it: it appears complete, and only for one; None when it is there."""
    job_id = wanted.spec["id"]
    if job_files.exists(jobs, job_id):
        return None
    temporary = f"{_TEMPORARY}{os.urandom(8).hex()}"
    folder = job_files.create_folder(temporary, jobs)
    reserve = -1
    try:
        reserve = job_files.create_file(folder, job_files.RESERVE)
        locked = _lock(reserve)
        _fill_folder(folder, reserve, wanted)
        os.rename(temporary, job_id, src_dir_fd=jobs, dst_dir_fd=jobs)
    except OSError:
        _close(folder, reserve)
        _remove_folder(jobs, temporary)
        if job_files.exists(jobs, job_id):
            return None
        raise
    job_files.sync_folder(jobs)
    return supervise.Plan(
        job_id=job_id,
        folder=folder,
        path=f"{folders.jobs}/{job_id}",
        reserve=reserve,
        locked=locked,
        project=folders.project,
        environment=wanted.environment,
        grace=wanted.spec["grace"],
        place=wanted.spec["place"],
        membership=wanted.membership,
        log_limit=wanted.log_limit,
        door=wanted.door,
        script=wanted.script,
    )


def _lock(reserve: int) -> bool:
    """Lock the file for as long as a process of ours has it open; whether the file system can."""
    try:
        fcntl.flock(reserve, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _fill_folder(folder: int, reserve: int, wanted: Wanted) -> None:
    os.posix_fallocate(reserve, 0, supervise.RESERVED_BYTES)
    command = wanted.command
    if wanted.setup:
        command = setup_script.put_before_job(command)
        job_files.write_file(folder, setup_script.FILE, _as_script(wanted.setup))
    job_files.write_file(folder, job_files.COMMAND, _as_script(command))
    os.close(job_files.create_file(folder, job_files.OUT))
    os.close(job_files.create_file(folder, job_files.ERR))
    os.close(job_files.create_folder(job_files.RANKS, folder))
    if wanted.door is not None:
        entry = {"id": wanted.spec["id"], "ask": wanted.door.ask, "end": wanted.door.end}
        job_files.write_file(folder, ENTRY, encode_record(entry))
    job_files.write_file(folder, SPEC, encode_record(wanted.spec))
    job_files.sync_folder(folder)


def _as_script(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape") + b"\n"


def _finish(jobs: int, folders: Folders, begun: Begun, deadline: float) -> Dict[str, Any]:
    """Wait until a job runs, or is known not to, and return what its folder says."""
    answer: Dict[str, Any] = {"id": begun.job_id, "spec": None, "started": None, "ended": None, "already": False}
    if begun.error:
        return {**answer, "error": begun.error}
    try:
        # Of a supervisor that was killed nothing comes, and its folder says the rest.
        said = os.read(begun.told, 4096)
        if said.startswith(_FAILED):
            return {**answer, "error": said[len(_FAILED) :].decode("utf-8", "replace")}
        answer["already"] = said == _ALREADY
        folder = job_files.open_folder(begun.job_id, jobs)
        try:
            _wait_until_told(folder, begun, answer, deadline)
        finally:
            os.close(folder)
    except OSError as error:
        answer["error"] = job_files.explain(f"{folders.jobs}/{begun.job_id}", error)
    finally:
        os.close(begun.told)
    return answer


def _wait_until_told(folder: int, begun: Begun, answer: Dict[str, Any], deadline: float) -> None:
    try:
        if answer["already"]:
            _wait_for_other(folder, begun.job_id, deadline)
        else:
            select.select([begun.told], [], [], max(0.0, deadline - time.monotonic()))
        for key, name in (("spec", SPEC), ("ended", ENDED), ("started", STARTED)):
            answer[key] = job_files.read_record(folder, name, begun.job_id)
    except RecordError as error:
        answer["error"] = str(error)
    if answer["ended"] is not None and _never_ran(answer["ended"]):
        answer["state"], answer["reason"] = "failed", answer["ended"]["reason"]
    if answer["started"] is None and answer["ended"] is None and "error" not in answer:
        # A slow machine; it may yet start, so nothing else can be said.
        answer["state"] = "starting"


def _never_ran(ended: Record) -> bool:
    return not ended["killed"] and ended["exit_code"] is None and ended["signal"] is None


def _wait_for_other(folder: int, job_id: str, deadline: float) -> None:
    """Wait while the process that was first starts the job."""
    while time.monotonic() < deadline:
        if job_files.exists(folder, STARTED) or job_files.exists(folder, ENDED):
            return
        if states.judge(folder, job_id, states.look()).state != "starting":
            return
        time.sleep(0.02)


def _remove_abandoned(jobs: int) -> None:
    """Remove what starts that were killed half-way left beside the jobs."""
    found = [name for name in os.listdir(jobs) if name.startswith(_TEMPORARY)]
    now = _clock_of(jobs) if found else 0.0
    for name in found:
        try:
            age = now - os.stat(name, dir_fd=jobs, follow_symlinks=False).st_mtime
        except FileNotFoundError:
            continue
        if age > _TEMPORARY_SECONDS:
            _remove_folder(jobs, name)


def _clock_of(folder: int) -> float:
    """Return what time a folder's file system has: on a network disk each machine's own clock may be another."""
    name = f".clock-{os.urandom(8).hex()}"
    file = job_files.create_file(folder, name)
    try:
        return os.fstat(file).st_mtime
    finally:
        os.close(file)
        job_files.remove(folder, name)


def _remove_folder(parent: int, name: str) -> None:
    """Remove a job's folder that never ran anything; what cannot be removed stays."""
    try:
        folder = job_files.open_folder(name, parent)
        for entry in os.listdir(folder):
            if entry == job_files.RANKS:
                os.rmdir(entry, dir_fd=folder)
            else:
                job_files.remove(folder, entry)
        os.close(folder)
        os.rmdir(name, dir_fd=parent)
    except OSError:
        pass


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)
