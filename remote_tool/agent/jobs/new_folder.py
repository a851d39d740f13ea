"""Create a job's folder and rename it into place, so that it appears complete and exactly once."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress

from remote_tool.agent.cleaning import removed_jobs
from remote_tool.agent.supervisor.records import RESERVED_BYTES
from remote_tool.protocol import job_folder, setup_script
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.limits import MOST_RETRIES
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import ENDED, ENTRY, HELD, SPEC, STARTED, STOP, RecordError, encode_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from remote_tool.agent.supervisor.plan import RequestedJob
    from remote_tool.protocol.records import Record

_TEMPORARY = ".starting-"
_TEMPORARY_SECONDS = 3600.0
# What the scripts of an MPI launch write, see remote_tool.launchers.mpi.
_OF_MPI = "mpi-"
# How an attempt ended of which nothing is known.
BEGUN_AGAIN = "begun again"


class NewFolder(NamedTuple):
    """A job's folder that this process created.

    Attributes:
        folder: Descriptor of the folder.
        reserve: Descriptor of the file that reserves space for the final record.
        locked: Whether the file system could lock the reserve.
    """

    folder: int
    reserve: int
    locked: bool


def make_folder(jobs: int, job: RequestedJob, held_by: str = "") -> Optional[NewFolder]:
    """Create a job's folder; None when another process has created it.

    Args:
        jobs: Descriptor of the folder of all jobs.
        job: The job.
        held_by: What starts it later; empty: this program does so now.
    """
    job_id = job.spec["id"]
    if job_folder.exists(jobs, job_id):
        return None
    temporary = f"{_TEMPORARY}{os.urandom(8).hex()}"
    folder = job_folder.create_folder(temporary, jobs)
    reserve = -1
    try:
        reserve = job_folder.create_file(folder, job_folder.RESERVE)
        locked = _lock(reserve)
        if held_by:
            held = {"id": job_id, "by": held_by, "reference": "", "reason": "it is being submitted"}
            job_folder.write_file(folder, HELD, encode_record(held))
        _fill_folder(folder, reserve, job)
        _move_into_place(jobs, temporary, job_id)
    except OSError:
        _close(folder, reserve)
        _remove_folder(jobs, temporary)
        if job_folder.exists(jobs, job_id):
            return None
        raise
    job_folder.sync_folder(jobs)
    return NewFolder(folder, reserve, locked)


def hold(jobs: int, job: RequestedJob, by: str) -> bool:
    """Create the folder of a job that something else starts later; False when it exists already."""
    made = make_folder(jobs, job, by)
    if made is None:
        return False
    # Whoever has the lock watches over the job.
    _close(made.folder, made.reserve)
    return True


def read_held(jobs: str, asked: List[Any]) -> Dict[Any, Record]:
    """Return the records of jobs that are held, by id."""
    folder = job_folder.open_jobs_folder(jobs)
    found: Dict[Any, Record] = {}
    for job_id in [str(job.get("id")) for job in asked if isinstance(job, dict)]:
        job = job_folder.open_job(folder, job_id)
        if job is not None:
            try:
                spec = job_folder.read_record(job, SPEC, job_id)
            except RecordError as error:
                raise RequestError(f"Job {job_id}: {error}") from error
            finally:
                os.close(job)
            if spec is not None:
                found[job_id] = spec
    return found


def take_over(jobs: int, job: RequestedJob, why: str) -> Optional[Tuple[NewFolder, RequestedJob]]:
    """Take the folder of a job that was held, to start it; None when it was started before, or shall not start.

    Args:
        jobs: Descriptor of the folder of all jobs.
        job: The job.
        why: Why it is started once more, such as ``requeued``; empty: it is started only if it has not ended.

    Returns:
        The folder, and the job with its earlier attempts.
    """
    folder = job_folder.open_job(jobs, job.spec["id"])
    if folder is None:
        raise FileNotFoundError(errno.ENOENT, "its folder was removed")
    reserve = -1
    try:
        lock_records(folder)
        earlier = _earlier_attempts(folder, job.spec["id"], why)
        if earlier is not None:
            reserve, locked = _reserve_again(folder)
            if reserve >= 0:
                job = job._replace(earlier=earlier)
                _renew(folder, job)
                unlock_records(folder)
                return NewFolder(folder, reserve, locked), job
    except RecordError as error:
        _close(folder, reserve)
        raise OSError(errno.EINVAL, str(error)) from error
    except OSError:
        _close(folder, reserve)
        raise
    _close(folder)
    return None


def lock_records(folder: int) -> None:
    """Wait until no other program changes the records of a job that is held; where nothing can be locked, go on."""
    with suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_EX)


def unlock_records(folder: int) -> None:
    """Let other programs change the records; closing the folder does so as well."""
    with suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_UN)


def begin_again(folder: int, job_id: str, reason: str, why: str) -> None:
    """Let a job wait for its next attempt, as if it had not begun."""
    earlier = _earlier_attempts(folder, job_id, why)
    held = job_folder.read_record(folder, HELD, job_id)
    if earlier is not None and held is not None:
        record = {**held, "reason": reason, "attempts": list(earlier), "ending": False}
        job_folder.write_record(folder, HELD, record, replace=True)
        for name in (STARTED, ENDED):
            job_folder.remove(folder, name)


def _earlier_attempts(folder: int, job_id: str, why: str) -> Optional[Tuple[str, ...]]:
    """Return how attempts at a job ended before; None if there is to be no other."""
    started = job_folder.read_record(folder, STARTED, job_id)
    ended = job_folder.read_record(folder, ENDED, job_id)
    held = job_folder.read_record(folder, HELD, job_id) or {}
    if job_folder.exists(folder, STOP) or (ended is not None and not why):
        return None
    known = held.get("attempts") or ()
    return (*known, *(() if started is None else (why or BEGUN_AGAIN,)))[-MOST_RETRIES:]


def _reserve_again(folder: int) -> Tuple[int, bool]:
    """Open and lock the reserve, which an earlier end may have used; a descriptor of -1 if another process has it."""
    if job_folder.exists(folder, job_folder.RESERVE):
        reserve = job_folder.open_file_beneath(folder, job_folder.RESERVE, for_writing=True)
    else:
        reserve = job_folder.create_file(folder, job_folder.RESERVE)
        os.posix_fallocate(reserve, 0, RESERVED_BYTES)
    try:
        fcntl.flock(reserve, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(reserve)
        return -1, False
    except OSError:
        return reserve, False
    return reserve, True


def _renew(folder: int, job: RequestedJob) -> None:
    """Write what is known only now, such as the addresses in the command, and forget the start before."""
    for name, data in _texts_of(job).items():
        temporary = f".{name}.{os.urandom(8).hex()}"
        job_folder.write_file(folder, temporary, data)
        job_folder.publish(folder, temporary, name, replace=True)
    # What an earlier attempt has left would count for this one.
    left = [name for name in os.listdir(folder) if name.startswith(_OF_MPI)]
    for name in (ENDED, STARTED, job_folder.BEGUN, setup_script.DONE, *left):
        job_folder.remove(folder, name)
    held = job_folder.read_record(folder, HELD, job.spec["id"])
    if held is not None:
        record = {**held, "attempts": list(job.earlier), "ending": False}
        job_folder.write_record(folder, HELD, record, replace=True)


def _move_into_place(jobs: int, temporary: str, job_id: str) -> None:
    """Give a finished folder its name: one of several programs succeeds, and none if ``clean`` has removed the job.

    Raises:
        OSError: There is such a job, or there was one.
    """
    os.rename(temporary, job_id, src_dir_fd=jobs, dst_dir_fd=jobs)
    try:
        # Only now: a start may be held up before this while its job is given up and removed.
        if removed_jobs.is_removed(jobs, job_id):
            raise FileExistsError(errno.EEXIST, "it has run, and was cleaned away")
    except OSError:
        os.rename(job_id, temporary, src_dir_fd=jobs, dst_dir_fd=jobs)
        raise


def give_up(jobs: int, spec: Record, ended: Record) -> bool:
    """Take the place of a job that never arrived, so that its start is refused; False if it is there, or was cleaned.

    Raises:
        OSError: It cannot be taken.
    """
    job_id = spec["id"]
    new = f"{_TEMPORARY}{os.urandom(8).hex()}"
    folder = job_folder.create_folder(new, jobs)
    try:
        _make_outputs(folder)
        job_folder.write_file(folder, ENDED, encode_record(ended))
        job_folder.write_file(folder, SPEC, encode_record(spec))
        job_folder.sync_folder(folder)
        _move_into_place(jobs, new, job_id)
    except OSError:
        _remove_folder(jobs, new)
        if job_folder.exists(jobs, job_id) or removed_jobs.is_removed(jobs, job_id):
            return False
        raise
    finally:
        os.close(folder)
    job_folder.sync_folder(jobs)
    return True


def _lock(reserve: int) -> bool:
    """Lock the file for as long as one of our processes has it open; return whether the file system can lock."""
    try:
        fcntl.flock(reserve, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _fill_folder(folder: int, reserve: int, job: RequestedJob) -> None:
    os.posix_fallocate(reserve, 0, RESERVED_BYTES)
    _make_outputs(folder)
    for name, data in _texts_of(job).items():
        job_folder.write_file(folder, name, data)
    job_folder.sync_folder(folder)


def _texts_of(job: RequestedJob) -> Dict[str, bytes]:
    """Return the files that describe a job; the last one makes it complete."""
    files = {job_folder.COMMAND: _as_script(job.command)}
    if job.setup:
        files[job_folder.COMMAND] = _as_script(setup_script.put_before_job(job.command, job.spec["workdir"]))
        files[setup_script.FILE] = _as_script(job.setup)
    if job.command_wrapper is not None:
        entry = {"id": job.spec["id"], "ask": job.command_wrapper.ask, "end": job.command_wrapper.end}
        files[ENTRY] = encode_record(entry)
    return {**files, SPEC: encode_record(job.spec)}


def _make_outputs(folder: int) -> None:
    os.close(job_folder.create_file(folder, job_folder.OUT))
    os.close(job_folder.create_file(folder, job_folder.ERR))
    os.close(job_folder.create_folder(job_folder.RANKS, folder))


def _as_script(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape") + b"\n"


def remove_abandoned(jobs: int) -> None:
    """Remove the temporary folders of starts that were killed."""
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
    """Return the file system's time, which on a network disk may differ from this machine's clock."""
    name = f".clock-{os.urandom(8).hex()}"
    file = job_folder.create_file(folder, name)
    try:
        return os.fstat(file).st_mtime
    finally:
        os.close(file)
        job_folder.remove(folder, name)


def _remove_folder(parent: int, name: str) -> None:
    """Remove the folder of a job that never ran, as far as possible."""
    try:
        folder = job_folder.open_folder(name, parent)
        for entry in os.listdir(folder):
            if entry == job_folder.RANKS:
                os.rmdir(entry, dir_fd=folder)
            else:
                job_folder.remove(folder, entry)
        os.close(folder)
        os.rmdir(name, dir_fd=parent)
    except OSError:
        pass


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)
