"""What must never leave this machine, whatever exclude.txt says: secrets by their names, private keys by their text."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

# Never walked into: ours, and the history, which is large and keeps what was once committed.
OWN_FOLDERS = (".remote", ".git", ".jobs", ".remote-scripts")

# Examples of a .env hold no secrets, and people share them on purpose.
_HARMLESS = (".env.example", ".env.sample", ".env.template", ".env.dist")
_SECRET = (
    *(".env", ".env.*", ".envrc", ".netrc", "_netrc", ".pgpass", ".pypirc", ".git-credentials"),
    *(".ssh", ".aws", ".gnupg", ".kube", "*.p12", "*.pfx"),
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
# A line of its own: a program that only mentions one is no key.
_KEY = re.compile(
    rb"^-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[ \t]*\r?$"
    rb"|^---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----"
    rb"|\APuTTY-User-Key-File-",
    re.MULTILINE,
)
# Files whose text is looked at: with these names, and all that nobody else may read, as ssh wants its keys.
_KEY_NAME = re.compile(
    rb"(?:\A|/)(?:id_[^/]*|[^/.]+|[^/]*key[^/]*|[^/]*\.(?:pem|key|ppk|asc|gpg|rsa|priv))\Z", re.IGNORECASE
)
_SMALLEST_KEY = 64
_LARGEST_KEY = 256 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Secret(NamedTuple):
    """A file or folder that stays here, and why."""

    name: bytes
    why: str


def secret_in(name: bytes) -> Secret | None:
    """Return the secret file or folder that a name is, or lies in."""
    found = _NAMES.search(name)
    if found is None:
        return None
    why = "is a private key" if found[1] else "is never sent" if found[2] else "may hold secrets"
    return Secret(name[: found.end()], why)


def is_private_key(path: bytes, name: bytes, found: os.stat_result) -> bool:
    """Tell whether a regular file is a private key."""
    if not _SMALLEST_KEY <= found.st_size <= _LARGEST_KEY:
        return False
    if found.st_mode & _OTHERS and _KEY_NAME.search(name) is None:
        return False
    try:
        with Path(os.fsdecode(path)).open("rb") as file:
            return _KEY.search(file.read(_LARGEST_KEY)) is not None
    except OSError:
        return False


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
