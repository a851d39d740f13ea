"""Choose the artifacts of one job to pull, and track their results.

This is apart from ``pull.py`` because it asks no server: a list of files decides.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.jobs.artifacts import path_problem
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
    from remote_tool.workflows.artifacts.listing import ArtifactListing


class JobPull:
    """The artifacts of one job to pull, and their results.

    Attributes:
        job: The job.
        patterns: The patterns of the requested files.
        folder: Their local folder.
        transfers: The downloads of the chosen files.
        no_space: The files that do not fit on the local disk.
        budget: The free space of that disk.
    """

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
        self.no_space: list[RemoteFile] = []
        self._quota = Quota(config.artifact_limit, budget)
        self._own_names = _own_names(config)
        self.budget = budget
        self._requested: list[RemoteFile] = []
        self._left_out: dict[str, str] = {}
        self._older = 0

    @property
    def changes_something(self) -> bool:
        """Whether files will be pulled, or may be removed."""
        return bool(self.transfers or self.folder.giving_way())

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """The name and reason of each requested file that is not here."""
        failed = [(each.file.path, each.trouble) for each in self.transfers if each.trouble]
        return [*self._left_out.items(), *failed]

    @property
    def is_complete(self) -> bool:
        """Whether all requested files are here, except those that are refused."""
        return not self.no_space and all(each.is_here or each.is_refused for each in self.transfers)

    def answer(self) -> PulledJob:
        """Return the result of the pull."""
        new = {each.file.path for each in self.transfers if each.is_here}
        files = [
            Artifact(self.folder.path(file.path), file.path, state.st_size, file.path in new)
            for file in self._requested
            if (state := self.folder.state(file.path)) is not None and (file.path in new or self.folder.has(file))
        ]
        return PulledJob(self.job, tuple(files), tuple(self.left_out), self._older)

    def plan(self, listing: ArtifactListing) -> None:
        """Choose the listed files to pull."""
        self._older = listing.older
        self._requested = self._drop_forbidden(listing.files)
        sizes = self.folder.sizes()
        giving_way = self.folder.giving_way()
        listed = {file.path for file in self._requested}
        self._quota.used = sum(size for name, size in sizes.items() if name not in listed and name not in giving_way)
        for file in self._requested:
            if not self.folder.has(file) and (why := self._why_too_large(file)):
                self._left_out[file.path] = why
                continue
            self._quota.used += file.stamp.size
            if not self.folder.has(file):
                self._add_transfer(file)

    def _drop_forbidden(self, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        """Leave out forbidden names, and the second of two names that differ only in case."""
        allowed: dict[str, RemoteFile] = {}
        for file in files:
            why = path_problem(file.path) or self._why_secret(file.path)
            other = allowed.get(file.path.casefold())
            if other is not None and not why:
                why = f"its name differs from {other.path} only in case"
            if why:
                self._left_out[file.path] = why
            else:
                allowed[file.path.casefold()] = file
        return list(allowed.values())

    def _why_secret(self, path: str) -> str:
        if path.split("/", maxsplit=1)[0] in self._own_names:
            return "it is in a folder of remote-tool"
        secret = secret_in(os.fsencode(path))
        return f"{os.fsdecode(secret.name)} {secret.why}" if secret else ""

    def _why_too_large(self, file: RemoteFile) -> str:
        size, limit = readable_size(file.stamp.size), self._quota.limit
        if file.stamp.size > limit.file:
            return f"it has {size}; artifact_limit allows {readable_size(limit.file)} per file"
        if not self._quota.has(file.stamp.size):
            allowed = readable_size(limit.job)
            return f"its {size} would exceed the {allowed} per job that artifact_limit allows"
        return ""

    def _add_transfer(self, file: RemoteFile) -> None:
        if self.budget.take(file.stamp.size - min(self.folder.partial_size(file), file.stamp.size)):
            self.transfers.append(Transfer(self.folder, file, self._quota, self.job.id))
        else:
            self.no_space.append(file)
            self._left_out[file.path] = f"not enough disk space here for its {readable_size(file.stamp.size)}"

    def finish(self) -> None:
        """Remove files that newer ones replace, and parts that are no longer requested."""
        self.folder.keep_parts_of(each.file for each in self.transfers if not each.is_here)
        here = [file for file in self._requested if self.folder.state(file.path) is not None]
        noted = self.folder.giving_way()
        replaceable = {**noted, **{file.path: self._modified(file) for file in here if file.gives_way}}
        for file in here:
            if not file.gives_way:
                replaceable.pop(file.path, None)
        superseded = self._superseded(replaceable)
        kept = {name: modified for name, modified in replaceable.items() if name not in superseded}
        for name in superseded:
            self.folder.remove(name)
        if kept != noted:
            self.folder.note_giving_way(kept)

    def _modified(self, file: RemoteFile) -> int:
        state = self.folder.state(file.path)
        return state.st_mtime_ns if state else 0

    def _superseded(self, replaceable: Mapping[str, int]) -> set[str]:
        """Return the replaceable files that are no longer among the newest of any pattern."""
        matched, kept = set(), {file.path for file in self._requested}
        for pattern in self.patterns:
            if pattern.newest is None:
                continue
            # An unreadable file is kept.
            with suppress(OSError), self.folder.opened() as root:
                found = list(ArtifactSearch(root).find(pattern.glob))
                units = set(newest_units(found, pattern.newest))
                matched |= {each.path for each in found}
                kept |= {each.path for each in found if each.unit in units}
        return (matched - kept) & replaceable.keys()


def _own_names(config: Config) -> set[str]:
    return {config.remote.jobs_name, config.remote.scripts_name}
