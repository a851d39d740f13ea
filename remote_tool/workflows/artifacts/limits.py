"""Limits on pulled bytes: per file, per job, and by local disk space."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.artifacts import ArtifactLimit

# Some local disk space is always kept free.
KEPT_FREE = 64 * 1024 * 1024


class DiskBudget:
    """The free space of the local disk, shared by the pulls from all servers.

    Attributes:
        folder: A folder on that disk.
        left: The bytes that may still be reserved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        disk = os.statvfs(next(each for each in (folder, *folder.parents) if each.is_dir()))
        self.left = max(0, disk.f_bavail * disk.f_frsize - KEPT_FREE)

    def take(self, size: int) -> bool:
        """Reserve bytes; return False if there is not enough space."""
        if size > self.left:
            return False
        self.left -= size
        return True


class Quota:
    """The limits on the files of a job, which may grow while they are transferred.

    Attributes:
        limit: The limits per file and per job.
        used: The bytes of local and chosen files.
    """

    def __init__(self, limit: ArtifactLimit, budget: DiskBudget) -> None:
        self.limit = limit
        self.used = 0
        self._budget = budget

    def has(self, size: int) -> bool:
        """Return whether the job has this many bytes left."""
        return self.used + size <= self.limit.job

    def most(self, size: int) -> int:
        """Return the largest size that a file may get, given its reserved size."""
        return max(size, min(self.limit.file, size + min(self.limit.job - self.used, self._budget.left)))

    def grow(self, size: int) -> bool:
        """Reserve bytes beyond the listed size; return False if the limit is exceeded."""
        if not self.has(size) or not self._budget.take(size):
            return False
        self.used += size
        return True
