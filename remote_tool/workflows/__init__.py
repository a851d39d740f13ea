"""Workflows; ``workflows.jobs.run`` is imported on first use, as few commands need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows import (
        artifacts,
        clean,
        fan_out,
        forward,
        jobs,
        launch,
        prepare,
        servers,
        start,
        sweep,
        sync,
        terminal,
    )

__all__ = [
    "artifacts",
    "clean",
    "fan_out",
    "forward",
    "jobs",
    "launch",
    "prepare",
    "servers",
    "start",
    "sweep",
    "sync",
    "terminal",
]

__getattr__ = submodules(__name__, __all__)
