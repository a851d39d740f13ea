"""Start jobs, after sending files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.start import again, move, put_back, start

__all__ = ["again", "move", "put_back", "start"]

__getattr__ = submodules(__name__, __all__)
