"""Bringing home the files that jobs write and that are wanted here, all servers at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, SomeServersFailedError
from remote_tool.jobs.artifacts import ArtifactFolder, why_not_here
from remote_tool.supervisor.artifact_search import Search, newest_units
from remote_tool.transport.pool import on_every
from remote_tool.transport.private_files import secret_in
from remote_tool.workflows.artifact_limits import Allowance, Room
from remote_tool.workflows.artifact_streams import Transfer, fetch_files, list_files
from remote_tool.workflows.events import Notice, Outcome, StepEnded, StepProgress, StepStarted
from remote_tool.workflows.sync import readable_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from remote_tool.config.model import Config
    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.artifacts import RemoteFile
    from remote_tool.jobs.job import Job
    from remote_tool.supervisor.artifact_patterns import ArtifactPattern
    from remote_tool.workflows.artifact_streams import Listing
    from remote_tool.workflows.context import Context

STEP = "artifacts"
LOCK_SECONDS = 30.0
PROGRESS_SECONDS = 0.1
SHOWN_NOTICES = 10


@dataclass(frozen=True)
class Artifact:
    """A file that is here, whole.

    Attributes:
        path: Where.
        name: On the server, relative to the project.
        size: In bytes.
        is_new: Whether it came just now.
    """

    path: Path
    name: str
    size: int
    is_new: bool


@dataclass(frozen=True)
class PulledJob:
    """What of a job is here.

    Attributes:
        job: As it is known.
        files: Those that are wanted and here.
        left_out: Name and reason of those that are wanted and not here.
        older: How many files match that the job did not write.
    """

    job: Job
    files: tuple[Artifact, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    older: int = 0


@dataclass(frozen=True)
class PullAnswer:
    """What was pulled, by job, and the errors of the servers that failed."""

    jobs: tuple[PulledJob, ...]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    bad: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 when every server answered, else as :class:`SomeServersFailedError` has it."""
        return self._failure().exit_code if self.errors else 0

    def raise_if_any_failed(self) -> PullAnswer:
        """Raise the servers' errors, if there are any."""
        if len(self.errors) == 1 and len({each.job.server for each in self.jobs}) <= 1:
            raise next(iter(self.errors.values()))
        if self.errors:
            raise self._failure()
        return self

    def _failure(self) -> SomeServersFailedError:
        return SomeServersFailedError(self.errors, sorted({each.job.server for each in self.jobs} - set(self.errors)))


async def pull_artifacts(context: Context, jobs: Sequence[Job], patterns: Sequence[ArtifactPattern] = ()) -> PullAnswer:
    """Bring home files of these jobs, as their records are; with patterns, those instead of the jobs' own."""
    by_server: dict[str, list[_JobPull]] = defaultdict(list)
    room = Room(context.config.local.jobs)
    for job in jobs:
        if job.server in context.config.servers:
            by_server[job.server].append(_JobPull(context, job, tuple(patterns) or job.artifacts, room))

    async def pull(server: str) -> None:
        await _ServerPull(context, server, by_server[server], complete=not patterns).run()

    results = await on_every(by_server, pull)
    return PullAnswer(tuple(each.answer() for pulls in by_server.values() for each in pulls), dict(results.errors))


class _JobPull:
    """What is to be pulled of one job, and what became of it."""

    def __init__(self, context: Context, job: Job, patterns: tuple[ArtifactPattern, ...], room: Room) -> None:
        self.job = job
        self.patterns = patterns
        self.folder = ArtifactFolder(context.registry.folder / job.id)
        self.transfers: list[Transfer] = []
        self.no_room: list[RemoteFile] = []
        self._allowance = Allowance(context.config.artifact_limit, room)
        self._own_names = _own_names(context.config)
        self._room = room
        self._wanted: list[RemoteFile] = []
        self._left_out: dict[str, str] = {}
        self._older = 0

    @property
    def changes_something(self) -> bool:
        """Whether files come, or may go."""
        return bool(self.transfers or self.folder.giving_way())

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Name and reason of what is not here, though it is wanted."""
        later = [(each.file.path, each.trouble) for each in self.transfers if each.trouble]
        return [*self._left_out.items(), *later]

    @property
    def is_complete(self) -> bool:
        """Whether all that is wanted is here, but for what never will be."""
        return not self.no_room and all(each.is_here or each.is_refused for each in self.transfers)

    def answer(self) -> PulledJob:
        """Return what is here."""
        new = {each.file.path for each in self.transfers if each.is_here}
        files = [
            Artifact(self.folder.path(file.path), file.path, state.st_size, file.path in new)
            for file in self._wanted
            if (state := self.folder.state(file.path)) is not None and (file.path in new or self.folder.has(file))
        ]
        return PulledJob(self.job, tuple(files), tuple(self.left_out), self._older)

    def plan(self, listing: Listing) -> None:
        """Choose from what is there what is taken."""
        self._older = listing.older
        self._wanted = self._possible(listing.files)
        sizes = self.folder.sizes()
        giving_way = self.folder.giving_way()
        listed = {file.path for file in self._wanted}
        self._allowance.used = sum(
            size for name, size in sizes.items() if name not in listed and name not in giving_way
        )
        for file in self._wanted:
            if not self.folder.has(file) and (why := self._refusal(file)):
                self._left_out[file.path] = why
                continue
            self._allowance.used += file.stamp.size
            if not self.folder.has(file):
                self._take(file)

    def _possible(self, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        """Leave out what must not come here, and of two names that some disks do not tell apart the second."""
        possible: dict[str, RemoteFile] = {}
        for file in files:
            why = why_not_here(file.path) or self._secret(file.path)
            other = possible.get(file.path.casefold())
            if other is not None and not why:
                why = f"its name differs from {other.path} in case only"
            if why:
                self._left_out[file.path] = why
            else:
                possible[file.path.casefold()] = file
        return list(possible.values())

    def _secret(self, path: str) -> str:
        if path.split("/", maxsplit=1)[0] in self._own_names:
            return "it lies in a folder of remote-tool"
        secret = secret_in(os.fsencode(path))
        return f"{os.fsdecode(secret.name)} {secret.why}" if secret else ""

    def _refusal(self, file: RemoteFile) -> str:
        size, limit = readable_size(file.stamp.size), self._allowance.limit
        if file.stamp.size > limit.file:
            return f"it has {size}, and artifact_limit is {readable_size(limit.file)} for a file"
        if not self._allowance.has(file.stamp.size):
            most = readable_size(limit.job)
            return f"with its {size} there would be more than the {most} that artifact_limit has for a job"
        return ""

    def _take(self, file: RemoteFile) -> None:
        if self._room.take(file.stamp.size - min(self.folder.partial_size(file), file.stamp.size)):
            self.transfers.append(Transfer(self.folder, file, self._allowance))
        else:
            self.no_room.append(file)
            self._left_out[file.path] = f"there is no room here for its {readable_size(file.stamp.size)}"

    def finish(self) -> None:
        """Remove what newer files have taken the place of, and parts of what is not wanted any more."""
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
            # What cannot be looked at stays.
            with suppress(OSError), self.folder.opened() as root:
                found = list(Search(root).find(pattern.glob))
                units = set(newest_units(found, pattern.newest))
                matched |= {each.path for each in found}
                kept |= {each.path for each in found if each.unit in units}
        return (matched - kept) & ways.keys()


def _own_names(config: Config) -> set[str]:
    return {config.remote.jobs_name, config.remote.scripts_name}


class _ServerPull:
    """The pull of one server."""

    def __init__(self, context: Context, server: str, pulls: Sequence[_JobPull], *, complete: bool) -> None:
        self._context = context
        self._server = server
        self._pulls = sorted(pulls, key=lambda each: each.job.id)
        self._complete = complete
        self._began = self._shown = time.monotonic()

    async def run(self) -> None:
        """List, choose, fetch, and note what is complete.

        Raises:
            JobError: There is no room here, or the server says what cannot be.
            ConnectError: The link is gone; what came is kept, and the next pull goes on from there.
        """
        wanted = {each.job.id: each.patterns for each in self._pulls}
        listings = await list_files(self._context, self._server, wanted)
        with ExitStack() as stack:
            for each in self._pulls:
                each.plan(listings[each.job.id])
                if each.changes_something:
                    await self._lock(stack, each)
            transfers = [transfer for each in self._pulls for transfer in each.transfers]
            if transfers:
                await self._fetch(transfers)
            for each in self._pulls:
                if each.changes_something:
                    each.finish()
        self._tell(listings)
        self._note_complete(listings)
        self._raise_if_no_room()

    async def _lock(self, stack: ExitStack, pull: _JobPull) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                stack.enter_context(pull.folder.locked())
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"Another remote-tool brings home the artifacts of job {pull.job.key}"
                    raise JobError(message, hint="remote-tool job-pull, when it is done", server=self._server) from None
                await asyncio.sleep(0.1)
            else:
                # Whoever had it may have brought some.
                pull.transfers = [each for each in pull.transfers if not pull.folder.has(each.file)]
                return

    async def _fetch(self, transfers: Sequence[Transfer]) -> None:
        report = self._context.report
        report(StepStarted(self._server, STEP))
        total = sum(each.file.stamp.size for each in transfers)

        def on_progress(name: str, received: int) -> None:
            if time.monotonic() - self._shown >= PROGRESS_SECONDS:
                self._shown = time.monotonic()
                done = sum(each.is_over for each in transfers)
                sizes = f"{readable_size(received)} of {readable_size(total)}"
                report(StepProgress(self._server, STEP, f"{done} of {len(transfers)} files, {sizes} {name}"))

        try:
            await fetch_files(self._context, self._server, transfers, on_progress)
        except BaseException as error:
            report(StepEnded(self._server, STEP, Outcome.FAILED, _first_line(error), self._seconds))
            raise
        here = [each.file.stamp.size for each in transfers if each.is_here]
        files = "1 file" if len(here) == 1 else f"{len(here)} files"
        report(StepEnded(self._server, STEP, Outcome.DONE, f"{files} ({readable_size(sum(here))})", self._seconds))

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _tell(self, listings: Mapping[str, Listing]) -> None:
        """Say what stays on the server, and why."""
        for each in self._pulls:
            listing = listings[each.job.id]
            texts = [f"{name} is not brought home: {why}" for name, why in each.left_out]
            if listing.error:
                texts.append(listing.error)
            if listing.is_cut:
                texts.append("there are more files than are brought home; a narrower glob finds those that matter")
            for text in texts[:SHOWN_NOTICES]:
                self._context.report(Notice(self._server, f"job {each.job.key}: {text}"))
            if len(texts) > SHOWN_NOTICES:
                rest = f"job {each.job.key}: {len(texts) - SHOWN_NOTICES} more files are not brought home"
                self._context.report(Notice(self._server, rest))

    def _note_complete(self, listings: Mapping[str, Listing]) -> None:
        done = [
            each.job
            for each in self._pulls
            if self._complete and each.job.state.is_finished and each.is_complete and listings[each.job.id].is_final
        ]
        if done:
            self._context.registry.update(replace(job, artifacts_complete=True) for job in done)

    def _raise_if_no_room(self) -> None:
        missing = [file for each in self._pulls for file in each.no_room]
        if missing:
            sizes = readable_size(sum(file.stamp.size for file in missing))
            folder = self._context.config.local.jobs
            files = "1 file" if len(missing) == 1 else f"{len(missing)} files"
            message = f"No room in {folder} for {files} of {self._server} ({sizes}), such as {missing[0].path}"
            raise JobError(message, hint=f"df -h {folder}", server=self._server)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]
