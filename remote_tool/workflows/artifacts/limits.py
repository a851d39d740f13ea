"""How many bytes of artifacts may come: of a file, of a job, and onto the disk here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.model import ArtifactLimit

# The disk here is not filled to its last byte.
KEPT_FREE = 64 * 1024 * 1024


class DiskBudget:
    """How many bytes the disk here can take, for all servers together.

    Attributes:
        folder: On that disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        disk = os.statvfs(next(each for each in (folder, *folder.parents) if each.is_dir()))
        self.left = max(0, disk.f_bavail * disk.f_frsize - KEPT_FREE)

    def take(self, size: int) -> bool:
        """Reserve bytes; False when there are not so many."""
        if size > self.left:
            return False
        self.left -= size
        return True


class Quota:
    """What the files of a job may have together, and what they may still grow by when they come.

    Attributes:
        limit: Of a file and of a job.
        used: By those that are here or chosen.
    """

    def __init__(self, limit: ArtifactLimit, budget: DiskBudget) -> None:
        self.limit = limit
        self.used = 0
        self._room = budget

    def has(self, size: int) -> bool:
        """Whether the job may have so many bytes more."""
        return self.used + size <= self.limit.job

    def most(self, size: int) -> int:
        """Return how large a file may have become for which size bytes are reserved."""
        return max(size, min(self.limit.file, size + min(self.limit.job - self.used, self._room.left)))

    def grow(self, size: int) -> bool:
        """Reserve bytes beyond those that were listed; False when there are not so many."""
        if not self.has(size) or not self._room.take(size):
            return False
        self.used += size
        return True
