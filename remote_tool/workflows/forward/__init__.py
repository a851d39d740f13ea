"""Carry connections between ports here and ports of servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.forward import forward, jupyter

__all__ = ["forward", "jupyter"]

__getattr__ = submodules(__name__, __all__)
