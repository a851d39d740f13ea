"""Start, list, follow and stop jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.jobs import compare, follow, listing, orphans, pull, run, show, stacks, stop, tensorboard

__all__ = ["compare", "follow", "listing", "orphans", "pull", "run", "show", "stacks", "stop", "tensorboard"]

__getattr__ = submodules(__name__, __all__)
