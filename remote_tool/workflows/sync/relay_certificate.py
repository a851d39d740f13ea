"""A key pair that lives as long as one sync, with which its servers prove to each other that they take part."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

# Who has the key decides, and the key is gone in minutes; the clocks of servers may show any time.
BEGIN, END = datetime(2000, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class KeyPair:
    """A certificate that is its own issuer, and its private key, both as PEM."""

    certificate: str
    key: str = field(repr=False)


def make_key_pair() -> KeyPair:
    """Make a pair that nobody has had."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "remote-tool sync")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGIN)
        .not_valid_after(END)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(certificate.public_bytes(Encoding.PEM).decode(), secret.decode())
