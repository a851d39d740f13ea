"""Known host keys: OpenSSH's known_hosts files, with the same decisions.

The rules are those of ``sshd(8)``, SSH_KNOWN_HOSTS FILE FORMAT, with one that is stricter: a host with any known
key is not new, whatever the type of its presented key.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from remote_tool.transport.ssh.endpoint import DEFAULT_PORT
from remote_tool.transport.ssh.host_keys import hashed_names
from remote_tool.transport.ssh.host_keys.entries import NOTE, Entry, HostKey, Marker, parse, read_bytes, read_revoked

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
class Answer:
    """A verdict, and the lines it is based on."""

    verdict: Verdict
    entries: tuple[Entry, ...] = ()


class Lines:
    """The lines of a file by host name; each name is searched once."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._named: defaultdict[str, list[int]] = defaultdict(list)
        self._patterns: list[int] = []
        self._hashed: list[tuple[bytes, bytes, bytes, int]] = []
        self._found: dict[str, list[Entry]] = {}
        for number, entry in enumerate(entries):
            if entry.is_hashed:
                self._hashed.append((*hashed_names.hmac_parts(entry.patterns), number))
            elif not entry.plain_names:
                self._patterns.append(number)
            for name in entry.plain_names:
                self._named[name].append(number)

    def of(self, name: str) -> list[Entry]:
        """Return the lines for a host in order; name as from :func:`lookup_names`."""
        if name not in self._found:
            numbers = {
                *self._named.get(name, ()),
                *(number for number in self._patterns if self._entries[number].matches_patterns(name)),
                *self._hashes_of(name.encode()),
            }
            self._found[name] = [self._entries[number] for number in sorted(numbers)]
        return self._found[name]

    def _hashes_of(self, name: bytes) -> list[int]:
        """Return the hashed lines for a host: HMAC-SHA1 as in RFC 2104, four times as fast as Python's hmac.

        A file may have thousands of lines, each with its own salt, and every server checks all of them.
        """
        sha1 = hashlib.sha1
        return [
            number
            for inner, outer, digest, number in self._hashed
            if sha1(outer + sha1(inner + name).digest()).digest() == digest
        ]


class KnownHosts:
    """All lines of some files."""

    def __init__(self, files: Sequence[Lines], revoked: Iterable[HostKey] = ()) -> None:
        self._files = files
        self._revoked = frozenset(revoked)

    def select(self, names: Sequence[str], marker: Marker) -> list[Entry]:
        """Return the lines for a host with one marker; if there are any for its first name, only these."""
        for name in names:
            if found := [entry for entry in self._lines_of(name) if entry.marker is marker]:
                return found
        return []

    def revoked_keys(self, names: Sequence[str]) -> set[HostKey]:
        """Return the host's revoked keys."""
        by_line = {entry.key for name in names for entry in self._lines_of(name) if entry.marker is Marker.REVOKED}
        return by_line | self._revoked

    def _lines_of(self, name: str) -> Iterator[Entry]:
        return (entry for file in self._files for entry in file.of(name))

    def check(self, names: Sequence[str], key: HostKey) -> Answer:
        """Evaluate a presented key."""
        if key in self.revoked_keys(names):
            return Answer(Verdict.REVOKED)
        for index, name in enumerate(names):
            entries = self.select([name], Marker.TRUSTED)
            if same := [entry for entry in entries if entry.key == key]:
                return Answer(Verdict.KNOWN, tuple(same))
            if entries and index == 0:
                return Answer(Verdict.CHANGED, tuple(entries))
        if damaged := self.select(names[:1], Marker.DAMAGED):
            return Answer(Verdict.DAMAGED, tuple(damaged))
        return Answer(Verdict.NEW)


def lookup_names(host: str, port: int, alias: str | None = None) -> tuple[str, ...]:
    """Return the possible names of a host in the files, beginning with the one that we write.

    A host on another port than 22 may be known by its plain name too, but a different key there does not count: it is
    another server on the same machine.
    """
    if alias:
        return (alias.lower(),)
    host = host.lower()
    return (host,) if port == DEFAULT_PORT else (f"[{host}]:{port}", host)


def note_for(server: str, hostname: str) -> str:
    """Return the comment for a configured server's line."""
    return f"{NOTE}{server}:{hostname}"


class Reader:
    """Reads files, each once until it changes, and reports each bad line once."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._cache: dict[Path, tuple[tuple[int, int, int], Lines]] = {}

    def read(self, files: Iterable[Path], revoked_file: Path | None = None) -> KnownHosts:
        """Read all lines of the files that exist.

        Raises:
            UnusableFileError: The file of revoked keys is invalid; without it no key can be trusted.
        """
        lines = [self._read_file(file) for file in dict.fromkeys(files)]
        return KnownHosts(lines, read_revoked(revoked_file) if revoked_file else ())

    def _read_file(self, file: Path) -> Lines:
        try:
            status = file.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if file in self._cache and self._cache[file][0] == version:
                return self._cache[file][1]
            entries, problems = parse(read_bytes(file), file)
        except (FileNotFoundError, NotADirectoryError):
            return Lines([])
        except OSError as error:
            self._notice(f"{file} cannot be read and is ignored: {error.strerror}")
            return Lines([])
        for problem in problems:
            self._notice(problem)
        self._cache[file] = (version, Lines(entries))
        return self._cache[file][1]
