"""The list of files that a relay serves, and opening them without following links."""

from __future__ import annotations

import hashlib
import os
import stat
import zlib

from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

_HASH_SIZE = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RelayFile(NamedTuple):
    """A file of the project on the client.

    Attributes:
        sha256: Of its content, in hex.
        mode: Permission bits.
        size: Bytes.
        modified: Nanoseconds since the epoch.
        name: Relative to the project.
    """

    sha256: bytes
    mode: int
    size: int
    modified: int
    name: bytes


def pack(entries: List[RelayFile]) -> bytes:
    """Return the list in its wire format."""
    records = (b"%b %o %d %d %b\0" % entry for entry in entries)
    return zlib.compress(b"".join(records), 6)


def unpack(data: bytes) -> List[RelayFile]:
    """Parse a list after its hash was compared with the client's."""
    entries = []
    try:
        for record in zlib.decompress(data).split(b"\0")[:-1]:
            sha256, mode, size, modified, name = record.split(b" ", 4)
            entries.append(RelayFile(sha256, int(mode, 8), int(size), int(modified), name))
    except (zlib.error, ValueError) as error:
        raise RequestError(f"Cannot read the list of files: {error}") from error
    if not all(_is_inside(entry.name) and len(entry.sha256) == _HASH_SIZE for entry in entries):
        raise RequestError("The list of files contains paths outside the project")
    return entries


def _is_inside(name: bytes) -> bool:
    return bool(name) and not any(part in (b"", b".", b"..") for part in name.split(b"/"))


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def open_file(project: str, name: bytes) -> Tuple[int, os.stat_result]:
    """Open a plain file below the project, through no link; OSError if missing."""
    folder = open_parent(project, name)
    try:
        descriptor = os.open(os.path.basename(name), _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError(f"{name!r:.60} is not a regular file")
    return descriptor, found


def open_parent(project: str, name: bytes, *, make: bool = False) -> int:
    """Open the parent folder of a file, through no link; create it if requested."""
    folder = os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in name.split(b"/")[:-1]:
            try:
                below = os.open(part, _FOLDER, dir_fd=folder)
            except FileNotFoundError:
                if not make:
                    raise
                # rsync sets its permissions later.
                os.mkdir(part, 0o700, dir_fd=folder)
                below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
    except OSError:
        os.close(folder)
        raise
    return folder
