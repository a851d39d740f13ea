"""How a login was authenticated, for ``check`` and ``keys``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Login:
    """A successful login.

    Attributes:
        username: The user.
        method: ``ed25519 key``, ``password``; ``no key`` if the server required none.
        host_key: Type and fingerprint of the server's key; empty for a certificate.
        is_new: Whether that key was unknown before.
    """

    username: str
    method: str
    host_key: str
    is_new: bool


def key_name(algorithm: str) -> str:
    """Return the type of a key as in ``ssh-keygen -t``: ``rsa-sha2-512`` is ``rsa``."""
    plain, is_certificate, _ = algorithm.partition("-cert-v01")
    security_key = plain.startswith("sk-")
    words = plain.partition("@")[0].removeprefix("sk-").removeprefix("ssh-").split("-")
    return words[0] + ("-sk" if security_key else "") + (" certificate" if is_certificate else " key")
