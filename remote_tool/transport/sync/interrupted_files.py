"""Complete large files, of which an interrupted sync left part on the server, before rsync runs.

rsync searches the rest of the file for the server's part at every byte, which takes longer than a fast network.
It compares the whole file afterwards, so a part that was completed wrongly only costs time.
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.transport.sync.server_script import PARTIAL_FOLDER, append_words

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from remote_tool.transport.sync.entries import Entry
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.server_script import Found

# rsync is fast enough with smaller files.
LEAST_SIZE = 16 * 1024 * 1024
PIECE = 8 * 1024 * 1024


def places(entries: Iterable[Entry], begun: Mapping[bytes, tuple[int, int]]) -> dict[bytes, Entry]:
    """Return the path of a possible part of each large file that has not changed since its sync was interrupted."""
    large = (entry for entry in entries if entry.size >= LEAST_SIZE and b"\n" not in entry.name)
    return {_place(entry.name): entry for entry in large if begun.get(entry.name) == (entry.size, entry.modified)}


def _place(name: bytes) -> bytes:
    folder, slash, last = name.rpartition(b"/")
    return folder + slash + PARTIAL_FOLDER.encode() + b"/" + last


async def missing_parts(
    snapshot: Snapshot, wanted: Mapping[bytes, Entry], found: Mapping[bytes, Found]
) -> AsyncIterator[bytes]:
    """Yield the requests that append the missing data to parts on the server."""
    for place, entry in wanted.items():
        part = found.get(place)
        if part is None or not stat.S_ISREG(part.mode):
            continue
        with suppress(OSError):
            path = os.fsencode(snapshot.root) + b"/" + entry.name
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                file.seek(part.size)
                while data := await asyncio.to_thread(file.read, max(0, min(PIECE, entry.size - file.tell()))):
                    yield append_words(place, data)
