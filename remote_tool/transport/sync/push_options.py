"""How a sync sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.sync.relayed import Relay


@dataclass(frozen=True)
class PushOptions:
    """How to send.

    Attributes:
        dry_run: Change nothing on the server, only say what would change.
        checksum: Compare contents, not sizes and times.
        on_waiting: Called with a notice when another sync of the same folder is waited for.
        on_room: Called with the free bytes and the size of the server's disk after a sync.
        begun: Where it is noted what is being sent, until the server has noted it.
        known: Where it is noted what the server has.
        relay: Brings from another server what this one lacks, before rsync compares.
        overwrite: Replace also what was changed on the server since it was sent, or was never sent.
        only_adds: The command that the user types, of what removes nothing and for which a file that the server has
            otherwise is an error; empty for the project's sync.
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
