"""What must never leave this machine, whatever exclude.txt says: credentials by name, private keys by their text."""

from __future__ import annotations

import hashlib
import os
import re
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from remote_tool.transport.sync import interrupted_sync

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from remote_tool.transport.sync.entries import Seen

# Never walked into: ours, and the history, which is large and keeps what was once committed.
OWN_FOLDERS = (".remote", ".git", ".jobs", ".remote-scripts")

PRIVATE_KEY, MAY_HOLD_SECRETS = "is a private key", "may contain secrets"

# Examples of a .env hold no secrets, and people share them on purpose.
_EXAMPLES = ("example", "sample", "template", "dist")
_HARMLESS = (*(f".env{dot}{word}" for word in _EXAMPLES for dot in ".-_"), *(f"{word}.env" for word in _EXAMPLES))
# Files that programs keep credentials in, and nothing else; one with a slash counts in its folder only.
_SECRET = (
    *(".env", ".env.*", ".env-*", ".env_*", "*.env", ".envrc"),
    *(".netrc", "_netrc", ".pgpass", ".my.cnf", ".s3cfg", ".boto", ".npmrc", ".pypirc", ".git-credentials"),
    *(".dockercfg", ".docker/config.json", ".huggingface/token", ".cache/huggingface/token"),
    *(".cache/huggingface/stored_tokens", ".kaggle/kaggle.json", ".config/git/credentials", ".config/gh/hosts.yml"),
    *(".config/gcloud", ".config/rclone/rclone.conf", ".ssh", ".aws", ".azure", ".gnupg", ".kube", "*.p12", "*.pfx"),
)
_KEYS = tuple(f"id_{kind}" for kind in ("rsa", "dsa", "ecdsa", "ed25519", "ecdsa_sk", "ed25519_sk"))
# The same for rsync, which chooses again when it sends.
SECRET_RULES = tuple(
    [b"+ " + name.encode() for name in _HARMLESS] + [b"- " + name.encode() for name in (*_SECRET, *_KEYS)]
)


def _any_of(names: Iterable[str]) -> bytes:
    return "|".join(re.escape(name).replace(r"\*", "[^/]*") for name in names).encode()


_NAMES = re.compile(
    rb"(?:\A|/)(?!(?:%b)(?:/|\Z))(?:(%b)|(%b)|%b)(?=/|\Z)"
    % (_any_of(_HARMLESS), _any_of(_KEYS), _any_of(OWN_FOLDERS), _any_of(_SECRET)),
    re.IGNORECASE | re.DOTALL,
)
# A line of its own, or followed by what a key has, also where its lines are written as in JSON: a program that only
# mentions such a line holds no key.
_LINE_END = rb"(?:[ \t]*(?:\r\n?|\n)[ \t>#+*/|]*|(?:\\+r)?\\+n)"
_KEY = re.compile(
    rb"^[ \t]*-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[ \t]*\r?$"
    rb"|-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----%b{1,2}(?:[A-Za-z0-9+/=]{16}|[A-Za-z-]+: )"
    rb"|---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----%b"
    rb"|PuTTY-User-Key-File-[0-9]+: [a-z0-9-]+%bEncryption: " % (_LINE_END, _LINE_END, _LINE_END),
    re.MULTILINE,
)
_SMALLEST_KEY = 64
_LARGEST_KEY = 256 * 1024
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
# Of the rules above: what was looked at by others is looked at again.
_RULES = hashlib.sha256(repr((_KEY.pattern, _SMALLEST_KEY, _LARGEST_KEY)).encode()).hexdigest().encode()
# Of all rules: what was judged by others is judged again.
ALL_RULES = _RULES + _NAMES.pattern


class Secret(NamedTuple):
    """A file or folder that stays here, and why."""

    name: bytes
    why: str


def secret_in(name: bytes, send_anyway: Collection[str] = ()) -> Secret | None:
    """Return the secret file or folder that a name is, or is inside of; not one that is sent anyway."""
    for found in _NAMES.finditer(name):
        secret = name[: found.end()]
        why = PRIVATE_KEY if found[1] else "is never sent" if found[2] else MAY_HOLD_SECRETS
        if found[2] or not is_listed(secret, send_anyway):
            return Secret(secret, why)
    return None


def is_listed(name: bytes, patterns: Collection[str]) -> bool:
    """Tell whether a pattern is for a name: one that begins with a slash counts from the project's folder on."""
    path = PurePosixPath("/" + os.fsdecode(name))
    return any(path.match(pattern) for pattern in patterns)


def may_be_key(size: int) -> bool:
    """Tell whether a file of so many bytes may hold a private key."""
    return _SMALLEST_KEY <= size <= _LARGEST_KEY


def is_private_key(path: bytes, found: os.stat_result | Seen) -> bool:
    """Tell whether a regular file holds a private key."""
    if not may_be_key(found.st_size):
        return False
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return False
    try:
        return holds_private_key(os.read(descriptor, _LARGEST_KEY))
    except OSError:
        return False
    finally:
        os.close(descriptor)


def holds_private_key(text: bytes) -> bool:
    """Tell whether a text holds a private key, of any program's format."""
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = text.decode("utf-16", errors="replace").encode(errors="replace")
    text = text.removeprefix(b"\xef\xbb\xbf")
    # The search for plain bytes is what nearly all files cost.
    return (b"PRIVATE KEY" in text or b"PuTTY-User-Key-File" in text) and _KEY.search(text) is not None


class Looked:
    """Which files were looked into and hold no key: known by inode, size and time, until the rules change.

    Args:
        file: Where that is kept; None: nowhere.

    Attributes:
        searched: Whether another program searches all files meanwhile, so that none is opened here.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._now: list[bytes] = []
        self.searched = False

    @cached_property
    def _before(self) -> frozenset[bytes]:
        rules, *before = interrupted_sync.recall(self._file).split(b"\n") if self._file else [b""]
        return frozenset(before) if rules == _RULES else frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether no file was looked into before."""
        return not self._before

    def is_private_key(self, path: bytes, found: os.stat_result | Seen) -> bool:
        """Tell it, with a look into the file only where it was not looked into."""
        if not may_be_key(found.st_size):
            return False
        record = b"%d %d %d" % (found.st_ino, found.st_size, found.st_mtime_ns)
        if not self.searched and record not in self._before and is_private_key(path, found):
            return True
        self._now.append(record)
        return False

    def hold_none(self, inode: bytes, size: bytes, modified: bytes) -> None:
        """Take a file for one without a key, which is found by others if it has one."""
        if may_be_key(int(size)):
            self._now.append(b"%b %b %b" % (inode, size, modified))

    def note(self) -> None:
        """Remember what was looked into."""
        if self._file is not None and self._before != frozenset(self._now):
            interrupted_sync.note(self._file, b"\n".join([_RULES, *self._now]))


def identities(paths: Iterable[Path]) -> frozenset[tuple[int, int]]:
    """Return device and inode of files, under which they are known by any name."""
    known = set()
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            continue
        known.add((found.st_dev, found.st_ino))
    return frozenset(known)
