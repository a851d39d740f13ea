"""The folders in which jobs write their files: the project's, or the copy that a job runs in."""

from __future__ import annotations

import os

from remote_tool.protocol import job_folder
from remote_tool.protocol.artifact_search import Search
from remote_tool.protocol.records import SPEC, RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, List, Optional, Set, Tuple

    from remote_tool.agent.requests import Folders
    from remote_tool.protocol.artifact_search import Found

_LARGEST_LIST = 512 * 1024 * 1024


class CopyGoneError(Exception):
    """The copy of the project that a job ran in is gone."""


class Place:
    """A folder of files.

    Attributes:
        folder: Descriptor of the folder.
    """

    def __init__(self, folder: int, own: FrozenSet[Tuple[int, int]], sent: Set[bytes]) -> None:
        self.folder = folder
        self._own = own
        self._sent = sent
        self._found: Dict[str, Tuple[List[Found], bool]] = {}

    def holder(self, path: str) -> int:
        """Return the descriptor of the folder that really has a file."""
        del path
        return self.folder

    def find(self, glob: str) -> Tuple[List[Found], bool]:
        """Return the files matching a glob that were not sent, and whether there are more."""
        if glob not in self._found:
            self._found[glob] = self._search(glob)
        return self._found[glob]

    def _search(self, glob: str) -> Tuple[List[Found], bool]:
        search = Search(self.folder, self._own)
        found = [each for each in search.find(glob) if not self._is_as_sent(each)]
        return found, search.is_cut

    def _is_as_sent(self, found: Found) -> bool:
        """Return whether a file is unchanged since it was sent; a changed file belongs to the job."""
        seconds = found.status.st_mtime_ns // 1_000_000_000
        return b"%d %d %b" % (found.status.st_size, seconds, os.fsencode(found.path)) in self._sent


class _CopyPlace(Place):
    """A copy of the project, in which the project's unsent files and folders are links."""

    def __init__(self, folder: int, sent: Set[bytes], links: FrozenSet[str], project: Place) -> None:
        super().__init__(folder, frozenset(), sent)
        self._links = links
        self._project = project

    def holder(self, path: str) -> int:
        return self._project.folder if path.partition("/")[0] in self._links else self.folder

    def _search(self, glob: str) -> Tuple[List[Found], bool]:
        own, is_cut = super()._search(glob)
        others, is_other_cut = self._project.find(glob) if self._links else ([], False)
        linked = [each for each in others if each.path.partition("/")[0] in self._links]
        return sorted([*own, *linked], key=lambda each: each.path), is_cut or is_other_cut


class Places:
    """The folders of a project's jobs, opened when first needed."""

    def __init__(self, folders: Folders) -> None:
        self.jobs = job_folder.open_jobs_folder(folders.jobs)
        self._folders = folders
        # The project's folder may itself be a user's link to a larger disk.
        folder = os.open(folders.project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        own = set()
        for path in (folders.jobs, folders.scripts):
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            own.add((status.st_dev, status.st_ino))
        self._project = Place(folder, frozenset(own), _read_sent(folders.sent_files))
        self._copies: Dict[str, Place] = {}
        self._of_jobs: Dict[object, Place] = {}

    def of(self, job_id: object) -> Place:
        """Return the folder of a job; the project's of one that is unknown."""
        if job_id not in self._of_jobs:
            self._of_jobs[job_id] = self._read(job_id)
        return self._of_jobs[job_id]

    def _read(self, job_id: object) -> Place:
        folder = job_folder.open_job(self.jobs, str(job_id))
        if folder is None:
            return self._project
        try:
            return self.of_spec(job_folder.read_record(folder, SPEC, str(job_id)))
        except RecordError:
            return self._project
        finally:
            os.close(folder)

    def of_spec(self, spec: Optional[Dict[str, object]]) -> Place:
        """Return the folder of a job with this record."""
        name = (spec or {}).get("copy") or ""
        if not name:
            return self._project
        if name not in self._copies:
            self._copies[str(name)] = self._open_copy(name)
        return self._copies[str(name)]

    def _open_copy(self, name: object) -> Place:
        from remote_tool.agent.frozen import copies  # noqa: PLC0415 - few projects have copies

        copy = copies.copy_of(self._folders, name)
        if copy is None or not os.path.isdir(copy.code):
            raise CopyGoneError("the copy of the project that it ran in is gone")
        folder = job_folder.open_folder(copy.code)
        return _CopyPlace(folder, set(copies.sent_records(copy)), frozenset(copies.links_into(copy)), self._project)


def _read_sent(path: str) -> Set[bytes]:
    """Return the list of sent files: ``size time name`` for each."""
    try:
        with open(path, "rb") as file:
            return set(file.read(_LARGEST_LIST).split(b"\0"))
    except OSError:
        return set()
