"""Pull artifacts of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.artifacts import answer, pull

__all__ = ["answer", "pull"]

__getattr__ = submodules(__name__, __all__)
