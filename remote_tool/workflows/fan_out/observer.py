"""Callbacks for the progress of a fan-out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.workflows.fan_out.plan import FanOutPlan
    from remote_tool.workflows.fan_out.work_queue import Attempt
    from remote_tool.workflows.jobs.follow import Chunk


@dataclass(frozen=True)
class Observer:
    """Callbacks of a fan-out, called on another thread.

    Attributes:
        on_plan: Called once with the plan, before anything starts.
        on_chunk: Called with the output of jobs.
        on_end: Called with each attempt that ended, and whether its shard is tried again.
    """

    on_plan: Callable[[FanOutPlan], None] = lambda _plan: None
    on_chunk: Callable[[Chunk], object] = lambda _chunk: None
    on_end: Callable[[Attempt, bool], None] = lambda _attempt, _again: None
