"""What a relay brings to a server before rsync looks at it: the list of files that travels, and what has come."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from remote_tool.supervisor.relay_files import Entry, digest_of, pack

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from remote_tool.transport.snapshot import Snapshot

CHUNK = 1024 * 1024


@dataclass(frozen=True)
class FileList:
    """The plain files of a snapshot and what they hold, as a server is told.

    Attributes:
        names: In the order of the list.
        packed: The list.
    """

    names: tuple[bytes, ...]
    packed: bytes

    @cached_property
    def digest(self) -> str:
        return digest_of(self.packed)

    def named(self, bits: bytes) -> frozenset[bytes]:
        """Return the names whose bit is set."""
        return frozenset(name for number, name in enumerate(self.names) if _is_set(bits, number))


def _is_set(bits: bytes, number: int) -> bool:
    return number // 8 < len(bits) and bool(bits[number // 8] >> number % 8 & 1)


def list_files(snapshot: Snapshot) -> FileList:
    """Read all plain files of a snapshot; one that is not as it was then is left out, and rsync sends it."""
    entries = []
    base = os.fsencode(snapshot.root) + b"/"
    for each in snapshot.entries:
        if each.is_folder or each.target:
            continue
        modified = each.modified * 1_000_000_000 + each.nanoseconds
        digest = _hash(base + each.name, each.size, modified)
        if digest:
            entries.append(Entry(digest.encode(), each.mode & 0o777, each.size, modified, each.name))
    return FileList(tuple(entry.name for entry in entries), pack(entries))


def _hash(path: bytes, size: int, modified: int) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            digest = hashlib.sha256()
            while data := stream.read(CHUNK):
                digest.update(data)
            found = os.fstat(stream.fileno())
    except OSError:
        return ""
    same = (found.st_size, found.st_mtime_ns) == (size, modified)
    return digest.hexdigest() if stat.S_ISREG(found.st_mode) and same else ""


@dataclass(frozen=True)
class Relayed:
    """What came from another server.

    Attributes:
        names: The files that are in their place now.
        size: Bytes that they hold together.
        source: The server that they came from; empty for none.
    """

    names: frozenset[bytes] = frozenset()
    size: int = 0
    source: str = ""


@dataclass(frozen=True)
class Asking:
    """The script of a sync, which waits before rsync begins.

    Attributes:
        ask: Has it do something, and returns what it tells; the second argument hears it as it comes.
        unhurried: In its context something else than this server is waited for.
    """

    ask: Callable[[bytes, Callable[[bytes], None]], Awaitable[bytes]]
    unhurried: Callable[[], AbstractContextManager[None]]


# Called once per sync, with the bytes that the server lacks; what it brings, rsync need not send.
Relay = Callable[[Asking, "Snapshot", int], Awaitable[Relayed]]
