"""Sync the project and data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.sync import data_sets, from_job, options, sync

__all__ = ["data_sets", "from_job", "options", "sync"]

__getattr__ = submodules(__name__, __all__)
