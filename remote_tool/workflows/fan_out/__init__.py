"""Split work over all slots of all servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.fan_out import fan_out, observer, resume

__all__ = ["fan_out", "observer", "resume"]

__getattr__ = submodules(__name__, __all__)
