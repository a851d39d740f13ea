"""Start one program on several servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.launch import launch, restart

__all__ = ["launch", "restart"]

__getattr__ = submodules(__name__, __all__)
