"""Options of a sync."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from remote_tool.config.model import Config
    from remote_tool.transport.pool import HostPool

    OnLowDisk = Callable[[str, tuple[int, int]], None]

STEP = "rsync"


@dataclass(frozen=True)
class SyncOptions:
    """How to send.

    Attributes:
        dry_run: Say what would be sent and removed, and change nothing.
        checksum: Compare contents: finds an edit that kept size and time.
        relay: Send to one server, and from there to the others, where there is enough to send.
        overwrite: Replace also what was changed on the server since it was sent, or was never sent.
        adopt: Share a folder that only other workspaces have sent.
        only_adds: As in :class:`PushOptions`.
        step: The step's name in messages.
        on_low_disk: Called with each server whose disk is low, and its free and total bytes.
        asks_to_adopt: Asks whether to share such a folder.
    """

    dry_run: bool = False
    checksum: bool = False
    relay: bool = False
    overwrite: bool = False
    adopt: bool = False
    only_adds: str = ""
    step: str = STEP
    on_low_disk: OnLowDisk | None = None
    asks_to_adopt: Callable[[str], Awaitable[bool]] | None = None


@dataclass(frozen=True)
class Through:
    """How servers are asked to relay files.

    Attributes:
        pool: The servers, in the project's terms.
        config: The project's.
        folder: A data set's, absolute or beginning with ``~/``; empty: the project's.
        step: The step's name in messages.
    """

    pool: HostPool
    config: Config
    folder: str = ""
    step: str = STEP
