"""The private folder of kept logins, and the place of each login in it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.system.locks import lock, unlock

if TYPE_CHECKING:
    from remote_tool.config.model import Config

# Changes whenever an older version would misread the files.
FORMAT = 1
# sshd allows ten by default, and ending a command that was given up needs one more.
MOST_SESSIONS = 7
# sockaddr_un of macOS; ssh binds a name of 17 letters more first, and renames it.
LONGEST_SOCKET = 103 - 17


@dataclass(frozen=True)
class Place:
    """The folder of one kept login: its record, its socket, and the locks of its users."""

    folder: Path

    @property
    def record(self) -> Path:
        return self.folder / "record.json"

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def public_key(self, number: int) -> Path:
        """Return the path of the public key to use for a host on the way."""
        return self.folder / f"key{number}.pub"

    def new_socket(self) -> Path:
        """Return an unused name: an earlier master that ends removes its own socket."""
        return self.folder / f"s{os.urandom(2).hex()}"

    def make(self) -> None:
        """Make the folder.

        Raises:
            OSError: It cannot be made, or others can access what is there.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if not is_ours(self.folder, stat.S_ISDIR):
            raise PermissionError(f"{self.folder} is not private")

    def start_lock(self) -> int | None:
        """Return a locked file that only one process can hold; None while another process holds it."""
        return self._locked("starting")

    def take_slot(self) -> int | None:
        """Return a locked file that stands for one session; None when all are taken."""
        return next((taken for name in self._slots if (taken := self._locked(name)) is not None), None)

    @property
    def sessions(self) -> int:
        """Number of sessions of all processes now."""
        free = [taken for name in self._slots if (taken := self._locked(name)) is not None]
        for taken in free:
            unlock(taken)
        return MOST_SESSIONS - len(free)

    @property
    def _slots(self) -> list[str]:
        return [f"use{number}" for number in range(MOST_SESSIONS)]

    def _locked(self, name: str) -> int | None:
        try:
            descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        try:
            lock(descriptor)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor


def place_of(config: Config, name: str) -> Place | None:
    """Return the place of a server's kept login, which depends on all its settings; None without a private folder."""
    base = private_folder()
    if base is None:
        return None
    server = config.servers[name]
    settings = [
        *(FORMAT, name, server.hostname, server.port, server.username, str(server.private_key), server.is_listed),
        *(config.host_keys, str(config.local.known_hosts), config.keep_connections),
        *(str(Path.home()), os.environ.get("SSH_AUTH_SOCK")),
    ]
    place = Place(base / hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12])
    return place if len(os.fsencode(place.new_socket())) <= LONGEST_SOCKET else None


def private_folder() -> Path | None:
    """Return the folder of all kept logins, creating it if missing; None if others can access it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and not is_ours(Path(runtime), stat.S_ISDIR):
        return None
    try:
        folder = Path(runtime, "remote-tool") if runtime else Path(tempfile.gettempdir(), f"remote-tool-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder if is_ours(folder, stat.S_ISDIR) else None


def is_ours(path: Path, is_kind: object) -> bool:
    """Return whether a path is of the expected kind, not a link, owned by this user and private."""
    assert callable(is_kind)
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return False
    return bool(is_kind(status.st_mode)) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def write_private(path: Path, text: str) -> None:
    """Write a file of the folder; it appears whole, but not synced: no login survives a power cut."""
    new = path.with_name(f"{path.name}.new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)
