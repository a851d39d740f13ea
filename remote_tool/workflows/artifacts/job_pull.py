"""Choose the artifacts of one job to pull, and track their results."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.jobs.artifacts import why_not_here
from remote_tool.protocol.artifact_patterns import of_job
from remote_tool.protocol.artifact_search import ArtifactSearch, newest_units
from remote_tool.readable import readable_size
from remote_tool.transport.sync.secrets import secret_in
from remote_tool.workflows.artifacts.answer import Artifact, PulledJob
from remote_tool.workflows.artifacts.limits import Quota
from remote_tool.workflows.artifacts.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.jobs.artifacts import ArtifactFolder, RemoteFile
    from remote_tool.jobs.job import Job
    from remote_tool.protocol.artifact_patterns import ArtifactPattern
    from remote_tool.workflows.artifacts.limits import DiskBudget
    from remote_tool.workflows.artifacts.listing import Listing


class JobPull:
    """The artifacts of one job to pull, and their results."""

    def __init__(
        self,
        config: Config,
        job: Job,
        patterns: tuple[ArtifactPattern, ...],
        folder: ArtifactFolder,
        budget: DiskBudget,
    ) -> None:
        self.job = job
        self.patterns = of_job(patterns, job.id)
        self.folder = folder
        self.transfers: list[Transfer] = []
        self.no_room: list[RemoteFile] = []
        self._quota = Quota(config.artifact_limit, budget)
        self._own_names = _own_names(config)
        self.budget = budget
        self._wanted: list[RemoteFile] = []
        self._left_out: dict[str, str] = {}
        self._older = 0

    @property
    def changes_something(self) -> bool:
        """Return whether files will be pulled, or may be removed."""
        return bool(self.transfers or self.folder.giving_way())

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Return name and reason of requested files that are not here."""
        later = [(each.file.path, each.trouble) for each in self.transfers if each.trouble]
        return [*self._left_out.items(), *later]

    @property
    def is_complete(self) -> bool:
        """Return whether all requested files are here, except those that can never be."""
        return not self.no_room and all(each.is_here or each.is_refused for each in self.transfers)

    def answer(self) -> PulledJob:
        """Return the local files."""
        new = {each.file.path for each in self.transfers if each.is_here}
        files = [
            Artifact(self.folder.path(file.path), file.path, state.st_size, file.path in new)
            for file in self._wanted
            if (state := self.folder.state(file.path)) is not None and (file.path in new or self.folder.has(file))
        ]
        return PulledJob(self.job, tuple(files), tuple(self.left_out), self._older)

    def plan(self, listing: Listing) -> None:
        """Choose the listed files to pull."""
        self._older = listing.older
        self._wanted = self._possible(listing.files)
        sizes = self.folder.sizes()
        giving_way = self.folder.giving_way()
        listed = {file.path for file in self._wanted}
        self._quota.used = sum(size for name, size in sizes.items() if name not in listed and name not in giving_way)
        for file in self._wanted:
            if not self.folder.has(file) and (why := self._refusal(file)):
                self._left_out[file.path] = why
                continue
            self._quota.used += file.stamp.size
            if not self.folder.has(file):
                self._take(file)

    def _possible(self, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        """Leave out forbidden names, and the second of two names that some file systems do not distinguish."""
        possible: dict[str, RemoteFile] = {}
        for file in files:
            why = why_not_here(file.path) or self._secret(file.path)
            other = possible.get(file.path.casefold())
            if other is not None and not why:
                why = f"its name differs from {other.path} only in case"
            if why:
                self._left_out[file.path] = why
            else:
                possible[file.path.casefold()] = file
        return list(possible.values())

    def _secret(self, path: str) -> str:
        if path.split("/", maxsplit=1)[0] in self._own_names:
            return "it is in a folder of remote-tool"
        secret = secret_in(os.fsencode(path))
        return f"{os.fsdecode(secret.name)} {secret.why}" if secret else ""

    def _refusal(self, file: RemoteFile) -> str:
        size, limit = readable_size(file.stamp.size), self._quota.limit
        if file.stamp.size > limit.file:
            return f"it has {size}; artifact_limit allows {readable_size(limit.file)} per file"
        if not self._quota.has(file.stamp.size):
            most = readable_size(limit.job)
            return f"its {size} would exceed the {most} per job that artifact_limit allows"
        return ""

    def _take(self, file: RemoteFile) -> None:
        if self.budget.take(file.stamp.size - min(self.folder.partial_size(file), file.stamp.size)):
            self.transfers.append(Transfer(self.folder, file, self._quota, self.job.id))
        else:
            self.no_room.append(file)
            self._left_out[file.path] = f"not enough disk space here for its {readable_size(file.stamp.size)}"

    def finish(self) -> None:
        """Remove files replaced by newer ones, and parts that are no longer requested."""
        self.folder.keep_parts_of(each.file for each in self.transfers if not each.is_here)
        here = [file for file in self._wanted if self.folder.state(file.path) is not None]
        noted = self.folder.giving_way()
        ways = {**noted, **{file.path: self._time(file) for file in here if file.gives_way}}
        for file in here:
            if not file.gives_way:
                ways.pop(file.path, None)
        kept = {name: modified for name, modified in ways.items() if name not in self._superseded(ways)}
        for name in ways.keys() - kept.keys():
            self.folder.remove(name)
        if kept != noted:
            self.folder.note_giving_way(kept)

    def _time(self, file: RemoteFile) -> int:
        state = self.folder.state(file.path)
        return state.st_mtime_ns if state else 0

    def _superseded(self, ways: Mapping[str, int]) -> set[str]:
        """Return the files that are no longer among the newest of any pattern."""
        matched, kept = set(), {file.path for file in self._wanted}
        for pattern in self.patterns:
            if pattern.newest is None:
                continue
            # An unreadable file is kept.
            with suppress(OSError), self.folder.opened() as root:
                found = list(ArtifactSearch(root).find(pattern.glob))
                units = set(newest_units(found, pattern.newest))
                matched |= {each.path for each in found}
                kept |= {each.path for each in found if each.unit in units}
        return (matched - kept) & ways.keys()


def _own_names(config: Config) -> set[str]:
    return {config.remote.jobs_name, config.remote.scripts_name}
