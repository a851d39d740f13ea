"""The context of workflows about jobs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.jobs.registry import LOCK_TIMEOUT
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.jobs.registry import Registry
    from remote_tool.transport.pool import HostPool
    from remote_tool.workflows.events import Report


# Seconds until a wait for another program is reported.
REPORTED_AFTER = 2.0


@dataclass(frozen=True)
class Context:
    """The context of a command.

    Attributes:
        config: The configuration.
        pool: The connections to servers.
        registry: The local records of jobs.
        report: Receives events.
        low: The servers with a low disk that have been reported.
    """

    config: Config
    pool: HostPool
    registry: Registry
    report: Report
    low: set[str] = field(default_factory=set)

    async def may_write(self) -> None:
        """Wait until no other program writes the records, without blocking work on other servers.

        Raises:
            JobError: Another program takes too long; the message names it.
        """
        began, is_reported = time.monotonic(), False
        while (problem := self.registry.busy()) is not None:
            waited = time.monotonic() - began
            if waited > LOCK_TIMEOUT:
                raise problem
            if waited > REPORTED_AFTER and not is_reported:
                is_reported = True
                self.report(
                    Notice("", f"waiting for another remote-tool that is writing the records here; {problem.hint}")
                )
            await asyncio.sleep(0.02)
