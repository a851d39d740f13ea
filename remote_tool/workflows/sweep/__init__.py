"""Start a job for each combination of parameters, and show their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.sweep import results, sweep

__all__ = ["results", "sweep"]

__getattr__ = submodules(__name__, __all__)
