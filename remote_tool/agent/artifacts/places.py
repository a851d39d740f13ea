"""The folders in which jobs write their files: the project's, or the copy that a job runs in, with its links."""

from __future__ import annotations

import os

from remote_tool.protocol import job_folder
from remote_tool.protocol.artifact_search import ArtifactSearch
from remote_tool.protocol.records import SPEC, RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, List, Optional, Set, Tuple

    from remote_tool.agent.requests import Folders
    from remote_tool.protocol.artifact_search import FoundArtifact

_LARGEST_LIST = 512 * 1024 * 1024


class ArtifactFolder:
    """A folder of files, in which links between a project and its copies are followed."""

    def __init__(self, folder: int, own: FrozenSet[Tuple[int, int]], sent: Set[bytes], followed: str) -> None:
        self._folder = folder
        self._own = own
        self._sent = sent
        self._followed = (f"{followed}/",)
        self._found: Dict[str, Tuple[List[FoundArtifact], bool]] = {}

    def open_file(self, path: str) -> int:
        """Open a file below the folder."""
        return ArtifactSearch(self._folder, followed=self._followed).open_file(path)

    def find(self, glob: str) -> Tuple[List[FoundArtifact], bool]:
        """Return the files matching a glob that were not sent, and whether there are more."""
        if glob not in self._found:
            search = ArtifactSearch(self._folder, self._own, self._followed)
            found = [each for each in search.find(glob) if not self._is_as_sent(each)]
            self._found[glob] = found, search.is_cut
        return self._found[glob]

    def _is_as_sent(self, found: FoundArtifact) -> bool:
        """Return whether a file is unchanged since it was sent; a changed file belongs to the job."""
        seconds = found.status.st_mtime_ns // 1_000_000_000
        return b"%d %d %b" % (found.status.st_size, seconds, os.fsencode(found.path)) in self._sent


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
        self._own = frozenset(own)
        self._project = ArtifactFolder(folder, self._own, _read_sent(folders.sent_files), folders.copies)
        self._copies: Dict[str, ArtifactFolder] = {}
        self._of_jobs: Dict[object, ArtifactFolder] = {}

    def of(self, job_id: object) -> ArtifactFolder:
        """Return the folder of a job; the project's of one that is unknown."""
        if job_id not in self._of_jobs:
            self._of_jobs[job_id] = self._read(job_id)
        return self._of_jobs[job_id]

    def _read(self, job_id: object) -> ArtifactFolder:
        folder = job_folder.open_job(self.jobs, str(job_id))
        if folder is None:
            return self._project
        try:
            return self.of_spec(job_folder.read_record(folder, SPEC, str(job_id)))
        except RecordError:
            return self._project
        finally:
            os.close(folder)

    def of_spec(self, spec: Optional[Dict[str, object]]) -> ArtifactFolder:
        """Return the folder of a job with this record."""
        name = (spec or {}).get("copy") or ""
        if not name:
            return self._project
        if name not in self._copies:
            self._copies[str(name)] = self._open_copy(name)
        return self._copies[str(name)]

    def _open_copy(self, name: object) -> ArtifactFolder:
        from remote_tool.agent.frozen import copies, moving  # noqa: PLC0415 - few projects have copies

        copy = copies.copy_of(self._folders, name)
        if copy is None or not os.path.isdir(copy.code):
            return self._project  # its files have come home
        # The project may have another name since, and the job's files are behind these links.
        jobs, spare = os.path.basename(self._folders.jobs), f"{copy.path}/{copies.SPARE}"
        moving.follow_project(copy.code, self._folders.project, jobs, spare)
        folder = job_folder.open_folder(copy.code)
        return ArtifactFolder(folder, self._own, set(copies.sent_records(copy)), self._folders.project)


def _read_sent(path: str) -> Set[bytes]:
    """Return the list of sent files: ``size time name`` for each."""
    try:
        with open(path, "rb") as file:
            return set(file.read(_LARGEST_LIST).split(b"\0"))
    except OSError:
        return set()
