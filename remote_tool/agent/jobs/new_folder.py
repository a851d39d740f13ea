"""Create a job's folder and rename it into place, so that it appears complete and exactly once."""

from __future__ import annotations

import errno
import fcntl
import os

from remote_tool.agent.cleaning import removed_jobs
from remote_tool.agent.supervisor.records import RESERVED_BYTES
from remote_tool.protocol import job_folder, setup_script
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import ENDED, ENTRY, SPEC, encode_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from remote_tool.agent.supervisor.plan import RequestedJob
    from remote_tool.protocol.records import Record

_TEMPORARY = ".starting-"
_TEMPORARY_SECONDS = 3600.0


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


def make_folder(jobs: int, job: RequestedJob) -> Optional[NewFolder]:
    """Create a job's folder; None when another process has created it.

    Args:
        jobs: Descriptor of the folder of all jobs.
        job: The job.
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
    command = job.command
    if job.setup:
        command = setup_script.put_before_job(command, job.spec["workdir"])
        job_folder.write_file(folder, setup_script.FILE, _as_script(job.setup))
    job_folder.write_file(folder, job_folder.COMMAND, _as_script(command))
    _make_outputs(folder)
    if job.command_wrapper is not None:
        entry = {
            "id": job.spec["id"],
            "ask": job.command_wrapper.ask,
            "end": job.command_wrapper.end,
        }
        job_folder.write_file(folder, ENTRY, encode_record(entry))
    job_folder.write_file(folder, SPEC, encode_record(job.spec))
    job_folder.sync_folder(folder)


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
