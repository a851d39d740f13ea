"""What every workflow about jobs needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.jobs.registry import Registry
    from remote_tool.transport.pool import HostPool
    from remote_tool.workflows.events import Report


@dataclass(frozen=True)
class Context:
    """The configuration, the connections of this command, the records, and whom to tell."""

    config: Config
    pool: HostPool
    registry: Registry
    report: Report
