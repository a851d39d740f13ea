"""The end of a sync on the server: remove stale files, and record the new state."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from remote_tool.protocol.records import is_job_id
from remote_tool.transport.sync.server_state import COMPLETE

if TYPE_CHECKING:
    from remote_tool.transport.sync.server_state import Attempt

# rsync keeps partial files in this folder beside the target: with a folder elsewhere, releases since
# CVE-2026-43619 (such as Debian's 3.2.7-1+deb12u6) do not find them again, and each further attempt fails.
PARTIAL_FOLDER = ".remote-tool-partial"
_ROOM = re.compile(rb"//([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,9})\0")


def commit_words(attempt: Attempt, sent_size: int, stale_size: int, *, all_sent: bool) -> bytes:
    """Return the line that confirms that the local rsync succeeded; the sent list and stale records follow.

    Args:
        attempt: This sync.
        sent_size: Size of the sent list in bytes.
        stale_size: Size of the stale records in bytes.
        all_sent: Whether the copy is complete; if not, it stays recorded as incomplete.
    """
    # The newline ends what rsync may have left unread.
    return f"\ncommit {attempt.mark} {sent_size} {stale_size} {COMPLETE if all_sent else ''}\n".encode()


def parse_finish(answer: bytes) -> tuple[list[str], list[str]]:
    """Parse the end of a sync: the names of removed files, and the ids of running jobs."""
    names = [os.fsdecode(name) for name in answer.split(b"\0") if name]
    removed = [name for name in names if not name.startswith("/")]
    return removed, [name[1:] for name in names if is_job_id(name[1:]) and name.startswith("/")]


def parse_room(answer: bytes) -> tuple[int, int] | None:
    """Parse the free bytes and the size of the server's disk at the end of a sync; None: not reported."""
    found = _ROOM.search(answer)
    if found is None:
        return None
    free, every, block = (int(number) for number in found.groups())
    return free * block, every * block
