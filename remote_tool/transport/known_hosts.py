"""Host keys we know: OpenSSH's known_hosts files, read with its answers, and one line added at a first contact.

The rules are those of ``sshd(8)``, SSH_KNOWN_HOSTS FILE FORMAT, with one that is stricter: a host that we know by any
key is not new, whatever the type of the key it shows now.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import re
import time
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

DEFAULT_PORT = 22
LOCK_SECONDS = 5.0
MAX_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class HostKey:
    """A public key, as the wire has it."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As ``ssh-keygen -l`` shows it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    @property
    def text(self) -> str:
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"


class Marker(Enum):
    """What a line says about its key."""

    TRUSTED = auto()
    REVOKED = auto()
    AUTHORITY = auto()


@dataclass(frozen=True)
class Entry:
    """One line of a file."""

    marker: Marker
    patterns: str
    key: HostKey
    file: Path
    line: int

    def matches(self, name: str) -> bool:
        """Tell whether the line is for a host; name as :func:`lookup_names` makes it."""
        if self.patterns.startswith("|"):
            return _matches_hash(self.patterns, name)
        patterns = self._compiled
        return any(positive.match(name) for positive in patterns[0]) and not any(
            negative.match(name) for negative in patterns[1]
        )

    @cached_property
    def _compiled(self) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
        words = self.patterns.lower().split(",")
        return [_glob(word) for word in words if word[:1] != "!"], [
            _glob(word[1:]) for word in words if word[:1] == "!"
        ]


class Verdict(Enum):
    """What the files say about the key of a host."""

    KNOWN = auto()
    NEW = auto()
    CHANGED = auto()
    REVOKED = auto()


@dataclass(frozen=True)
class Answer:
    """A verdict, and the lines that it rests on."""

    verdict: Verdict
    entries: tuple[Entry, ...] = ()


class UnusableFileError(Exception):
    """A known_hosts file cannot be read or written; the text says which and why."""


class KnownHosts:
    """All lines of some files."""

    def __init__(self, entries: Sequence[Entry], revoked: Iterable[HostKey] = ()) -> None:
        self._entries = entries
        self._revoked = frozenset(revoked)

    def select(self, names: Sequence[str], marker: Marker) -> list[Entry]:
        """Return the lines for a host with one marker, those of its first name only if there are any."""
        for name in names:
            if found := [entry for entry in self._entries if entry.marker is marker and entry.matches(name)]:
                return found
        return []

    def revoked_keys(self, names: Sequence[str]) -> set[HostKey]:
        """Return the keys that this host must not show."""
        by_line = {
            entry.key
            for entry in self._entries
            if entry.marker is Marker.REVOKED and any(entry.matches(name) for name in names)
        }
        return by_line | self._revoked

    def check(self, names: Sequence[str], key: HostKey) -> Answer:
        """Judge the key that a host shows."""
        if key in self.revoked_keys(names):
            return Answer(Verdict.REVOKED)
        for index, name in enumerate(names):
            entries = self.select([name], Marker.TRUSTED)
            if same := [entry for entry in entries if entry.key == key]:
                return Answer(Verdict.KNOWN, tuple(same))
            if entries and index == 0:
                return Answer(Verdict.CHANGED, tuple(entries))
        return Answer(Verdict.NEW)


def lookup_names(host: str, port: int, alias: str | None = None) -> tuple[str, ...]:
    """Return the names a host may have in the files, the one that we would write first.

    A host on another port than 22 may be known by its plain name too, but a different key there does not count: it is
    another server of the same machine.
    """
    if alias:
        return (alias.lower(),)
    host = host.lower()
    return (host,) if port == DEFAULT_PORT else (f"[{host}]:{port}", host)


class Reader:
    """Reads files, each once until it changes, and tells of each bad line once."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._cache: dict[Path, tuple[tuple[int, int, int], list[Entry]]] = {}

    def read(self, files: Iterable[Path], revoked_file: Path | None = None) -> KnownHosts:
        """Read all lines of the files that exist.

        Raises:
            UnusableFileError: The file of revoked keys cannot be understood; without it no key can be trusted.
        """
        entries = [entry for file in dict.fromkeys(files) for entry in self._read_file(file)]
        return KnownHosts(entries, read_revoked(revoked_file) if revoked_file else ())

    def _read_file(self, file: Path) -> list[Entry]:
        try:
            status = file.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if file in self._cache and self._cache[file][0] == version:
                return self._cache[file][1]
            entries, problems = parse(_read_bytes(file), file)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._notice(f"{file} cannot be read and is left out: {error.strerror}")
            return []
        for problem in problems:
            self._notice(problem)
        self._cache[file] = (version, entries)
        return entries


def parse(content: bytes, file: Path) -> tuple[list[Entry], list[str]]:
    """Return the lines of a file, and a sentence about each that cannot be used."""
    entries: list[Entry] = []
    problems: list[str] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        try:
            entries.append(_parse_line(words, file, number))
        except ValueError as error:
            problems.append(f"{file}:{number}: {error}; the line is skipped")
    return entries, problems


def read_revoked(file: Path) -> set[HostKey]:
    """Read ``RevokedHostKeys`` of ssh_config: public keys, one a line.

    Raises:
        UnusableFileError: It cannot be read, or is a binary key revocation list.
    """
    try:
        content = _read_bytes(file)
    except OSError as error:
        raise UnusableFileError(f"RevokedHostKeys {file} cannot be read: {error.strerror}") from None
    try:
        lines = [line.split() for line in content.splitlines()]
        return {_parse_key(words) for words in lines if words and not words[0].startswith(b"#")}
    except ValueError as error:
        raise UnusableFileError(f"RevokedHostKeys {file} is not a list of public keys: {error}") from None


def accept(file: Path, name: str, key: HostKey) -> Answer:
    """Add the key of a host to a file, whole or not at all, unless another process was faster.

    Returns:
        NEW: it was added; KNOWN: the file has it by now; CHANGED: the file has another one by now.

    Raises:
        UnusableFileError: The file cannot be written.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _lock(descriptor)
            return _append(descriptor, file, name, key)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnusableFileError(f"The host key cannot be recorded in {file}: {error.strerror}") from None


def _append(descriptor: int, file: Path, name: str, key: HostKey) -> Answer:
    size = os.fstat(descriptor).st_size
    content = os.pread(descriptor, size, 0)
    answer = KnownHosts(parse(content, file)[0]).check((name,), key)
    if answer.verdict is not Verdict.NEW:
        return answer
    start = b"" if not content or content.endswith(b"\n") else b"\n"
    line = start + f"{name} {key.text}\n".encode()
    try:
        whole = os.write(descriptor, line) == len(line)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    if not whole:
        os.ftruncate(descriptor, size)
        raise OSError(28, "No space left on device")
    return answer


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(11, "another program holds its lock") from None
            time.sleep(0.005)
        else:
            return


def _read_bytes(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(MAX_FILE_BYTES)


def _parse_line(words: list[bytes], file: Path, number: int) -> Entry:
    markers = {b"@revoked": Marker.REVOKED, b"@cert-authority": Marker.AUTHORITY}
    marker = Marker.TRUSTED
    if words[0].startswith(b"@"):
        if words[0] not in markers:
            raise ValueError(f"unknown marker {_show(words[0])}")
        marker = markers[words[0]]
        words = words[1:]
    if not words:
        raise ValueError("no host name")
    patterns = _ascii(words[0], "host name")
    if patterns.startswith("|"):
        _split_hash(patterns)
    return Entry(marker, patterns, _parse_key(words[1:]), file, number)


def _parse_key(words: list[bytes]) -> HostKey:
    if len(words) < 2:  # noqa: PLR2004 - the type and the key
        raise ValueError("no key")
    kind = _ascii(words[0], "key type")
    try:
        blob = base64.b64decode(words[1], validate=True)
    except binascii.Error:
        raise ValueError(f"the {kind} key is damaged") from None
    length = int.from_bytes(blob[:4], "big")
    if blob[4 : 4 + length] != kind.encode() or len(blob) <= 4 + length:
        raise ValueError(f"the {kind} key is damaged")
    return HostKey(kind, blob)


def _ascii(word: bytes, what: str) -> str:
    try:
        return word.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError(f"the {what} {_show(word)} is not ASCII") from None


def _show(word: bytes) -> str:
    return ascii(word[:60].decode("latin-1"))


def _split_hash(patterns: str) -> tuple[bytes, bytes]:
    try:
        empty, magic, salt, digest = patterns.split("|")
        decoded = base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except ValueError:
        raise ValueError("the hashed host name is damaged") from None
    if empty or magic != "1":
        raise ValueError(f"the host name is hashed in an unknown way, {magic!r}")
    return decoded


def _matches_hash(patterns: str, name: str) -> bool:
    salt, digest = _split_hash(patterns)
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def _glob(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with ``*`` and ``?``; brackets are plain, as in ``[host]:port``."""
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(letter) or re.escape(letter) for letter in pattern) + r"\Z", re.DOTALL)
