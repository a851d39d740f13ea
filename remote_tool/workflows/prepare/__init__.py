"""Prepare servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.prepare import prepare

__all__ = ["prepare"]

__getattr__ = submodules(__name__, __all__)
