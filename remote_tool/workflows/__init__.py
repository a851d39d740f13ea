"""The journeys, one module each; ``workflows.run`` is imported when it is first used: a command needs few of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from remote_tool.workflows import (
        artifacts,
        bandwidth,
        check,
        fan_out,
        follow_jobs,
        install_keys,
        launch,
        launch_mpi,
        list_jobs,
        prepare,
        pull_jobs,
        relaunch,
        run,
        start_jobs,
        stop_jobs,
        strays,
        sync,
    )

__all__ = [
    "artifacts",
    "bandwidth",
    "check",
    "fan_out",
    "follow_jobs",
    "install_keys",
    "launch",
    "launch_mpi",
    "list_jobs",
    "prepare",
    "pull_jobs",
    "relaunch",
    "run",
    "start_jobs",
    "stop_jobs",
    "strays",
    "sync",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
