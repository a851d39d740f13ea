"""The private folder of the kept logins, and what a command finds there of one."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.system.locks import lock

if TYPE_CHECKING:
    from remote_tool.config.model import Config

# Another value for whatever an older version would misread.
FORMAT = 1
# A stock sshd allows ten, and a command that is given up needs one more to be told so.
MOST_SESSIONS = 7
# sockaddr_un of macOS; ssh binds a name of 17 letters more first, and renames it.
LONGEST_SOCKET = 103 - 17


@dataclass(frozen=True)
class Place:
    """The folder of one server's kept login: its record, its socket, and the locks of who uses it."""

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
        """Where the public half of an agent's key is, for a host on the way."""
        return self.folder / f"key{number}.pub"

    def new_socket(self) -> Path:
        """Return a name that no earlier master has: when that one ends, it removes its own."""
        return self.folder / f"s{os.urandom(2).hex()}"

    def make(self) -> None:
        """Make the folder.

        Raises:
            OSError: It cannot be made.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def start_lock(self) -> int | None:
        """Return an open file that only one process has at a time; None while another one has it."""
        return self._locked("starting")

    def take_slot(self) -> int | None:
        """Return an open file that stands for one session of the login; None when all are taken."""
        return next((taken for name in self._slots if (taken := self._locked(name)) is not None), None)

    @property
    def sessions(self) -> int:
        """How many sessions there are now, of all processes."""
        free = [taken for name in self._slots if (taken := self._locked(name)) is not None]
        for taken in free:
            os.close(taken)
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
    """Return where the kept login of a server is, by all that a command knows before it reads a file.

    None where there is no folder that nobody else can look into.
    """
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
    """Return the folder of all kept logins, made when there is none; None where others could get into it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and not is_ours(Path(runtime), stat.S_ISDIR):
        return None
    folder = Path(runtime) / "remote-tool" if runtime else Path(tempfile.gettempdir()) / f"remote-tool-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700)
    return folder if is_ours(folder, stat.S_ISDIR) else None


def is_ours(path: Path, is_kind: object) -> bool:
    """Whether something belongs to us, nobody else can use it, and it is what it should be and no link to it."""
    assert callable(is_kind)
    try:
        status = path.lstat()
    except OSError:
        return False
    return bool(is_kind(status.st_mode)) and status.st_uid == os.getuid() and not status.st_mode & 0o077
