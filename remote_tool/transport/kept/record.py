"""The record of a kept login: how it was authenticated, and the conditions for its use."""

from __future__ import annotations

import json
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_tool.system.files import read_bounded
from remote_tool.transport.host import Login
from remote_tool.transport.kept.folder import FORMAT, is_private, write_private
from remote_tool.transport.ssh.host_keys.entries import HostKey, UnusableFileError
from remote_tool.transport.ssh.host_keys.known_hosts import Reader, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from remote_tool.transport.kept.folder import KeptFolder
    from remote_tool.transport.ssh.context import Hop
    from remote_tool.transport.ssh.endpoint import Endpoint

LONGEST_RECORD = 1024 * 1024
_LOGIN_TEXTS = ("username", "method", "host_key")
LATEST_TIME = 1e11  # a later one cannot be shown


@dataclass(frozen=True)
class AcceptedHostKey:
    """The accepted key of a host, and the files that must still accept it.

    Attributes:
        names: The host's names in known_hosts files.
        files: The known_hosts files.
        revoked: The file of revoked keys.
        kind: The key's type.
        blob: The key, in hexadecimal digits.
    """

    names: tuple[str, ...]
    files: tuple[str, ...]
    revoked: str | None
    kind: str
    blob: str

    def is_still_accepted(self, reader: Reader) -> bool:
        """Return whether the files still accept this key."""
        try:
            known = reader.read(map(Path, self.files), Path(self.revoked) if self.revoked else None)
            result = known.check(self.names, HostKey(self.kind, bytes.fromhex(self.blob)))
        except (UnusableFileError, ValueError):
            return False
        return result.verdict is Verdict.KNOWN


@dataclass(frozen=True)
class Record:
    """One kept login.

    Attributes:
        project: The project folder.
        server: The server's name in the project.
        socket: The master's socket.
        since: The start of the master, in seconds since 1970.
        login: How the login was authenticated.
        address: The server's address, as in messages.
        hosts: The host keys of the jump hosts and the server.
        watched: Files with settings and keys, with the state of each.
    """

    project: str
    server: str
    socket: Path
    since: float
    login: Login
    address: str
    hosts: tuple[AcceptedHostKey, ...]
    watched: dict[str, tuple[int, ...]]

    @property
    def is_usable(self) -> bool:
        """Return whether the settings, keys and host keys of the login are unchanged, and its socket is private."""
        reader = Reader(lambda _: None)
        return (
            is_private(self.socket, stat.S_ISSOCK)
            and all(state_of(Path(path)) == state for path, state in self.watched.items())
            and all(host.is_still_accepted(reader) for host in self.hosts)
        )

    def write(self, folder: KeptFolder) -> None:
        """Write the record for the next command.

        Raises:
            OSError: It cannot be written.
        """
        values = {"format": FORMAT, **asdict(self), "socket": self.socket.name}
        write_private(folder.record, json.dumps(values))


def read_record(folder: KeptFolder) -> Record | None:
    """Return the record of a kept login; None if it is missing, not valid, or not private."""
    if not is_private(folder.path, stat.S_ISDIR) or not is_private(folder.record, stat.S_ISREG):
        return None
    try:
        values = json.loads(read_bounded(folder.record, LONGEST_RECORD)[0])
        return _record(folder, values) if values["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _record(folder: KeptFolder, values: dict[str, Any]) -> Record:
    name, since = values["socket"], float(values["since"])
    if Path(name).name != name or not 0 <= since <= LATEST_TIME:
        raise ValueError(f"{name}, {since}")
    return Record(
        project=str(values["project"]),
        server=str(values["server"]),
        socket=folder.path / name,
        since=since,
        login=Login(**{field: str(values["login"][field]) for field in _LOGIN_TEXTS}, is_new=False),
        address=str(values["address"]),
        hosts=tuple(_accepted_host_key(host) for host in values["hosts"]),
        watched={path: tuple(state) for path, state in values["watched"].items()},
    )


def _accepted_host_key(values: dict[str, Any]) -> AcceptedHostKey:
    return AcceptedHostKey(
        names=tuple(map(str, values["names"])),
        files=tuple(map(str, values["files"])),
        revoked=str(values["revoked"]) if values["revoked"] else None,
        kind=str(values["kind"]),
        blob=str(values["blob"]),
    )


def accepted_host_keys(hops: Iterable[Hop], own_file: Path) -> tuple[AcceptedHostKey, ...]:
    """Return the accepted host keys of a login; ``own_file`` is our own known_hosts file."""
    return tuple(
        AcceptedHostKey(
            names=hop.endpoint.trust.names,
            files=tuple(map(str, (*hop.endpoint.trust.files, own_file))),
            revoked=str(hop.endpoint.trust.revoked) if hop.endpoint.trust.revoked else None,
            kind=hop.host_key.kind,
            blob=hop.host_key.blob.hex(),
        )
        for hop in hops
    )


def watched_files(hops: Sequence[Hop]) -> dict[str, tuple[int, ...]]:
    """Return the files with the settings and keys of a login, with the state of each."""
    paths = {Path.home() / ".ssh" / "config"}
    for hop in hops:
        identity = hop.endpoint.identity
        paths |= {hop.key_file} if hop.key_file else {Path(identity.agent)}
        paths |= {identity.private_key} if identity.private_key else set(identity.files)
        # A new file that matches a wildcard changes its folder.
        paths |= {path.parent if has_wildcard(path) else path for path in hop.endpoint.included}
        paths |= set(included_files(hop.endpoint))
    return {str(path): state_of(path) for path in paths}


def included_files(endpoint: Endpoint) -> list[Path]:
    """Return the existing files that the settings of a login include."""
    return [file for path in endpoint.included for file in path.parent.glob(path.name) if file.is_file()]


def has_wildcard(path: Path) -> bool:
    """Return whether a path of an ``Include`` has wildcards."""
    return any(letter in str(path) for letter in "*?[")


def state_of(path: Path) -> tuple[int, ...]:
    """Return values that change when a file changes; empty if it is missing."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return ()
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
