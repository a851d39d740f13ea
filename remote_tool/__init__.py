"""Prepare machines that you reach by SSH, and train on them.

``Workspace`` is the synchronous API; ``remote_tool.workflows`` is the asynchronous core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job, JobState
    from remote_tool.launchers.request import LaunchRequest
    from remote_tool.workflows.fan_out.request import FanOutRequest
    from remote_tool.workflows.jobs.follow import FollowOptions
    from remote_tool.workflows.selection import JobSelection
    from remote_tool.workflows.start.start import StartRequest
    from remote_tool.workflows.sweep.request import SweepRequest
    from remote_tool.workflows.terminal.shell import ShellRequest
    from remote_tool.workspace import Hooks, RunningJob, Workspace

__version__ = "0.2.0"
__all__ = [
    "FanOutRequest",
    "FollowOptions",
    "Hooks",
    "Job",
    "JobSelection",
    "JobState",
    "LaunchRequest",
    "RemoteToolError",
    "RunningJob",
    "ShellRequest",
    "StartRequest",
    "SweepRequest",
    "Workspace",
    "__version__",
]

_MODULES = {
    "FanOutRequest": "remote_tool.workflows.fan_out.request",
    "FollowOptions": "remote_tool.workflows.jobs.follow",
    "Hooks": "remote_tool.workspace",
    "Job": "remote_tool.jobs.job",
    "JobSelection": "remote_tool.workflows.selection",
    "JobState": "remote_tool.jobs.job",
    "LaunchRequest": "remote_tool.launchers.request",
    "RemoteToolError": "remote_tool.errors",
    "RunningJob": "remote_tool.workspace",
    "ShellRequest": "remote_tool.workflows.terminal.shell",
    "StartRequest": "remote_tool.workflows.start.start",
    "SweepRequest": "remote_tool.workflows.sweep.request",
    "Workspace": "remote_tool.workspace",
}


def __getattr__(name: str) -> object:
    # The command line imports this package on the way to --help; the SSH library loads when a name is asked for.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
