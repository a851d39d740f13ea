"""The synchronous Python API: a thin layer over the workflows, which run on a background event loop."""

from __future__ import annotations

from remote_tool.workspace.jobs import RunningJob
from remote_tool.workspace.launches import LaunchMethods
from remote_tool.workspace.project import Hooks
from remote_tool.workspace.servers import ServerMethods

__all__ = ["Hooks", "RunningJob", "Workspace"]


class Workspace(LaunchMethods, ServerMethods):
    """A project with its servers and jobs.

    A method acts on several servers in parallel; without names, it acts on every configured server.
    """
