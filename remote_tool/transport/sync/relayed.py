"""Files that another server sends before rsync compares: the list that is sent, and the result."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from remote_tool.protocol.relay_files import RelayFile, digest_of, pack

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from remote_tool.transport.sync.entries import Entry
    from remote_tool.transport.sync.project.contents import Snapshot

CHUNK = 1024 * 1024


@dataclass(frozen=True)
class FileList:
    """The regular files of a snapshot with the digests of their contents, as sent to a server.

    Attributes:
        names: In the order of the list.
        packed: The encoded list.
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
    """Read all regular files of a snapshot; omit those that have changed since, which rsync sends."""
    files = {each.name: each for each in snapshot.entries if not each.is_folder and not each.target}
    entries = [
        RelayFile(digest.encode(), files[name].mode & 0o777, files[name].size, _modified(files[name]), name)
        for name, digest in hash_entries(snapshot, files.values()).items()
    ]
    return FileList(tuple(entry.name for entry in entries), pack(entries))


def hash_entries(snapshot: Snapshot, entries: Iterable[Entry]) -> dict[bytes, str]:
    """Return the SHA-256 of regular files of a snapshot, by name, without those that have changed since."""
    base = os.fsencode(snapshot.root) + b"/"
    digests = ((each.name, _hash(base + each.name, each.size, _modified(each))) for each in entries)
    return {name: digest for name, digest in digests if digest}


def _modified(entry: Entry) -> int:
    return entry.modified * 1_000_000_000 + entry.nanoseconds


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
    """The files that came from another server.

    Attributes:
        names: The files that are in place now.
        size: Their total size in bytes.
        source: The server that sent them; empty if none did.
    """

    names: frozenset[bytes] = frozenset()
    size: int = 0
    source: str = ""


@dataclass(frozen=True)
class Asking:
    """The script of a sync, which waits until rsync starts.

    Attributes:
        ask: Sends a request to the script and returns its answer; the second argument is called with arriving data.
        unhurried: A context in which the script may stay silent, because another server is working.
    """

    ask: Callable[[bytes, Callable[[bytes], None]], Awaitable[bytes]]
    unhurried: Callable[[], AbstractContextManager[None]]


# Called once per sync with the number of bytes that the server lacks; rsync need not send the files that it fetches.
Relay = Callable[[Asking, "Snapshot", int], Awaitable[Relayed]]
