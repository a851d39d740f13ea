"""The journeys, in rooms; ``workflows.jobs.run`` is imported when it is first used: a command needs few of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows import artifacts, clean, fan_out, jobs, launch, prepare, servers, start, sync

__all__ = ["artifacts", "clean", "fan_out", "jobs", "launch", "prepare", "servers", "start", "sync"]

__getattr__ = submodules(__name__, __all__)
