"""The result of a fan-out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, SomeServersFailedError
from remote_tool.jobs.job import launch_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job

SHARDS_FAILED = 1


@dataclass(frozen=True)
class FanOutAnswer:
    """The result of a fan-out.

    Attributes:
        launch_id: Shared by its jobs.
        shards: Their number.
        jobs: All its jobs by key, including restarted ones.
        done: Numbers of the shards that succeeded.
        failed: The last job of each shard that failed, by its number.
        gathered: The files copied into the project.
        folder: Their folder.
        errors: The error of each server that failed.
        warnings: Server and message.
        is_followed: Whether the command waited for the end.
    """

    launch_id: str
    shards: int
    jobs: tuple[Job, ...]
    done: frozenset[int] = frozenset()
    failed: Mapping[int, Job] = field(default_factory=dict)
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    warnings: tuple[tuple[str, str], ...] = ()
    gathered: tuple[Path, ...] = ()
    folder: Path | None = None
    is_followed: bool = True

    @property
    def undone(self) -> int:
        """Return the number of shards that are not done: they failed, or never started."""
        return self.shards - len(self.done)

    @property
    def exit_code(self) -> int:
        """Return 0: all done, or started and not followed; 1: a shard failed; 3: a server did."""
        if self.failed:
            return SHARDS_FAILED
        if self.errors:
            return self._servers_failed.exit_code
        return SHARDS_FAILED if self.is_followed and self.undone else 0

    def raise_if_any_failed(self) -> FanOutAnswer:
        """Raise the failures.

        Raises:
            SomeServersFailedError: Servers failed.
            JobError: Shards failed.
        """
        if self.errors:
            raise self._servers_failed
        if self.exit_code:
            raise JobError(
                f"{self.undone} of {self.shards} shards are not done",
                hint=f"remote-tool helper-fan-out --resume {launch_name(self.launch_id)}",
            )
        return self

    @property
    def _servers_failed(self) -> SomeServersFailedError:
        return SomeServersFailedError(self.errors, sorted({job.server for job in self.jobs} - set(self.errors)))
