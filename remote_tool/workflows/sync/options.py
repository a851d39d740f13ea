"""How a sync is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.transport.pool import HostPool

STEP = "rsync"


@dataclass(frozen=True)
class SyncOptions:
    """How to send.

    Attributes:
        dry_run: Say what would be sent and removed, and change nothing.
        checksum: Compare contents: finds an edit that kept size and time.
        relay: Send to one server, and from there to the others, where there is enough to send.
        overwrite: Replace also what was changed on the server since it was sent, or was never sent.
        only_adds: As in :class:`PushOptions`.
        step: What it is called.
        tells_room: Whether disks that are nearly full are told of; a start does it by itself.
    """

    dry_run: bool = False
    checksum: bool = False
    relay: bool = False
    overwrite: bool = False
    only_adds: str = ""
    step: str = STEP
    tells_room: bool = True


@dataclass(frozen=True)
class Through:
    """By what servers are asked to hand on what they have.

    Attributes:
        pool: Of the servers, as the project has them.
        config: Of the project.
        folder: A data set's, absolute or beginning with ``~/``; empty: the project's.
        step: What the sync is called.
    """

    pool: HostPool
    config: Config
    folder: str = ""
    step: str = STEP
