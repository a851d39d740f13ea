"""The options of a sync."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.sync.project.workspace import WorkspaceId
    from remote_tool.transport.sync.relayed import Relay


@dataclass(frozen=True)
class PushOptions:
    """The options of a sync.

    Attributes:
        dry_run: Change nothing on the server; only report what would change.
        checksum: Compare contents instead of sizes and times.
        on_waiting: Called with a message when the sync waits for another one of the same folder.
        on_room: Called after a sync with the free bytes and the size of the server's disk.
        begun: File that records what is being sent, until the server has recorded it.
        known: File that records what the server has.
        relay: Fetches files from another server before rsync compares.
        overwrite: Also replace files that were changed on the server since they were sent, or were never sent.
        only_adds: For a command that removes nothing and fails if the server has another version of a file: the command
            as the user types it. Empty for a sync of the project.
        workspace: Who sends; None: whoever has sent there does not matter.
        adopt: Share a folder that only other workspaces have sent; nothing of theirs is removed.
    """

    dry_run: bool = False
    checksum: bool = False
    on_waiting: Callable[[str], None] = lambda _text: None
    on_room: Callable[[int, int], None] = lambda _free, _total: None
    begun: Path | None = None
    known: Path | None = None
    relay: Relay | None = None
    overwrite: bool = False
    only_adds: str = ""
    workspace: WorkspaceId | None = None
    adopt: bool = False
