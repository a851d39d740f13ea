"""The older shape of the Python API, as labml_remote had it: ``JOBS.create(…).start()``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.workspace import RunningJob, Workspace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class PendingJob:
    """A job that is not started yet."""

    server: str
    command: str
    env_vars: Mapping[str, str] = field(default_factory=dict, repr=False)
    tags: Sequence[str] = ()

    def start(self) -> RunningJob:
        """Start it on its server, as the project folder is there: labml_remote sent nothing first."""
        return Workspace.find().start(self.server, self.command, dict(self.env_vars), tuple(self.tags), sync=False)


class Jobs:
    """Makes jobs of the workspace that the current folder belongs to."""

    def create(
        self, server: str, command: str, env_vars: Mapping[str, str] | None = None, tags: Sequence[str] = ()
    ) -> PendingJob:
        """Describe a job; ``start`` starts it."""
        return PendingJob(server, command, dict(env_vars or {}), tuple(tags))


JOBS = Jobs()
