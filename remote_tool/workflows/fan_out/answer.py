"""What became of a fan-out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, SomeServersFailedError
from remote_tool.launchers.fan_out import fan_out_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job

SHARDS_FAILED = 1


@dataclass(frozen=True)
class FanOutAnswer:
    """What became of a fan-out.

    Attributes:
        launch_id: Shared by its jobs.
        shards: How many there are.
        jobs: All of it, by key, also those that were started again.
        done: Numbers of the shards that succeeded.
        failed: The last job of each shard that failed, by its number.
        gathered: The files that were put into the project.
        folder: Where they are.
        errors: The error of each server that failed.
        warnings: Server and sentence.
        is_followed: Whether somebody stayed until nothing went on.
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
        """How many shards nobody has done: they failed, or never began."""
        return self.shards - len(self.done)

    @property
    def exit_code(self) -> int:
        """0: all is done, or begun where nobody follows; 1: a shard failed; 3: a server did."""
        if self.failed:
            return SHARDS_FAILED
        if self.errors:
            return self._servers_failed.exit_code
        return SHARDS_FAILED if self.is_followed and self.undone else 0

    def raise_if_any_failed(self) -> FanOutAnswer:
        """Raise what failed.

        Raises:
            SomeServersFailedError: Servers did.
            JobError: Shards did.
        """
        if self.errors:
            raise self._servers_failed
        if self.exit_code:
            raise JobError(
                f"{self.undone} of {self.shards} shards are not done",
                hint=f"remote-tool helper-fan-out --resume {fan_out_name(self.launch_id)}",
            )
        return self

    @property
    def _servers_failed(self) -> SomeServersFailedError:
        return SomeServersFailedError(self.errors, sorted({job.server for job in self.jobs} - set(self.errors)))
