"""The result of pulling artifacts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.errors import SomeServersFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job


@dataclass(frozen=True)
class Artifact:
    """A file of a job that is complete here.

    Attributes:
        path: The local file.
        name: Its path on the server, relative to the project.
        size: In bytes.
        is_new: Whether it was pulled just now.
    """

    path: Path
    name: str
    size: int
    is_new: bool


@dataclass(frozen=True)
class PulledJob:
    """A job's local artifacts.

    Attributes:
        job: The job.
        files: The requested files that are here.
        left_out: The name and reason of each requested file that is not here.
        older: The number of matching files that the job did not write.
    """

    job: Job
    files: tuple[Artifact, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    older: int = 0


@dataclass(frozen=True)
class PullAnswer:
    """The answer of a pull.

    Attributes:
        jobs: The artifacts of each job.
        errors: The error of each server that failed.
        bad: A message for each unreadable record.
    """

    jobs: tuple[PulledJob, ...]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    bad: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return 0 if every server answered, else the exit code of :class:`SomeServersFailedError`."""
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
