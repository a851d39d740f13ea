"""The older Python API of labml_remote: ``JOBS.create(…).start()``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.server import Server
from remote_tool.workflows.selection import JobSelection, find_job
from remote_tool.workspace import RunningJob, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ALL = JobSelection(stopped=True, hidden=True)


class StartedJob(RunningJob):
    """A job that was started, with the attribute names of labml_remote."""

    @property
    def job_id(self) -> str:
        return self.job.id

    @property
    def job_key(self) -> str:
        return str(self.job.key)

    @property
    def server(self) -> Server:
        return Server(self.job.server)

    @property
    def command(self) -> str:
        return self.job.command

    @property
    def tags(self) -> set[str]:
        return set(self.job.tags)

    @property
    def pid(self) -> int | None:
        return self.job.pid

    @property
    def started(self) -> bool:
        return self.job.started_at is not None

    @property
    def stopped(self) -> bool:
        return not self.job.may_run

    @property
    def running(self) -> bool:
        """Return whether it was running when last seen; ``state`` asks the server."""
        return self.job.may_run

    def has_tags(self, tags: Iterable[str]) -> bool:
        """Return whether the job has all of these tags."""
        return set(tags) <= self.tags


@dataclass(frozen=True)
class PendingJob:
    """A job that was not started yet."""

    server: str
    command: str
    env_vars: Mapping[str, str] = field(default_factory=dict, repr=False)
    tags: Sequence[str] = ()

    def start(self) -> StartedJob:
        """Start the job without sending changed files first, as labml_remote does."""
        workspace = Workspace.find()
        variables = dict(self.env_vars)
        started = workspace.start(str(self.server), self.command, variables, tuple(self.tags), sync=False)
        return StartedJob(workspace, started.job)


class Jobs:
    """The jobs of the workspace that the current folder belongs to; iterating yields their ids."""

    def create(
        self, server: str, command: str, env_vars: Mapping[str, str] | None = None, tags: Sequence[str] = ()
    ) -> PendingJob:
        """Return a job to start with ``start``."""
        return PendingJob(server, command, dict(env_vars or {}), tuple(tags))

    def __iter__(self) -> Iterator[str]:
        return iter([job.job_id for job in self._recorded()])

    def __getitem__(self, job_id: str) -> StartedJob:
        """Return a job by id, as last seen.

        Raises:
            UsageError: No such job.
        """
        return self.by_key(job_id)

    def by_key(self, key: str | int) -> StartedJob:
        """Return a job by key, as last seen.

        Raises:
            UsageError: No such job.
        """
        workspace = Workspace.find()
        return StartedJob(workspace, find_job(workspace.select_local(ALL), str(key)))

    def job_keys(self) -> list[str]:
        """Return the keys of all jobs."""
        return [job.job_key for job in self._recorded()]

    def all(self) -> list[StartedJob]:
        """Return all jobs by key, with their current state; jobs on an unreachable server as last seen."""
        workspace = Workspace.find()
        return _by_key(StartedJob(workspace, job) for job in workspace.list_jobs(ALL).jobs)

    def filter_by_tags(self, tags: Iterable[str], jobs: Iterable[StartedJob] | None = None) -> list[StartedJob]:
        """Return the jobs with all of these tags, among the given jobs or all."""
        required = list(tags)
        return [job for job in self._or_all(jobs) if job.has_tags(required)]

    def filter_out_by_tags(self, tags: Iterable[str], jobs: Iterable[StartedJob] | None = None) -> list[StartedJob]:
        """Return the jobs that lack one of these tags, among the given jobs or all."""
        excluded = list(tags)
        return [job for job in self._or_all(jobs) if not job.has_tags(excluded)]

    def filter_running(self, jobs: Iterable[StartedJob] | None = None) -> list[StartedJob]:
        """Return the jobs that are running, or may be while their server is unreachable."""
        return [job for job in self._or_all(jobs) if job.running]

    def _or_all(self, jobs: Iterable[StartedJob] | None) -> Iterable[StartedJob]:
        return self.all() if jobs is None else jobs

    def _recorded(self) -> list[StartedJob]:
        workspace = Workspace.find()
        return _by_key(StartedJob(workspace, job) for job in workspace.select_local(ALL))


def _by_key(jobs: Iterable[StartedJob]) -> list[StartedJob]:
    return sorted(jobs, key=lambda each: each.job.key)


JOBS = Jobs()
