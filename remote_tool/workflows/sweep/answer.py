"""The result of starting or resuming a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.errors import SomeServersFailedError
from remote_tool.jobs.job import launch_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job


@dataclass(frozen=True)
class SweepAnswer:
    """The result of starting or resuming a sweep.

    Attributes:
        launch_id: Shared by its jobs.
        combinations: Their number.
        jobs: The jobs that were started now, one for each combination that was missing.
        done: Numbers of the combinations that had succeeded before.
        waiting: Numbers of the combinations whose jobs were queued or running before.
        errors: The error of each server that failed.
        warnings: Server and message.
    """

    launch_id: str
    combinations: int
    jobs: tuple[Job, ...]
    done: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    warnings: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Return its short name: the end of its id."""
        return launch_name(self.launch_id)

    @property
    def missing(self) -> int:
        """Return the number of combinations whose jobs did not start."""
        started = {job.node_rank for job in self.jobs if not job.state.is_finished or job.started_at is not None}
        return self.combinations - len(self.done | self.waiting | started)

    @property
    def exit_code(self) -> int:
        """Return 0: all were started; otherwise the code of the servers that failed."""
        return self._servers_failed.exit_code if self.errors else 0

    def raise_if_any_failed(self) -> SweepAnswer:
        """Raise the failures.

        Raises:
            SomeServersFailedError: Servers failed.
        """
        if self.errors:
            raise self._servers_failed
        return self

    @property
    def _servers_failed(self) -> SomeServersFailedError:
        return SomeServersFailedError(self.errors, sorted({job.server for job in self.jobs} - set(self.errors)))
