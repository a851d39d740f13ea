"""The private folder of all kept logins, and the folder of each in it."""

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

# Part of the name of a folder; another number when older versions would misread its files.
FORMAT = 1
# sshd allows ten by default, and the end of a canceled command needs one of its own.
MOST_SESSIONS = 7
# The limit of macOS (sockaddr_un); ssh binds a name with 17 more letters first, and renames the socket.
LONGEST_SOCKET = 103 - 17


@dataclass(frozen=True)
class KeptFolder:
    """The folder of one kept login: its record, its socket, and the locks of its users."""

    path: Path

    @property
    def record(self) -> Path:
        return self.path / "record.json"

    @property
    def config(self) -> Path:
        return self.path / "config"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    def public_key(self, number: int) -> Path:
        """Return the path of the public key for a host, by its number on the way."""
        return self.path / f"key{number}.pub"

    def new_socket(self) -> Path:
        """Return an unused path, as an earlier master removes its own socket when it ends."""
        return self.path / f"s{os.urandom(2).hex()}"

    def create(self) -> None:
        """Create the folder if missing.

        Raises:
            OSError: It cannot be created, or others can access it.
        """
        self.path.mkdir(mode=0o700, exist_ok=True)
        if not is_private(self.path, stat.S_ISDIR):
            raise PermissionError(f"{self.path} is not private")

    def start_lock(self) -> int | None:
        """Lock the start of a master, and return the locked file; None while another process holds the lock."""
        return self._lock_file("starting")

    def take_slot(self) -> int | None:
        """Lock one of the files that stand for sessions, and return it; None when all are taken."""
        return next((slot for name in self._slots if (slot := self._lock_file(name)) is not None), None)

    @property
    def sessions(self) -> int:
        """The current number of sessions, of all processes."""
        free = [slot for name in self._slots if (slot := self._lock_file(name)) is not None]
        for slot in free:
            unlock(slot)
        return MOST_SESSIONS - len(free)

    @property
    def _slots(self) -> list[str]:
        return [f"use{number}" for number in range(MOST_SESSIONS)]

    def _lock_file(self, name: str) -> int | None:
        try:
            descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        try:
            lock(descriptor)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor


def kept_folder(config: Config, name: str) -> KeptFolder | None:
    """Return the folder for a server's login, by a hash of all its settings; None without a private place for it."""
    base = private_folder()
    if base is None:
        return None
    server = config.servers[name]
    settings = [
        *(FORMAT, name, server.hostname, server.port, server.username, str(server.private_key), server.is_listed),
        *(config.host_keys, str(config.local.known_hosts), config.keep_connections),
        *(str(Path.home()), os.environ.get("SSH_AUTH_SOCK")),
    ]
    folder = KeptFolder(base / hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12])
    return folder if len(os.fsencode(folder.new_socket())) <= LONGEST_SOCKET else None


def private_folder() -> Path | None:
    """Return the folder of all kept logins, created if missing; None if others can access it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and not is_private(Path(runtime), stat.S_ISDIR):
        return None
    try:
        folder = Path(runtime, "remote-tool") if runtime else Path(tempfile.gettempdir(), f"remote-tool-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder if is_private(folder, stat.S_ISDIR) else None


def is_private(path: Path, is_kind: object) -> bool:
    """Return whether a path is of the expected kind and no link, and only this user can access it."""
    assert callable(is_kind)
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return False
    return bool(is_kind(status.st_mode)) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def write_private(path: Path, text: str) -> None:
    """Write a file atomically; it is not synced, as no login survives a power cut."""
    new = path.with_name(f"{path.name}.new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)
