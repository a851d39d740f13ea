"""Requests to the script of a sync: which files exist, and the digests of their contents."""

from __future__ import annotations

import re
import stat
from typing import NamedTuple

from remote_tool.transport.sync.server_state import SIZE, TIME

# Requests: which files exist, in two ways, and the digests of files.
LOOK, LOOK_SLOWLY, HASH = "look", "look-slowly", "hash"
APPEND = "append"
# The project folder, which every complete answer contains: without it, the server lacks a tool.
_SENTINEL = b"0 0 .\0"
_HEX = re.compile(rb"[0-9a-f]{1,8}")


def question(kind: str, records: bytes, *, of_all: bool = False) -> bytes:
    """Return the lines that ask which files exist, or for their digests.

    Args:
        kind: ``LOOK``, ``LOOK_SLOWLY`` for servers that lack tools for it, or ``HASH``.
        records: As in the list of sent files; for ``HASH``, names.
        of_all: Whether to include the files of the server's own list.
    """
    if kind != HASH:
        records += _SENTINEL
    return f"{kind} {len(records)} {'all' if of_all else 'these'}\n".encode() + records


def append_words(name: bytes, data: bytes) -> bytes:
    """Return the request to append data to an existing file; its name has no newline."""
    return b"%s %d %b\n%b" % (APPEND.encode(), len(data), name, data)


class Found(NamedTuple):
    """A file on the server; its time is in seconds, as rsync compares it."""

    mode: int
    size: int
    modified: int

    def line(self, name: bytes) -> bytes:
        """Return the line that the server prints for it, as :attr:`Entry.look`; the target of a link is unknown."""
        if stat.S_ISDIR(self.mode):
            return b"%x ./%b\0" % (self.mode, name)
        return b"%x %d %d ./%b\0" % (*self, name)


def parse_found(answer: bytes) -> dict[bytes, Found] | None:
    """Parse which files exist; a folder also appears with a trailing slash. None: the server lacks a tool."""
    found = {}
    for line in answer.split(b"\0"):
        words = line.split(b" ", 3)
        if len(words) == len(("mode", "size", "time", "name")) and _HEX.fullmatch(words[0]):
            mode, size, modified, name = words
            if SIZE.fullmatch(size) and TIME.fullmatch(modified) and name.startswith(b"./"):
                found[name[2:]] = Found(int(mode, 16), int(size), int(modified))
    return found if found.pop(b".", None) else None


def parse_hashes(answer: bytes) -> dict[bytes, str]:
    """Parse the SHA-256 of files, by name."""
    pairs = (line.partition(b" ") for line in answer.split(b"\0"))
    return {name: digest.decode(errors="replace") for digest, _, name in pairs if name}
