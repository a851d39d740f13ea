"""The lines of known_hosts files, parsed as in OpenSSH, and hashed host names."""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import hmac
import os
import re
import stat
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Prefix of the comment in our own lines; the configured server follows.
NOTE = "remote-tool:"
MAX_FILE_BYTES = 64 * 1024 * 1024
SALT_BYTES = 20  # as in ssh
SHA1_BLOCK_BYTES = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))


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
    """The marker of a line; DAMAGED is a line with an unreadable key of a host."""

    TRUSTED = auto()
    REVOKED = auto()
    AUTHORITY = auto()
    DAMAGED = auto()


@dataclass(frozen=True)
class KnownHostsEntry:
    """One line of a known_hosts file."""

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
        """Return the host names of the line; empty if it has patterns."""
        return [] if any(letter in self.patterns for letter in "|*?!") else self.patterns.lower().split(",")

    def matches_patterns(self, name: str) -> bool:
        """Return whether an unhashed line matches a host."""
        positive, negative = self._compiled
        return any(pattern.match(name) for pattern in positive) and not any(pattern.match(name) for pattern in negative)

    @cached_property
    def _compiled(self) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
        words = self.patterns.lower().split(",")
        return [_glob(word) for word in words if word[:1] != "!"], [
            _glob(word[1:]) for word in words if word[:1] == "!"
        ]


class UnusableFileError(Exception):
    """A known_hosts file cannot be read or written; the message has its path and the reason."""


def parse(content: bytes, file: Path) -> tuple[list[KnownHostsEntry], list[str]]:
    """Return the lines of a file, and a message for each line that cannot be used."""
    entries: list[KnownHostsEntry] = []
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


def _damaged(words: list[bytes], file: Path, number: int) -> list[KnownHostsEntry]:
    """Return an entry for a line with an unreadable key: its host is not new."""
    try:
        patterns = _ascii(words[0], "host name")
        if patterns.startswith("|"):
            _split_hashed(patterns)
    except ValueError:
        return []
    if patterns.startswith("@"):
        return []
    note = next((word.decode("ascii", "replace") for word in words if word.startswith(NOTE.encode())), "")
    return [KnownHostsEntry(Marker.DAMAGED, patterns, HostKey("", b""), file, number, note)]


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
    """Read a file, or a device, as some users set known hosts to /dev/null; fail for a pipe, which may never end."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Not a plain file", str(file))
        return stream.read(MAX_FILE_BYTES)


def _parse_line(words: list[bytes], file: Path, number: int) -> KnownHostsEntry:
    markers = {b"@revoked": Marker.REVOKED, b"@cert-authority": Marker.AUTHORITY}
    marker = Marker.TRUSTED
    if words[0].startswith(b"@"):
        if words[0] not in markers:
            raise ValueError(f"unknown marker {_quoted(words[0])}")
        marker = markers[words[0]]
        words = words[1:]
    if not words:
        raise ValueError("no host name")
    patterns = _ascii(words[0], "host name")
    if patterns.startswith("|"):
        _split_hashed(patterns)
    comment = words[3].decode("ascii", "replace") if len(words) > 3 else ""  # noqa: PLR2004 - behind name, type and key
    note = comment if comment.startswith(NOTE) else ""
    return KnownHostsEntry(marker, patterns, _parse_key(words[1:]), file, number, note)


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
    """Return whether a key consists of complete strings, each after its length (RFC 4253, 6.6)."""
    position = 0
    while position < len(blob):
        position += 4 + int.from_bytes(blob[position : position + 4], "big")
    return position == len(blob)


def _ascii(word: bytes, meaning: str) -> str:
    try:
        return word.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError(f"the {meaning} {_quoted(word)} is not ASCII") from None


def _quoted(word: bytes) -> str:
    return ascii(word[:60].decode("latin-1"))


def hash_name(name: str) -> str:
    """Return a host name as in ``HashKnownHosts`` of ssh_config."""
    salt = os.urandom(SALT_BYTES)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return "|".join(("", "1", base64.b64encode(salt).decode(), base64.b64encode(digest).decode()))


def hmac_parts(hashed_name: str) -> tuple[bytes, bytes, bytes]:
    """Return the first blocks of the inner and the outer hash of an HMAC, and the expected digest."""
    salt, digest = _split_hashed(hashed_name)
    key = salt if len(salt) <= SHA1_BLOCK_BYTES else hashlib.sha1(salt).digest()  # noqa: S324 - see KnownHostsFile
    block = key.ljust(SHA1_BLOCK_BYTES, b"\0")
    return block.translate(_INNER_PAD), block.translate(_OUTER_PAD), digest


def _split_hashed(hashed_name: str) -> tuple[bytes, bytes]:
    try:
        empty, magic, salt, digest = hashed_name.split("|")
        decoded = base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except ValueError:
        raise ValueError("the hashed host name is damaged") from None
    if empty or magic != "1":
        raise ValueError(f"the host name is hashed in an unknown way, {magic!r}")
    return decoded


def _glob(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with ``*`` and ``?``; brackets are plain, as in ``[host]:port``."""
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(letter) or re.escape(letter) for letter in pattern) + r"\Z", re.DOTALL)
