"""Terminals on servers: a shell, and those of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.terminal import attach, shell

__all__ = ["attach", "shell"]

__getattr__ = submodules(__name__, __all__)
