"""Files that are never sent, whatever exclude.txt says: credentials by name, private keys by content."""

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

# Folders that are never listed: those of remote-tool, and the Git history, which is large and keeps every commit.
OWN_FOLDERS = (".remote", ".git", ".jobs", ".remote-scripts")

PRIVATE_KEY, MAY_HOLD_SECRETS = "is a private key", "may contain secrets"

# Example .env files hold no secrets and are shared on purpose.
_EXAMPLES = ("example", "sample", "template", "dist")
_HARMLESS = (*(f".env{dot}{word}" for word in _EXAMPLES for dot in ".-_"), *(f"{word}.env" for word in _EXAMPLES))
_STAGES = (
    *("prod", "production", "dev", "development", "stage", "staging", "test", "local", "live"),
    *("secret", "secrets", "private"),
)
_BACKUPS = ("bak", "backup", "old", "orig", "save")
# Names of files that hold only credentials; a pattern with a slash matches only in that folder.
_SECRET = (
    *(".env", ".env.*", ".env-*", ".env_*", "*.env", "*.env~", ".envrc"),
    # Not env.* as a whole: env.py, env.sh and env.yml are code.
    *(f"env.{word}{end}" for word in _STAGES for end in ("", "~")),
    *(f"*.env.{word}{end}" for word in (*_STAGES, *_BACKUPS) for end in ("", "~")),
    *(".netrc", "_netrc", ".pgpass", ".my.cnf", ".s3cfg", ".boto", ".npmrc", ".pypirc", ".git-credentials"),
    *(".dockercfg", ".docker/config.json", ".huggingface/token", ".cache/huggingface/token"),
    *("application_default_credentials.json", "client_secret.json", "client_secret_*.json", "client_secrets.json"),
    *("kaggle.json", "hf_token", "hf_token.txt", ".hf_token", ".vault-token", "rclone.conf", ".rclone.conf"),
    *(".cache/huggingface/stored_tokens", ".kaggle/kaggle.json", ".config/git/credentials", ".config/gh/hosts.yml"),
    *(".config/gcloud", ".config/rclone/rclone.conf", ".ssh", ".aws", ".azure", ".gnupg", ".kube", "*.p12", "*.pfx"),
)
_KEYS = tuple(f"id_{kind}" for kind in ("rsa", "dsa", "ecdsa", "ed25519", "ecdsa_sk", "ed25519_sk"))
# The same rules for rsync, which selects again when it sends.
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
# The line stands alone, or a key follows it, also with line ends escaped as in JSON: a program that only mentions the
# line holds no key.
_LINE_END = rb"(?:[ \t]*(?:\r\n?|\n)[ \t>#+*/|]*|(?:\\+r)?\\+n)"
# Between the lines of a list or of a literal, as in a notebook or a program; what follows has to look like a key more
# than a direct continuation has to, as programs look for the first line of one.
_APART = rb"(?:\\+[rn]|[bBfFrRuU]{1,2}(?=[\"'`])|[\s\"'`,;+\\()\[\]{}<>#*/|.:-]){1,200}+"
_APART_KEY = rb"%b(?:[A-Za-z-]{4,16}: [^\"'`\r\n\\]{0,100}+(?=[\"'`\r\n\\])%b){0,3}+[A-Za-z0-9+/=]{32}" % (
    _APART,
    _APART,
)
_KEY = re.compile(
    rb"^[ \t]*-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[ \t]*\r?$"
    rb"|-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----%b{1,2}(?:[A-Za-z0-9+/=]{16}|[A-Za-z-]+: )"
    rb"|-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----%b"
    rb"|---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----(?:%b|%b)"
    rb"|PuTTY-User-Key-File-[0-9]+: [a-z0-9-]+(?:%b|%b)Encryption: "
    rb"|AGE-SECRET-KEY-1[02-9AC-HJ-NP-Z]{40}" % (_LINE_END, _APART_KEY, _LINE_END, _APART_KEY, _LINE_END, _APART),
    re.MULTILINE,
)
# One of these is in every key.
WORDS = (b"PRIVATE KEY", b"PuTTY-User-Key-File", b"AGE-SECRET-KEY-1")
_WIDE_WORDS = tuple(b"\0".join(bytes([letter]) for letter in word) for word in WORDS)
_SMALLEST_KEY = 64
_LARGEST_KEY = 256 * 1024
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
# Identifies the rules for keys: files that were searched with other rules are searched again.
_RULES = hashlib.sha256(repr((_KEY.pattern, _SMALLEST_KEY, _LARGEST_KEY)).encode()).hexdigest().encode()
# Identifies all rules: files that were judged by other rules are judged again.
ALL_RULES = _RULES + _NAMES.pattern


class Secret(NamedTuple):
    """A file or folder that is not sent, and the reason."""

    name: bytes
    why: str


def secret_in(name: bytes, send_anyway: Collection[str] = ()) -> Secret | None:
    """Return the secret file or folder that a name is or is in, or None; ``send_anyway`` allows exceptions."""
    for found in _NAMES.finditer(name):
        secret = name[: found.end()]
        why = PRIVATE_KEY if found[1] else "is never sent" if found[2] else MAY_HOLD_SECRETS
        if found[2] or not is_listed(secret, send_anyway):
            return Secret(secret, why)
    return None


def is_listed(name: bytes, patterns: Collection[str]) -> bool:
    """Return whether a pattern matches a name; a pattern with a leading slash is relative to the project folder."""
    path = PurePosixPath("/" + os.fsdecode(name))
    return any(path.match(pattern) for pattern in patterns)


def may_be_key(size: int) -> bool:
    """Return whether a file of this size in bytes can hold a private key."""
    return _SMALLEST_KEY <= size <= _LARGEST_KEY


def is_private_key(path: bytes, found: os.stat_result | Seen) -> bool:
    """Return whether a regular file holds a private key."""
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
    """Return whether data contains a private key in any known format."""
    if any(word in text for word in _WIDE_WORDS):
        # UTF-16, with or without its mark: a key is ASCII, and so has a NUL in each letter.
        text = text.removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff").replace(b"\0", b"")
    text = text.removeprefix(b"\xef\xbb\xbf")
    # Most files cost no more than this search for plain bytes.
    return any(word in text for word in WORDS) and _KEY.search(text) is not None


class Looked:
    """Files known to hold no private key, identified by inode, size and times, until the rules change.

    The time of the inode's last change, ctime, reveals a change that kept size and modification time.

    Args:
        file: Where they are recorded; None: nowhere.

    Attributes:
        searched: Whether another program searches all files, so that none is opened here.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._now = bytearray(_RULES)
        self.searched = False

    @cached_property
    def _before(self) -> frozenset[bytes]:
        rules, *before = interrupted_sync.recall(self._file).split(b"\n") if self._file else [b""]
        return frozenset(before) if rules == _RULES else frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether no files were recorded before."""
        return not self._before

    def is_private_key(self, path: bytes, found: os.stat_result | Seen) -> bool:
        """Return whether a file holds a private key; reads only files that are not recorded."""
        if not may_be_key(found.st_size):
            return False
        record = b"%d %d %d %d" % (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if not self.searched and record not in self._before and is_private_key(path, found):
            return True
        self._now += b"\n" + record
        return False

    def assume_no_key(self, inode: bytes, size: bytes, modified: bytes, changed: bytes) -> None:
        """Record a file as one without a key, because another search finds its key if it has one."""
        if may_be_key(int(size)):
            self._now += b"\n%b %b %b %b" % (inode, size, modified, changed)

    def note(self) -> None:
        """Write the record."""
        has_any = self._now != _RULES or not self.is_empty
        if self._file is not None and has_any and interrupted_sync.recall(self._file) != self._now:
            interrupted_sync.note(self._file, self._now)


def identities(paths: Iterable[Path]) -> frozenset[tuple[int, int]]:
    """Return device and inode of each file, which identify it under any name."""
    known = set()
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            continue
        known.add((found.st_dev, found.st_ino))
    return frozenset(known)
