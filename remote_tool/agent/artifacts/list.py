"""List the requested files that each job has written.

A job wrote the files that changed after its command began and not after its end, by the file system's own
timestamps. A path containing a job's id belongs to that job, if it could have written it. Any other file that two jobs
could have written is listed for both, and the client is notified.
Files sent with the project and files in our own folders are skipped.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress

from remote_tool.agent.artifacts.places import ArtifactFolder, Places
from remote_tool.agent.requests import Request, is_list
from remote_tool.protocol import job_folder
from remote_tool.protocol.artifact_patterns import ArtifactPattern, PatternError, of_job, read_patterns
from remote_tool.protocol.artifact_search import FoundArtifact, newest_units
from remote_tool.protocol.limits import MOST_ARTIFACTS
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import ENDED, SPEC, STARTED, RecordError, is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

_FILES_IN_FRAME = 500
_JOB_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{32}")


class _Span(NamedTuple):
    """The run time of a job, in nanoseconds of the file system's clock; the end is None while it runs."""

    start: int
    end: Optional[int]

    def has(self, status: os.stat_result) -> bool:
        """Return whether a file was written while the job ran, by its change time, which a job cannot set."""
        if status.st_ctime_ns < self.start:
            return False
        return self.end is None or min(status.st_mtime_ns, status.st_ctime_ns) <= self.end

    def overlaps(self, other: _Span) -> bool:
        return (self.end is None or other.start <= self.end) and (other.end is None or self.start <= other.end)


class _File(NamedTuple):
    """A matching file; under a newest-N pattern it gives way to newer ones."""

    status: os.stat_result
    gives_way: bool


class _NoSuchJobError(Exception):
    """There is no job with this id."""


class _Listing:
    """The files listed for a job.

    Attributes:
        files: By path.
        older: Number of matching files that the job did not write.
        is_cut: Whether files were left out for lack of space.
        shared: Files that another job could have written too.
    """

    def __init__(self) -> None:
        self.files: Dict[str, _File] = {}
        self.older = 0
        self.is_cut = False
        self.shared: List[str] = []

    def add(self, found: List[FoundArtifact], *, gives_way: bool) -> None:
        for each in found:
            known = self.files.get(each.path)
            if known is None and len(self.files) >= MOST_ARTIFACTS:
                self.is_cut = True
                return
            self.files[each.path] = _File(each.status, gives_way and (known is None or known.gives_way))

    def as_answer(self) -> List[List[Any]]:
        """Return ``[path, size, nanoseconds, inode, gives way]`` of each file."""
        return [
            [path, file.status.st_size, file.status.st_mtime_ns, file.status.st_ino, file.gives_way]
            for path, file in sorted(self.files.items())
        ]


def artifacts(request: Request) -> None:
    """Answer op ``artifacts``: each job's files in several frames, then a final one."""
    folders = request.folders()
    asked = request.get("jobs", is_list)
    lister = _Lister(Places(folders))
    for job in asked:
        _answer(request, lister, job if isinstance(job, dict) else {})
    request.answer({"done": True})


def _answer(request: Request, lister: _Lister, asked: Dict[str, Any]) -> None:
    job_id = str(asked.get("id"))
    try:
        listing = lister.list_job(job_id, asked.get("patterns"))
    except _NoSuchJobError as error:
        folder_id = job_folder.read_folder_id(lister.jobs)
        request.answer({"job": job_id, "error": str(error), "gone": folder_id != "", "folder_id": folder_id})
        return
    except (RecordError, PatternError, OSError) as error:
        # Only that of a pattern is permanent: the client asks again.
        why = str(getattr(error, "strerror", None) or error)
        request.answer({"job": job_id, "error": why, "gone": isinstance(error, PatternError)})
        return
    files = listing.as_answer()
    for start in range(0, len(files), _FILES_IN_FRAME):
        request.answer({"job": job_id, "files": files[start : start + _FILES_IN_FRAME]})
    shared = {"shared": len(listing.shared), "example": min(listing.shared, default="")}
    request.answer({"job": job_id, "end": True, "older": listing.older, "cut": listing.is_cut, **shared})


class _Job(NamedTuple):
    """A job's run time and requested files."""

    job_id: str
    span: Optional[_Span]
    patterns: Tuple[ArtifactPattern, ...]
    place: ArtifactFolder

    def can_have_written(self, status: os.stat_result) -> bool:
        return self.span is not None and self.span.has(status)


class _Lister:
    """Finds files of a project's jobs; files requested by several jobs are searched once."""

    def __init__(self, places: Places) -> None:
        self.jobs = places.jobs
        self._places = places
        self._spans: Dict[str, Optional[_Span]] = {}

    def list_job(self, job_id: str, asked: object) -> _Listing:
        """List the files of a job; ``asked`` replaces the job's own patterns.

        Raises:
            _NoSuchJobError: There is no such job.
            RecordError: The job's record cannot be read.
            PatternError: ``asked`` is not a list of patterns.
        """
        job = self._read(job_id, asked)
        if job is None:
            raise _NoSuchJobError("there is no such job on this server")
        listing = _Listing()
        for pattern in job.patterns if job.span else ():
            self._add(job, pattern, listing)
        listing.shared = self._shared(job, listing.files) if listing.files else []
        return listing

    def _read(self, job_id: str, asked: object = None) -> Optional[_Job]:
        folder = job_folder.open_job(self.jobs, job_id)
        if folder is None:
            return None
        try:
            spec = job_folder.read_record(folder, SPEC, job_id) or {}
            patterns = of_job(read_patterns((spec.get("artifacts") or []) if asked is None else asked), job_id)
            return _Job(job_id, _span_of(folder), patterns, self._places.of_spec(spec))
        finally:
            os.close(folder)

    def _span(self, job_id: str) -> Optional[_Span]:
        """Return the run time of another job; None when it has not begun, does not exist, or cannot be read now."""
        if job_id not in self._spans:
            self._spans[job_id] = None
            with suppress(OSError):
                folder = job_folder.open_job(self.jobs, job_id)
                if folder is not None:
                    try:
                        self._spans[job_id] = _span_of(folder)
                    finally:
                        os.close(folder)
        return self._spans[job_id]

    def _add(self, job: _Job, pattern: ArtifactPattern, listing: _Listing) -> None:
        found, is_cut = job.place.find(pattern.glob)
        written = [each for each in found if job.can_have_written(each.status) and not self._is_of_other(job, each)]
        listing.older += len(found) - len(written)
        listing.is_cut = listing.is_cut or is_cut
        if pattern.newest is not None:
            units = set(newest_units(written, pattern.newest))
            written = [each for each in written if each.unit in units]
        listing.add(written, gives_way=pattern.newest is not None)

    def _is_of_other(self, job: _Job, found: FoundArtifact) -> bool:
        """Return whether the path contains another job's id and not this one's, and the other could have written it."""
        ids = set(_JOB_ID.findall(found.path))
        if not ids or job.job_id in ids:
            return False
        spans = [self._span(each) for each in ids]
        return any(span is not None and span.has(found.status) for span in spans)

    def _shared(self, job: _Job, files: Dict[str, _File]) -> List[str]:
        """Return the files that another job also requested and could have written."""
        unsure = {_identity(path, file.status) for path, file in files.items() if job.job_id not in path}
        shared = set()
        for other in self._others(job) if unsure else ():
            for pattern in other.patterns:
                # Files whose path contains its id have been removed from this list.
                found = other.place.find(pattern.glob)[0] if other.job_id not in pattern.glob else []
                candidates = [each for each in found if _identity(each.path, each.status) in unsure]
                shared |= {each.path for each in candidates if other.can_have_written(each.status)}
        return sorted(shared)

    def _others(self, job: _Job) -> Iterator[_Job]:
        """Yield the jobs that ran at the same time; records of jobs that ended long before are not read."""
        for name in os.listdir(self.jobs) if self.jobs is not None else ():
            span = self._span(name) if is_job_id(name) and name != job.job_id else None
            if span is not None and job.span is not None and span.overlaps(job.span):
                with suppress(RecordError, PatternError, OSError):
                    other = self._read(name)
                    if other is not None:
                        yield other


def _identity(path: str, status: os.stat_result) -> Tuple[str, int, int]:
    """Return the identity of a file: jobs in different copies write different ones of the same path."""
    return path, status.st_dev, status.st_ino


def _span_of(folder: int) -> Optional[_Span]:
    """Return the run time of a job; None if its command has not begun."""
    start, end = (_written_at(folder, name) for name in (STARTED, ENDED))
    return None if start is None else _Span(start, end)


def _written_at(folder: int, name: str) -> Optional[int]:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else None
