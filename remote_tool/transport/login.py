"""How we got into a server, for who asks how it stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Login:
    """A login that worked.

    Attributes:
        username: Who logged in.
        method: ``ed25519 key``, ``password``; ``no key`` when the server wanted none.
        host_key: The type and fingerprint of the key that the server showed; empty where a certificate vouches for it.
        is_new: Whether that key was not known before.
    """

    username: str
    method: str
    host_key: str
    is_new: bool


def key_name(algorithm: str) -> str:
    """Name the kind of a key as ``ssh-keygen -t`` does: ``rsa-sha2-512`` is ``rsa``."""
    plain, is_certificate, _ = algorithm.partition("-cert-v01")
    security_key = plain.startswith("sk-")
    words = plain.partition("@")[0].removeprefix("sk-").removeprefix("ssh-").split("-")
    return words[0] + ("-sk" if security_key else "") + (" certificate" if is_certificate else " key")
