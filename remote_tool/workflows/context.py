"""The context of workflows about jobs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.jobs.registry_lock import LOCK_TIMEOUT
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.jobs.registry import Registry
    from remote_tool.transport.pool import HostPool
    from remote_tool.workflows.events import Report


# After this many seconds the user is shown what is being waited for.
TOLD_AFTER = 2.0


@dataclass(frozen=True)
class Context:
    """The configuration, connections, records and event reporter of a command, and the disks already warned about."""

    config: Config
    pool: HostPool
    registry: Registry
    report: Report
    low: set[str] = field(default_factory=set)

    async def may_write(self) -> None:
        """Wait until no other program writes the records, without blocking work on other servers.

        Raises:
            JobError: One takes too long; the message names it.
        """
        began, is_told = time.monotonic(), False
        while (problem := self.registry.busy()) is not None:
            waited = time.monotonic() - began
            if waited > LOCK_TIMEOUT:
                raise problem
            if waited > TOLD_AFTER and not is_told:
                is_told = True
                self.report(
                    Notice("", f"waiting for another remote-tool that is writing the records here; {problem.hint}")
                )
            await asyncio.sleep(0.02)
