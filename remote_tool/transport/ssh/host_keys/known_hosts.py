"""Known host keys: OpenSSH's known_hosts files, with the same decisions.

The rules are in ``sshd(8)``, SSH_KNOWN_HOSTS FILE FORMAT. One is stricter here: a host with any known key is not new,
whatever the type of the key that it presents.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from remote_tool.transport.ssh.endpoint import DEFAULT_PORT
from remote_tool.transport.ssh.host_keys.entries import (
    NOTE,
    HostKey,
    KnownHostsEntry,
    Marker,
    hmac_parts,
    parse,
    read_bytes,
    read_revoked,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path


class Verdict(Enum):
    """The verdict on a host's key."""

    KNOWN = auto()
    NEW = auto()
    CHANGED = auto()
    DAMAGED = auto()
    REVOKED = auto()


@dataclass(frozen=True)
class CheckResult:
    """A verdict, and the lines that it is based on."""

    verdict: Verdict
    entries: tuple[KnownHostsEntry, ...] = ()


class KnownHostsFile:
    """The lines of a file by host name; each name is searched once."""

    def __init__(self, entries: Sequence[KnownHostsEntry]) -> None:
        self._entries = entries
        self._named: defaultdict[str, list[int]] = defaultdict(list)
        self._patterns: list[int] = []
        self._hashed: list[tuple[bytes, bytes, bytes, int]] = []
        self._by_name: dict[str, list[KnownHostsEntry]] = {}
        for number, entry in enumerate(entries):
            if entry.is_hashed:
                self._hashed.append((*hmac_parts(entry.patterns), number))
            elif not entry.plain_names:
                self._patterns.append(number)
            for name in entry.plain_names:
                self._named[name].append(number)

    def lines_of(self, name: str) -> list[KnownHostsEntry]:
        """Return the lines for a host in order; the name is from :func:`lookup_names`."""
        if name not in self._by_name:
            numbers = {
                *self._named.get(name, ()),
                *(number for number in self._patterns if self._entries[number].matches_patterns(name)),
                *self._hashed_lines_of(name.encode()),
            }
            self._by_name[name] = [self._entries[number] for number in sorted(numbers)]
        return self._by_name[name]

    def _hashed_lines_of(self, name: bytes) -> list[int]:
        """Return the hashed lines for a host, by HMAC-SHA1 (RFC 2104), four times as fast as Python's hmac.

        A file may have thousands of lines, each with its own salt, and all of them are compared for each server.
        """
        sha1 = hashlib.sha1
        return [
            number
            for inner, outer, digest, number in self._hashed
            if sha1(outer + sha1(inner + name).digest()).digest() == digest
        ]


class KnownHosts:
    """The lines of all known_hosts files for a login."""

    def __init__(self, files: Sequence[KnownHostsFile], revoked: Iterable[HostKey] = ()) -> None:
        self._files = files
        self._revoked = frozenset(revoked)

    def select(self, names: Sequence[str], marker: Marker) -> list[KnownHostsEntry]:
        """Return the lines with a marker for the first of a host's names that has any."""
        for name in names:
            if entries := [entry for entry in self._lines_of(name) if entry.marker is marker]:
                return entries
        return []

    def revoked_keys(self, names: Sequence[str]) -> set[HostKey]:
        """Return the revoked keys of a host."""
        by_line = {entry.key for name in names for entry in self._lines_of(name) if entry.marker is Marker.REVOKED}
        return by_line | self._revoked

    def _lines_of(self, name: str) -> Iterator[KnownHostsEntry]:
        return (entry for file in self._files for entry in file.lines_of(name))

    def check(self, names: Sequence[str], key: HostKey) -> CheckResult:
        """Judge the key that a host presents."""
        if key in self.revoked_keys(names):
            return CheckResult(Verdict.REVOKED)
        for index, name in enumerate(names):
            entries = self.select([name], Marker.TRUSTED)
            if same := [entry for entry in entries if entry.key == key]:
                return CheckResult(Verdict.KNOWN, tuple(same))
            if entries and index == 0:
                return CheckResult(Verdict.CHANGED, tuple(entries))
        if damaged := self.select(names[:1], Marker.DAMAGED):
            return CheckResult(Verdict.DAMAGED, tuple(damaged))
        return CheckResult(Verdict.NEW)


def lookup_names(host: str, port: int, alias: str | None = None) -> tuple[str, ...]:
    """Return the names of a host in the files; we record keys under the first.

    A host on another port than 22 may be known by its plain name, too. A different key there does not count: it belongs
    to another server on the same machine.
    """
    if alias:
        return (alias.lower(),)
    host = host.lower()
    return (host,) if port == DEFAULT_PORT else (f"[{host}]:{port}", host)


def note_for(server: str, hostname: str) -> str:
    """Return the comment in the line of a configured server."""
    return f"{NOTE}{server}:{hostname}"


class Reader:
    """Reads known_hosts files: each is parsed again only after a change, and its bad lines are reported once."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._cache: dict[Path, tuple[tuple[int, int, int], KnownHostsFile]] = {}

    def read(self, files: Iterable[Path], revoked_file: Path | None = None) -> KnownHosts:
        """Read all lines of the files that exist.

        Raises:
            UnusableFileError: The file of revoked keys is invalid, so no key can be trusted.
        """
        unique = [self._read_file(file) for file in dict.fromkeys(files)]
        return KnownHosts(unique, read_revoked(revoked_file) if revoked_file else ())

    def _read_file(self, file: Path) -> KnownHostsFile:
        try:
            status = file.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if file in self._cache and self._cache[file][0] == version:
                return self._cache[file][1]
            entries, problems = parse(read_bytes(file), file)
        except (FileNotFoundError, NotADirectoryError):
            return KnownHostsFile([])
        except OSError as error:
            self._notice(f"{file} cannot be read and is ignored: {error.strerror}")
            return KnownHostsFile([])
        for problem in problems:
            self._notice(problem)
        self._cache[file] = (version, KnownHostsFile(entries))
        return self._cache[file][1]
