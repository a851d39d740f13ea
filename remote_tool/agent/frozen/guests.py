"""The jobs of a copy until their output has come home: a file for each, ``guests/<job id>``.

It appears before the command starts, complete: when it was made, by the clock of the file system, and the names that
were links to the project's own. At the end of the job it gets another name until the whole copy has been brought home.
"""

from __future__ import annotations

import os
from contextlib import suppress

from remote_tool.agent import states
from remote_tool.protocol import job_folder
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import SPEC, RecordError, is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, FrozenSet, List, Optional

    from remote_tool.agent.states import HostSnapshot

FOLDER = "guests"
_OVER = ".over"
_LARGEST = 256 * 1024 * 1024


class Guest(NamedTuple):
    """A job in a copy.

    Attributes:
        job_id: The job.
        is_over: Whether its supervisor has finished with it.
        since: When it began, in nanoseconds of the file system's clock; 0 if unknown.
        linked: The names that were links to the project's own when it began.
    """

    job_id: str
    is_over: bool
    since: int
    linked: FrozenSet[str]


def enter(copy: str, job_id: str, link: Callable[[], List[str]]) -> None:
    """Record a job in a copy before its command starts, and make the copy's links.

    Args:
        copy: The copy's folder.
        job_id: The job.
        link: Makes the links and returns their names.

    Raises:
        OSError: The disk cannot be written.
    """
    folder = f"{copy}/{FOLDER}"
    make_folder(copy)
    temporary = f"{folder}/.{os.urandom(8).hex()}"
    try:
        with open(temporary, "xb") as file:
            # What the project has from now on, the job may not have seen.
            since = os.fstat(file.fileno()).st_ctime_ns
            file.write(b"\0".join([b"%d" % since, *map(os.fsencode, link())]))
        os.rename(temporary, f"{folder}/{job_id}")
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def leave(copy: str, job_id: str) -> None:
    """Note that a job has ended; its output may still be in the copy."""
    with suppress(FileNotFoundError):
        os.rename(f"{copy}/{FOLDER}/{job_id}", f"{copy}/{FOLDER}/{job_id}{_OVER}")


def forget(copy: str, job_ids: List[str]) -> None:
    """Remove the records of jobs after their output has come home."""
    make_folder(copy)
    for name in (each + end for each in job_ids if each for end in ("", _OVER)):
        with suppress(FileNotFoundError):
            os.unlink(f"{copy}/{FOLDER}/{name}")


def make_folder(copy: str) -> None:
    """Make the folder of a copy's guests, which says that they are all known."""
    with suppress(FileExistsError):
        os.mkdir(f"{copy}/{FOLDER}", 0o700)


def note_all(copy: str, job_ids: List[str]) -> None:
    """Note the jobs that may have begun in a copy of an older version.

    Raises:
        OSError: The disk cannot be written.
    """
    temporary = f"{copy}/.{os.urandom(8).hex()}"
    os.mkdir(temporary, 0o700)
    for each in job_ids:
        with open(f"{temporary}/{each}", "xb"):
            pass
    os.rename(temporary, f"{copy}/{FOLDER}")


def guests_of(copy: str) -> Optional[List[Guest]]:
    """Return the jobs in a copy, oldest first; None for a copy of an older version, which does not know them."""
    try:
        names = os.listdir(f"{copy}/{FOLDER}")
    except FileNotFoundError:
        return None
    found = [_read(f"{copy}/{FOLDER}/{name}", name) for name in names if is_job_id(_id_of(name))]
    return sorted(found, key=lambda guest: (guest.since, guest.job_id))


def _id_of(name: str) -> str:
    return name[: -len(_OVER)] if name.endswith(_OVER) else name


def _read(path: str, name: str) -> Guest:
    try:
        with open(path, "rb") as file:
            since, *linked = file.read(_LARGEST).split(b"\0")
        return Guest(_id_of(name), name.endswith(_OVER), int(since), frozenset(map(os.fsdecode, linked)))
    except (FileNotFoundError, ValueError):
        return Guest(_id_of(name), name.endswith(_OVER), 0, frozenset())


class ProjectJobs:
    """The jobs of a project, looked at to learn whether they may still write into their copies.

    Attributes:
        name: Of their folder.
    """

    def __init__(self, path: str) -> None:
        """Initialize with the folder of all jobs."""
        self.name = os.path.basename(path)
        self._path = path
        self._host: Optional[HostSnapshot] = None
        self._copies: Optional[Dict[str, List[str]]] = None

    def may_write(self, job_id: str) -> bool:
        """Return whether a job has a supervisor or a process, or this cannot be determined."""
        try:
            return self._may_write(job_id)
        except (OSError, RecordError, job_folder.FolderError):
            return True

    def _may_write(self, job_id: str) -> bool:
        jobs = job_folder.open_jobs_folder(self._path)
        if jobs is None:
            return False
        try:
            folder = job_folder.open_job(jobs, job_id)
        finally:
            os.close(jobs)
        if folder is None:
            return False
        try:
            # Only if no supervisor looks after it, all processes are searched.
            if states.is_looked_after(folder):
                return True
            self._host = self._host or states.scan()
            status = states.judge(folder, job_id, self._host)
            return bool(status.members) or not (status.is_finished or status.state == "lost")
        finally:
            os.close(folder)

    def of_copy(self, name: str) -> List[str]:
        """Return the jobs with a copy in their records, oldest first."""
        if self._copies is None:
            self._copies = self._read_copies()
        return self._copies.get(name, [])

    def _read_copies(self) -> Dict[str, List[str]]:
        found: Dict[str, List[str]] = {}
        try:
            jobs = job_folder.open_jobs_folder(self._path)
        except (OSError, job_folder.FolderError):
            return found
        if jobs is None:
            return found
        try:
            for job_id in sorted(filter(is_job_id, os.listdir(jobs))):
                with suppress(OSError, RecordError):
                    found.setdefault(_copy_of(jobs, job_id), []).append(job_id)
        finally:
            os.close(jobs)
        return found


def _copy_of(jobs: int, job_id: str) -> str:
    folder = job_folder.open_job(jobs, job_id)
    if folder is None:
        return ""
    try:
        return str((job_folder.read_record(folder, SPEC, job_id) or {}).get("copy") or "")
    finally:
        os.close(folder)
