"""Who hears how a fan-out gets on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.jobs.job import Job
    from remote_tool.launchers.fan_out import FanOutPlan, Shard, Slot
    from remote_tool.workflows.follow_jobs import Chunk


@dataclass(frozen=True)
class Turn:
    """A job that does a shard on a slot."""

    shard: Shard
    slot: Slot
    job: Job


@dataclass(frozen=True)
class Audience:
    """What is called while a fan-out goes on, on another thread.

    Attributes:
        on_plan: Told once what there is to do, before anything is started.
        on_chunk: Given the bytes that jobs write.
        on_end: Told each turn that is over, and whether its shard is taken again.
    """

    on_plan: Callable[[FanOutPlan], None] = lambda _plan: None
    on_chunk: Callable[[Chunk], None] = lambda _chunk: None
    on_end: Callable[[Turn, bool], None] = lambda _turn, _again: None
