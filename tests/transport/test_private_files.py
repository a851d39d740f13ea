"""What is a secret: by its name, or by its text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from remote_tool.transport.private_files import identities, is_private_key, secret_in

if TYPE_CHECKING:
    from pathlib import Path

BODY = "\nMIIEowIBAAKCAQEAxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n"


def pem(kind: str) -> str:
    """Write a PEM block, put together so that this file holds none."""
    return f"-----{'BEGIN'} {kind}-----{BODY}-----END {kind}-----\n"


@pytest.mark.row(112)
@pytest.mark.parametrize(
    ("name", "secret"),
    [
        (b".env", b".env"),
        (b".env.local", b".env.local"),
        (b".ENV", b".ENV"),
        (b"sub/.env/bin/python", b"sub/.env"),
        (b"a\n.env", None),
        (b"my.env", None),
        (b".environment", None),
        (b".env.example", None),
        (b".env.sample", None),
        (b".env.template", None),
        (b"sub/.env.dist", None),
        (b".env.distant", b".env.distant"),
        (b".env.example/.env", b".env.example/.env"),
        (b".envrc", b".envrc"),
        (b".aws/credentials", b".aws"),
        (b"home/.ssh/config", b"home/.ssh"),
        (b".netrc", b".netrc"),
        (b"id_rsa", b"id_rsa"),
        (b"keys/id_ed25519_sk", b"keys/id_ed25519_sk"),
        (b"id_rsa.pub", None),
        (b"id_cards.csv", None),
        (b"store.p12", b"store.p12"),
        (b".git/config", b".git"),
        (b"module/.git", b"module/.git"),
        (b".gitignore", None),
        (b".github/workflows", None),
        (b".remote/configs.yaml", b".remote"),
        (b".remote.example/configs.yaml", None),
        (b".jobs/x", b".jobs"),
        (b".remote-scripts/python", b".remote-scripts"),
        (b"train.py", None),
    ],
)
def test_secret_names_at_any_depth(name: bytes, secret: bytes | None) -> None:
    found = secret_in(name)
    assert (found.name if found else None) == secret


@pytest.mark.row(112)
@pytest.mark.parametrize("name", ["deploy.pem", "tls.key", "deploy", "my_key.txt", "id_deploy", "backup.asc"])
@pytest.mark.parametrize(
    "text",
    [
        pem("RSA PRIVATE KEY"),
        pem("OPENSSH PRIVATE KEY"),
        pem("ENCRYPTED PRIVATE KEY"),
        pem("PRIVATE KEY").replace("\n", "\r\n"),
        pem("PGP PRIVATE KEY BLOCK"),
        pem("CERTIFICATE") + pem("EC PRIVATE KEY"),
        "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: xxxxxxxxxxxxxxxxxxxxxxxxxx\n",
    ],
)
def test_private_keys_are_known_by_their_text(tmp_path: Path, name: str, text: str) -> None:
    assert is_key(tmp_path / name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ca.pem", pem("CERTIFICATE")),
        ("public.key", pem("PUBLIC KEY")),
        ("monkey.key", "a table of keys\n" * 20),
        ("keys.py", f"MARK = '-----{'BEGIN'} PRIVATE KEY-----'\n" + "# a program that reads keys\n" * 10),
        ("LICENSE", "Permission is hereby granted, free of charge, to any person obtaining a copy\n"),
        ("model", "\0" * 300 * 1024),
    ],
)
def test_other_files_are_no_keys(tmp_path: Path, name: str, text: str) -> None:
    assert not is_key(tmp_path / name, text)


@pytest.mark.row(112)
def test_a_file_that_nobody_else_may_read_is_looked_into_whatever_its_name(tmp_path: Path) -> None:
    file = tmp_path / "notes.csv"
    assert not is_key(file, pem("OPENSSH PRIVATE KEY"))
    file.chmod(0o600)
    assert is_key(file, pem("OPENSSH PRIVATE KEY"))


def test_a_configured_key_is_known_by_any_name_and_a_missing_one_by_none(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key")
    os.link(key, tmp_path / "copy")
    found = (tmp_path / "copy").stat()
    assert identities([key, tmp_path / "missing"]) == {(found.st_dev, found.st_ino)}


def is_key(file: Path, text: str) -> bool:
    file.write_text(text, newline="")
    return is_private_key(os.fsencode(file), os.fsencode(file.name), file.stat())
