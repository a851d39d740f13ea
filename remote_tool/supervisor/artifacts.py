"""Telling which files a job has written, of those that are wanted at home.

A job wrote what changed since its command began and was not written again after its end, by the times that the file
system itself gives: no other clock is asked. What was sent with the project is not told, nor what lies in our folders.
"""

from __future__ import annotations

import os
import stat

from . import job_files
from .artifact_patterns import ArtifactPattern, PatternError, read_patterns
from .artifact_search import Found, Search, newest_units
from .named_tuple import NamedTuple
from .records import ENDED, SPEC, STARTED, RecordError
from .requests import Folders, Request, is_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, List, Optional, Set, Tuple

# Of a job; more are no artifacts that somebody wants to have here.
MOST_FILES = 10_000
_FILES_IN_FRAME = 500
_LARGEST_LIST = 512 * 1024 * 1024


class _Project(NamedTuple):
    """The project here: open, which folders in it are ours, and which files were sent."""

    folder: int
    own: FrozenSet[Tuple[int, int]]
    sent: Set[str]


class _Span(NamedTuple):
    """When a job ran, in nanoseconds of the file system's clock; the end is None while it runs."""

    start: int
    end: Optional[int]

    def has(self, status: os.stat_result) -> bool:
        """Whether a file was written in it; a job may give a file another time, but not another time of change."""
        if status.st_ctime_ns < self.start:
            return False
        return self.end is None or min(status.st_mtime_ns, status.st_ctime_ns) <= self.end


class _File(NamedTuple):
    """A file that is wanted; one that only a number of the newest asks for gives way to newer ones."""

    status: os.stat_result
    gives_way: bool


class _Listing:
    """What is told of a job.

    Attributes:
        files: By path.
        older: How many files match that the job did not write.
        is_cut: Whether there are more than are told.
    """

    def __init__(self) -> None:
        self.files: Dict[str, _File] = {}
        self.older = 0
        self.is_cut = False

    def add(self, found: List[Found], *, gives_way: bool) -> None:
        for each in found:
            known = self.files.get(each.path)
            if known is None and len(self.files) >= MOST_FILES:
                self.is_cut = True
                return
            self.files[each.path] = _File(each.status, gives_way and (known is None or known.gives_way))

    def told(self) -> List[List[Any]]:
        """Return ``[path, size, nanoseconds, inode, gives way]`` of each file."""
        return [
            [path, file.status.st_size, file.status.st_mtime_ns, file.status.st_ino, file.gives_way]
            for path, file in sorted(self.files.items())
        ]


def artifacts(request: Request) -> None:
    """Answer op ``artifacts``: the files of each job, told in pieces, and its end."""
    folders = request.folders()
    asked = request.get("jobs", is_list)
    jobs = job_files.open_jobs_folder(folders.jobs)
    project = _open_project(folders)
    for job in asked:
        _answer(request, jobs, project, job if isinstance(job, dict) else {})
    request.answer({"done": True})


def _open_project(folders: Folders) -> _Project:
    # The project's folder itself may be a link of its user, to a larger disk.
    folder = os.open(folders.project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    own = set()
    for path in (folders.jobs, folders.scripts):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        own.add((status.st_dev, status.st_ino))
    return _Project(folder, frozenset(own), _read_sent(folders))


def _read_sent(folders: Folders) -> Set[str]:
    """Return the names in the list of sent files, which has ``size time name`` for each."""
    try:
        with open(folders.sent_files, "rb") as file:
            records = file.read(_LARGEST_LIST).split(b"\0")
    except OSError:
        return set()
    return {os.fsdecode(record.split(b" ", 2)[2]) for record in records if record.count(b" ") > 1}


def _answer(request: Request, jobs: Optional[int], project: _Project, asked: Dict[str, Any]) -> None:
    job_id = str(asked.get("id"))
    try:
        listing = _list_job(jobs, project, job_id, asked.get("patterns"))
    except (RecordError, PatternError, OSError) as error:
        # What else a disk says may pass, and the client asks again.
        gone = not isinstance(error, OSError) or isinstance(error, FileNotFoundError)
        request.answer({"job": job_id, "error": str(getattr(error, "strerror", None) or error), "gone": gone})
        return
    files = listing.told()
    for start in range(0, len(files), _FILES_IN_FRAME):
        request.answer({"job": job_id, "files": files[start : start + _FILES_IN_FRAME]})
    request.answer({"job": job_id, "end": True, "older": listing.older, "cut": listing.is_cut})


def _list_job(jobs: Optional[int], project: _Project, job_id: str, asked: object) -> _Listing:
    folder = job_files.open_job(jobs, job_id)
    if folder is None:
        raise RecordError("there is no such job on this server")
    try:
        patterns = read_patterns(_patterns_of(folder, job_id) if asked is None else asked)
        span = _span_of(folder)
    finally:
        os.close(folder)
    listing = _Listing()
    for pattern in patterns if span else ():
        assert span is not None
        _look(project, pattern, span, listing)
    return listing


def _patterns_of(folder: int, job_id: str) -> object:
    spec = job_files.read_record(folder, SPEC, job_id)
    return (spec or {}).get("artifacts") or []


def _span_of(folder: int) -> Optional[_Span]:
    """Return when a job ran; None for one whose command has not begun."""
    start, end = (_written_at(folder, name) for name in (STARTED, ENDED))
    return None if start is None else _Span(start, end)


def _written_at(folder: int, name: str) -> Optional[int]:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else None


def _look(project: _Project, pattern: ArtifactPattern, span: _Span, listing: _Listing) -> None:
    search = Search(project.folder, project.own)
    found = [each for each in search.find(pattern.glob) if each.path not in project.sent]
    written = [each for each in found if span.has(each.status)]
    listing.older += len(found) - len(written)
    listing.is_cut = listing.is_cut or search.is_cut
    if pattern.newest is not None:
        units = set(newest_units(written, pattern.newest))
        written = [each for each in written if each.unit in units]
    listing.add(written, gives_way=pattern.newest is not None)
