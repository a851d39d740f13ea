"""Hashed host names as in OpenSSH's ``HashKnownHosts``."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

SALT_BYTES = 20  # as in ssh
BLOCK_BYTES = 64  # of SHA-1
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


def split(patterns: str) -> tuple[bytes, bytes]:
    try:
        empty, magic, salt, digest = patterns.split("|")
        decoded = base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except ValueError:
        raise ValueError("the hashed host name is damaged") from None
    if empty or magic != "1":
        raise ValueError(f"the host name is hashed in an unknown way, {magic!r}")
    return decoded


def hash_name(name: str) -> str:
    salt = os.urandom(SALT_BYTES)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return "|".join(("", "1", base64.b64encode(salt).decode(), base64.b64encode(digest).decode()))


def hmac_parts(patterns: str) -> tuple[bytes, bytes, bytes]:
    """Return the initial blocks of the inner and outer hash of an HMAC, and the expected digest for each line."""
    salt, digest = split(patterns)
    key = salt if len(salt) <= BLOCK_BYTES else hashlib.sha1(salt).digest()  # noqa: S324 - see KnownHosts
    block = key.ljust(BLOCK_BYTES, b"\0")
    return block.translate(_INNER), block.translate(_OUTER), digest
