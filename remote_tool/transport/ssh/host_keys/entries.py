"""Parse the lines of known_hosts files as OpenSSH does."""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING

from remote_tool.transport.ssh.host_keys import hashed_names

if TYPE_CHECKING:
    from pathlib import Path

# Prefix of the comment in our own lines: which configured server they are for.
NOTE = "remote-tool:"
MAX_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class HostKey:
    """A public key in wire format."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint as shown by ``ssh-keygen -l``."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    @property
    def text(self) -> str:
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"


class Marker(Enum):
    """The marker of a line; of one whose key cannot be read, that it has a host's key."""

    TRUSTED = auto()
    REVOKED = auto()
    AUTHORITY = auto()
    DAMAGED = auto()


@dataclass(frozen=True)
class Entry:
    """One line of a file."""

    marker: Marker
    patterns: str
    key: HostKey
    file: Path
    line: int
    note: str = ""

    @property
    def is_hashed(self) -> bool:
        """Return whether the host names are hashed."""
        return self.patterns.startswith("|")

    @property
    def plain_names(self) -> list[str]:
        """Return the hosts of the line; empty if it has patterns."""
        return [] if any(letter in self.patterns for letter in "|*?!") else self.patterns.lower().split(",")

    def matches_patterns(self, name: str) -> bool:
        """Return whether an unhashed line matches a host."""
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


class UnusableFileError(Exception):
    """A known_hosts file cannot be read or written; the message says which and why."""


def parse(content: bytes, file: Path) -> tuple[list[Entry], list[str]]:
    """Return the lines of a file, and a message for each unusable one."""
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
            entries += _damaged(words, file, number)
    return entries, problems


def _damaged(words: list[bytes], file: Path, number: int) -> list[Entry]:
    """Return a line that has no readable key as one that tells which host had one."""
    try:
        patterns = _ascii(words[0], "host name")
        if patterns.startswith("|"):
            hashed_names.split(patterns)
    except ValueError:
        return []
    note = next((word.decode("ascii", "replace") for word in words if word.startswith(NOTE.encode())), "")
    return [] if patterns.startswith("@") else [Entry(Marker.DAMAGED, patterns, HostKey("", b""), file, number, note)]


def read_revoked(file: Path) -> set[HostKey]:
    """Read ``RevokedHostKeys`` of ssh_config: public keys, one per line.

    Raises:
        UnusableFileError: It cannot be read, or is a binary key revocation list.
    """
    try:
        content = read_bytes(file)
    except OSError as error:
        raise UnusableFileError(f"RevokedHostKeys {file} cannot be read: {error.strerror}") from None
    try:
        lines = [line.split() for line in content.splitlines()]
        return {_parse_key(words) for words in lines if words and not words[0].startswith(b"#")}
    except ValueError as error:
        raise UnusableFileError(f"RevokedHostKeys {file} is not a list of public keys: {error}") from None


def read_bytes(file: Path) -> bytes:
    """Read a file, or a device such as /dev/null, which some have as their known hosts; a pipe is not waited for."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Not a plain file", str(file))
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
        hashed_names.split(patterns)
    comment = words[3].decode("ascii", "replace") if len(words) > 3 else ""  # noqa: PLR2004 - behind name, type and key
    note = comment if comment.startswith(NOTE) else ""
    return Entry(marker, patterns, _parse_key(words[1:]), file, number, note)


def _parse_key(words: list[bytes]) -> HostKey:
    if len(words) < 2:  # noqa: PLR2004 - the type and the key
        raise ValueError("no key")
    kind = _ascii(words[0], "key type")
    try:
        blob = base64.b64decode(words[1], validate=True)
    except binascii.Error:
        raise ValueError(f"the {kind} key is damaged") from None
    length = int.from_bytes(blob[:4], "big")
    if blob[4 : 4 + length] != kind.encode() or len(blob) <= 4 + length or not _is_whole(blob):
        raise ValueError(f"the {kind} key is damaged")
    return HostKey(kind, blob)


def _is_whole(blob: bytes) -> bool:
    """Return whether a key is a sequence of strings, each behind its length (RFC 4253, 6.6), up to its end."""
    at = 0
    while at < len(blob):
        at += 4 + int.from_bytes(blob[at : at + 4], "big")
    return at == len(blob)


def _ascii(word: bytes, what: str) -> str:
    try:
        return word.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError(f"the {what} {_show(word)} is not ASCII") from None


def _show(word: bytes) -> str:
    return ascii(word[:60].decode("latin-1"))


def _glob(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with ``*`` and ``?``; brackets are plain, as in ``[host]:port``."""
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(letter) or re.escape(letter) for letter in pattern) + r"\Z", re.DOTALL)
