"""Remove unused files, here and on servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.clean import clean, disk_space, request

__all__ = ["clean", "disk_space", "request"]

__getattr__ = submodules(__name__, __all__)
