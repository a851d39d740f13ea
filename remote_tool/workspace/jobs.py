"""The methods that list, follow, stop and fetch jobs, and a job that was started."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.config.limits import check_note
from remote_tool.jobs.job import DEFAULT_GRACE
from remote_tool.workflows.selection import JobsAnswer, JobSelection, choose_jobs, find_job
from remote_tool.workspace.background import BackgroundWork, ChunkQueue
from remote_tool.workspace.project import Project, checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job, JobState
    from remote_tool.protocol.artifact_patterns import ArtifactPattern
    from remote_tool.workflows.artifacts.answer import PullAnswer
    from remote_tool.workflows.jobs.compare import JobDiff
    from remote_tool.workflows.jobs.follow import Chunk, FollowAnswer, FollowOptions, OnChunk
    from remote_tool.workflows.jobs.orphans import OrphansAnswer
    from remote_tool.workflows.jobs.show import JobDetails
    from remote_tool.workflows.jobs.stacks import StacksAnswer
    from remote_tool.workflows.jobs.tensorboard import TensorboardRequest
    from remote_tool.workflows.terminal.attach import Attached
    from remote_tool.workflows.terminal.session import Screen


class JobMethods(Project):
    """Methods for the jobs of a project."""

    def list_jobs(self, selection: JobSelection | None = None, *, logs: bool = False) -> JobsAnswer:
        """Return jobs as their servers see them; with ``logs``, also fetch their logs."""
        from remote_tool.workflows.jobs.listing import list_jobs

        selection = selection or JobSelection()
        return self._work(lambda context: list_jobs(context, selection, logs=logs))

    def show_job(self, job: str) -> JobDetails:
        """Return everything about one job, by key or id; facts that its server does not report are listed as unknown.

        Raises:
            UsageError: There is no such job.
        """
        from remote_tool.workflows.jobs.show import show_job

        return self._work(lambda context: show_job(context, job))

    def known_jobs(self, ids: Sequence[str]) -> list[Job]:
        """Return the locally recorded jobs among these ids."""
        return list(self._registry.find(ids).values())

    def select_local(self, selection: JobSelection) -> list[Job]:
        """Return jobs from the local records, without asking a server."""
        registry = self._registry
        jobs, _ = registry.load() if selection.may_have_ended else registry.load_unfinished()
        return choose_jobs(jobs, selection)

    def follow_jobs(
        self, selection: JobSelection, on_chunk: OnChunk, options: FollowOptions | None = None
    ) -> FollowAnswer:
        """Pass on the output of jobs until they end.

        The callback runs on the thread that does the work: it cannot call this API, and while it blocks, everything
        waits. If it returns an awaitable, only this call waits for it.
        """
        from remote_tool.workflows.jobs.follow import FollowOptions, follow_selected

        options = options or FollowOptions()
        return self._work(lambda context: follow_selected(context, selection, on_chunk, options))

    def attach(self, selection: JobSelection, screen: Screen) -> Attached:
        """Attach a screen to the terminal of one running job, until the job ends or the user detaches.

        Without a selection, it is the only running job with a terminal. A lost connection is made again.

        Raises:
            UsageError: No job or more than one is selected, it has no terminal, or it has ended.
            JobError: Its server cannot do it.
            ConnectError: Its server cannot be reached.
        """
        from remote_tool.workflows.terminal.attach import attach

        return self._work(lambda context: attach(context, selection, screen))

    def wait_jobs(self, selection: JobSelection, *, timeout: float | None = None) -> JobsAnswer:
        """Wait until jobs have ended; the timeout is in seconds."""
        from remote_tool.workflows.jobs.follow import wait_for_jobs

        return self._work(lambda context: wait_for_jobs(context, selection, timeout=timeout))

    def stop_jobs(self, selection: JobSelection, *, signal: str = "SIGTERM", grace: float | None = None) -> JobsAnswer:
        """Stop jobs and all their processes."""
        from remote_tool.workflows.jobs.stop import stop_jobs

        return self._work(lambda context: stop_jobs(context, selection, signal=signal, grace=grace))

    def diff(self, first: str, second: str, *, check: bool = True) -> JobDiff:
        """Return the differences between two jobs, by key or id: how they were started, and how they ended.

        Raises:
            UsageError: There is no such job.
        """
        from remote_tool.workflows.jobs.compare import diff_jobs

        answer = self._work(lambda context: diff_jobs(context, first, second))
        return checked(answer, check=check)

    def note_job(self, job: str, text: str) -> Job:
        """Add a note to a job, by key or id, in the local records; an empty text removes it.

        Raises:
            UsageError: There is no such job, or the text is too long or has control characters.
        """
        check_note(text)
        chosen = find_job(self.select_local(JobSelection(stopped=True, hidden=True)), job)
        return self._registry.revise([(chosen.id, lambda known: replace(known, note=text))])[0]

    def take_stacks(self, selection: JobSelection, *, keep: bool = False, native: bool = False) -> StacksAnswer:
        """Return the stacks of all Python processes of running jobs; for a launch, on all its servers.

        With ``keep``, the servers also add the stacks to ``stacks.txt`` in the folders of the jobs.
        With ``native``, py-spy on the servers adds calls in C and C++.
        """
        from remote_tool.workflows.jobs.stacks import take_stacks

        return self._work(lambda context: take_stacks(context, selection, keep=keep, native=native))

    def find_orphans(self, servers: Sequence[str] = ()) -> OrphansAnswer:
        """Return the processes of jobs of this project that run on servers without a supervisor."""
        from remote_tool.workflows.jobs.orphans import find_orphans

        return self._work(lambda context: find_orphans(context, servers))

    def end_orphans(
        self, found: OrphansAnswer, *, signal: str = "SIGTERM", grace: float = DEFAULT_GRACE
    ) -> Mapping[str, RemoteToolError]:
        """End the processes that :meth:`find_orphans` found, with their children; return the errors by server."""
        from remote_tool.workflows.jobs.orphans import end_orphans

        return self._work(lambda context: end_orphans(context, found, signal=signal, grace=grace))

    def find_strays(self, servers: Sequence[str] = ()) -> OrphansAnswer:
        """Find orphans: the older name of :meth:`find_orphans`."""
        return self.find_orphans(servers)

    def end_strays(
        self, found: OrphansAnswer, *, signal: str = "SIGTERM", grace: float = DEFAULT_GRACE
    ) -> Mapping[str, RemoteToolError]:
        """End orphans: the older name of :meth:`end_orphans`."""
        return self.end_orphans(found, signal=signal, grace=grace)

    def pull_logs(self, selection: JobSelection | None = None) -> JobsAnswer:
        """Fetch the logs and artifacts of jobs."""
        from remote_tool.workflows.jobs.listing import pull_logs

        selection = selection or JobSelection()
        return self._work(lambda context: pull_logs(context, selection))

    def pull_jobs(
        self,
        selection: JobSelection | None = None,
        artifacts: Sequence[str | ArtifactPattern] = (),
        *,
        to: str | Path | None = None,
        check: bool = True,
    ) -> PullAnswer:
        """Fetch files that jobs wrote.

        Args:
            selection: Which jobs; None: all.
            artifacts: Globs to use instead of those that the jobs were started with.
            to: A folder outside the project to use instead of the configured one; each job gets a folder in it.
            check: Raise if a server failed; otherwise the result holds its error.
        """
        from remote_tool.workflows.jobs.pull import pull_jobs

        selection = selection or JobSelection()
        answer = self._work(lambda context: pull_jobs(context, selection, artifacts, to))
        return checked(answer, check=check)

    def pull_artifacts(self, jobs: Sequence[Job]) -> PullAnswer:
        """Fetch the artifacts that these jobs were started with and that are not here yet."""
        from remote_tool.workflows.artifacts.answer import PullAnswer
        from remote_tool.workflows.artifacts.pull import pull_artifacts

        missing = [job for job in jobs if job.artifacts and not job.artifacts_complete]
        if not missing:
            return PullAnswer(())
        return self._work(lambda context: pull_artifacts(context, missing))

    def tensorboard(self, request: TensorboardRequest, on_open: Callable[[str], None]) -> None:
        """Run TensorBoard here on the event files of jobs, fetched while they run; ``on_open`` gets its address.

        It runs until Ctrl-C: call this in a thread of a program that ends.

        Raises:
            UsageError: TensorBoard is not installed here, or the selected jobs have no event files.
            JobError: TensorBoard does not start, or has ended.
        """
        from remote_tool.workflows.jobs.tensorboard import tensorboard

        self._work(lambda context: tensorboard(context, request, on_open))

    def _start_following(self, selection: JobSelection, on_chunk: OnChunk) -> BackgroundWork[FollowAnswer]:
        from remote_tool.workflows.jobs.follow import FollowOptions, follow_selected

        return self._begin(lambda context: follow_selected(context, selection, on_chunk, FollowOptions()))


class RunningJob:
    """A job that was started."""

    def __init__(self, workspace: JobMethods, job: Job) -> None:
        self._workspace = workspace
        self.job = job

    def __repr__(self) -> str:
        return f"<RunningJob {self.job.key} on {self.job.server}: {self.job.state}>"

    @property
    def id(self) -> str:
        """The id, the same on every machine."""
        return self.job.id

    @property
    def state(self) -> JobState:
        """The current state; asks the server."""
        return self._update(self._workspace.list_jobs(self._selection))

    @property
    def exit_code(self) -> int | None:
        """0 to 255 once the program has exited; None if a signal ended it."""
        return self.job.exit_code

    def wait(self, timeout: float | None = None) -> JobState:
        """Wait until the job has ended; the timeout is in seconds.

        Raises:
            JobError: The job did not end in time.
        """
        return self._update(self._workspace.wait_jobs(self._selection, timeout=timeout).raise_if_any_failed())

    def kill(self, signal: str = "SIGTERM", grace: float | None = None) -> JobState:
        """Stop all processes of the job, also if it is lost; does nothing if it has ended."""
        if self.job.state.is_final:
            return self.job.state
        return self._update(
            self._workspace.stop_jobs(self._selection, signal=signal, grace=grace).raise_if_any_failed()
        )

    def pull(self, *artifacts: str | ArtifactPattern, to: str | Path | None = None) -> list[Path]:
        """Fetch files that the job wrote; return their local paths, also of files that were already here.

        Args:
            artifacts: Globs to use instead of those that the job was started with.
            to: A folder outside the project to use instead of the configured one; the job gets a folder in it.

        Raises:
            UsageError: The job was started without artifacts, and none are given.
            JobError: The local disk is too full, or the server does not answer.
        """
        answer = self._workspace.pull_jobs(self._selection, artifacts, to=to)
        return [file.path for pulled in answer.jobs for file in pulled.files]

    def tail(self) -> Iterator[str]:
        """Yield lines as the job writes them, without line breaks, until it has ended.

        Lines are fetched as fast as they are read. Close or drop the generator to stop following.

        Raises:
            RemoteToolError: The server cannot be followed.
        """
        chunks = ChunkQueue()
        following = self._workspace._start_following(self._selection, chunks.put)  # noqa: SLF001 - of this module
        following.when_done(chunks.end)
        try:
            yield from _lines(chunks)
            answer = following.result()
        finally:
            following.stop()
        for job in answer.jobs:
            self.job = job
        for error in answer.errors.values():
            raise error

    @property
    def _selection(self) -> JobSelection:
        return JobSelection(jobs=(self.job.id,), stopped=True, hidden=True)

    def _update(self, answer: JobsAnswer) -> JobState:
        for job in answer.jobs:
            self.job = job
        return self.job.state


def _lines(chunks: Iterable[Chunk]) -> Iterator[str]:
    pending: dict[str, bytes] = {}
    for chunk in chunks:
        *lines, pending[chunk.stream] = (pending.get(chunk.stream, b"") + chunk.data).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
    yield from (rest.decode(errors="replace") for rest in pending.values() if rest)
