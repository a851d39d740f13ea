"""What is a secret: by its name, or by its text."""

from __future__ import annotations

import itertools
import json
import os
from typing import TYPE_CHECKING

import pytest

from remote_tool.transport.sync import secrets
from remote_tool.transport.sync.secrets import identities, is_private_key, secret_in
from tests.figures import record_figure

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
        (b"a\n.env", b"a\n.env"),
        (b"my.env", b"my.env"),
        (b"prod.env", b"prod.env"),
        (b".env-prod", b".env-prod"),
        (b".env_prod", b".env_prod"),
        (b"example.env", None),
        (b".env-example", None),
        (b"environment.env.py", None),
        (b"env.prod", b"env.prod"),
        (b"conf/env.local", b"conf/env.local"),
        (b"staging.env.local", b"staging.env.local"),
        (b"prod.env.bak", b"prod.env.bak"),
        (b"backup.env~", b"backup.env~"),
        (b".env~", b".env~"),
        (b"env.py", None),
        (b"env.sh", None),
        (b"env.yml", None),
        (b"env.production.py", None),
        (b"environment.yml", None),
        (b"prod.environment.yml", None),
        (b"next.env.d.ts", None),
        (b"staging.env.example", None),
        (b"sub/application_default_credentials.json", b"sub/application_default_credentials.json"),
        (
            b"client_secret_123-x.apps.googleusercontent.com.json",
            b"client_secret_123-x.apps.googleusercontent.com.json",
        ),
        (b"client_secrets.json", b"client_secrets.json"),
        (b"client_secret_test.py", None),
        (b"kaggle.json", b"kaggle.json"),
        (b"my_kaggle.json", None),
        (b"hf_token", b"hf_token"),
        (b"hf_tokenizer.json", None),
        (b".vault-token", b".vault-token"),
        (b".rclone.conf", b".rclone.conf"),
        (b"rclone.conf", b"rclone.conf"),
        (b".npmrc", b".npmrc"),
        (b"web/.npmrc", b"web/.npmrc"),
        (b".docker/config.json", b".docker/config.json"),
        (b".docker/Dockerfile", None),
        (b"config.json", None),
        (b".huggingface/token", b".huggingface/token"),
        (b"home/.cache/huggingface/token", b"home/.cache/huggingface/token"),
        (b"token", None),
        (b".config/gcloud/credentials.db", b".config/gcloud"),
        (b".config/settings.yml", None),
        (b".kube/config", b".kube"),
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


def base64_lines(count: int = 20) -> str:
    return "\n".join("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDdNwcFPvw5AhBa" for _ in range(count)) + "\n"


def key(kind: str, headers: str = "") -> str:
    return f"-----{'BEGIN'} {kind}-----\n{headers}{base64_lines()}-----END {kind}-----\n"


PUTTY = f"PuTTY-User-Key{'-File'}-3: ssh-ed25519\nEncryption: none\nComment: me@here\nPublic-Lines: 2\n" + base64_lines(
    2
)
KEYS = {
    "pkcs1": key("RSA PRIVATE KEY"),
    "pkcs8": key("PRIVATE KEY"),
    "pkcs8 with a passphrase": key("ENCRYPTED PRIVATE KEY"),
    "ec": key("EC PRIVATE KEY"),
    "dsa with a passphrase": key("DSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123\n\n"),
    "openssh": key("OPENSSH PRIVATE KEY"),
    "pgp": key("PGP PRIVATE KEY BLOCK", "Version: GnuPG v2\n\n"),
    "pgp without headers": key("PGP PRIVATE KEY BLOCK", "\n"),
    "putty": PUTTY,
    "age": f"# created: 2026-01-01T00:00:00Z\n# public key: age1{'q' * 58}\n"
    f"AGE-SECRET-{'KEY'}-1{'QPZRY9X8GF' * 5}QPZRY9X8\n",
    "ssh.com": f"---- {'BEGIN'} SSH2 ENCRYPTED PRIVATE KEY ----\nComment: me\n{base64_lines()}"
    "---- END SSH2 ENCRYPTED PRIVATE KEY ----\n",
}
NAMES = (
    *(
        "notes.md",
        "deploy.pem",
        "tls.key",
        "deploy",
        "my_key.txt",
        "id_deploy",
        "backup.asc",
        "secret.json",
        "data.csv",
    ),
    *("train.py", "README", ".hidden", "model.bin", "a b.yaml", "x.tar.gz", "configs.ini", "Makefile"),
)


def _literal(text: str, before: str, after: str) -> str:
    return "KEY = (\n" + "".join(f"{before}{line}{after}" for line in text.splitlines()) + ")\n"


WRITTEN = {
    "as it is": lambda text: text,
    "with the ends of lines of Windows": lambda text: text.replace("\n", "\r\n"),
    "with those of an old Mac": lambda text: text.replace("\n", "\r"),
    "without an end": lambda text: text.rstrip("\n"),
    "behind text": lambda text: "# Notes\n\nThe key of the server:\n\n" + text + "\nEnd of the notes\n",
    "behind a certificate": lambda text: key("CERTIFICATE") + text,
    "indented, as in YAML": lambda text: "key: |\n" + "".join(f"    {line}\n" for line in text.splitlines()),
    "in JSON": lambda text: json.dumps({"type": "service_account", "private_key": text}, indent=2),
    "in JSON within JSON": lambda text: json.dumps({"inner": json.dumps({"private_key": text})}),
    "in quotes": lambda text: f'KEY="{text}"\n',
    "in a notebook": lambda text: json.dumps({"cells": [{"source": text.splitlines(keepends=True)}]}, indent=1),
    "in a program in a notebook": lambda text: json.dumps(
        {"source": _literal(text, '    "', '\\n"\n').splitlines(True)}
    ),
    "in a list on one line": lambda text: json.dumps(text.splitlines()),
    "in a literal over several lines": lambda text: _literal(text, '    "', '\\n"\n'),
    "in a literal of bytes": lambda text: _literal(text, "    b'", "\\n'\n"),
    "in strings that are added": lambda text: _literal(text, '"', '\\n" +\n'),
    "in strings that a backslash joins": lambda text: _literal(text, '"', '\\r\\n" \\\n'),
    "in lines that are joined": lambda text: "KEY = '\\n'.join([\n" + _literal(text, '  "', '",\n') + "])",
    "behind much": lambda text: "x = 1\n" * 3_000 + text,
}
ENCODED = {
    "in UTF-8": str.encode,
    "in UTF-8 with a mark": lambda text: text.encode("utf-8-sig"),
    "in UTF-16": lambda text: text.encode("utf-16"),
    "in UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "in UTF-16 of others": lambda text: text.encode("utf-16-be"),
}
MODES = (0o600, 0o644, 0o755)


@pytest.mark.row(112, 147)
@pytest.mark.slow
def test_a_private_key_is_known_whatever_its_file_is_called_and_however_it_is_written(tmp_path: Path) -> None:
    """Names, modes, formats of keys, and ways to write them down: each with each."""
    cases, failed = 0, []
    for (kind, text), (way, write), (how, encode) in itertools.product(KEYS.items(), WRITTEN.items(), ENCODED.items()):
        data = encode(write(text))
        for name, mode in zip(NAMES, itertools.cycle(MODES), strict=False):
            file = tmp_path / name
            file.write_bytes(data)
            file.chmod(mode)
            cases += 1
            if not is_private_key(os.fsencode(file), file.stat()):
                failed.append((kind, way, how, name))
    record_figure("files with a private key: names, modes, formats and ways to write it, that were held back", cases)
    print(f"{cases} files with a private key, {len(failed)} not held back")  # noqa: T201 - the cases are the proof
    assert failed == []


def test_every_mode_and_name_of_the_corpus_is_tried_with_each_other(tmp_path: Path) -> None:
    for name, mode in itertools.product(NAMES, MODES):
        file = tmp_path / name
        file.write_text(KEYS["openssh"])
        file.chmod(mode)
        assert is_private_key(os.fsencode(file), file.stat()), (name, mode)
        file.unlink()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ca.pem", pem("CERTIFICATE")),
        ("public.key", pem("PUBLIC KEY")),
        ("monkey.key", "a table of keys\n" * 20),
        ("keys.py", f"MARK = '-----{'BEGIN'} PRIVATE KEY-----'\n" + "# a program that reads keys\n" * 10),
        (
            "kinds.py",
            "KINDS = ["
            + ", ".join(f"'-----{'BEGIN'} {kind} KEY-----'" for kind in ("PRIVATE", "RSA PRIVATE"))
            + "]\n" * 9,
        ),
        (
            "check.js",
            f"if (text.includes('-----{'BEGIN'} PRIVATE KEY-----')) {{\n  loadThePrivateKeyOf(text);\n}}\n" * 3,
        ),
        ("check.go", f'const first = "-----{"BEGIN"} PRIVATE KEY-----"\n\n// Comment: what a key looks like\n' * 3),
        ("age.py", f"PREFIX = 'AGE-SECRET-{'KEY'}-1'\n# an identity of age begins with it, see its documentation\n"),
        ("wide.py", f"MARK = '-----{'BEGIN'} PRIVATE KEY-----'\n".encode("utf-16-le").decode() * 9),
        ("LICENSE", "Permission is hereby granted, free of charge, to any person obtaining a copy\n"),
        ("model", "\0" * 300 * 1024),
    ],
)
def test_other_files_are_no_keys(tmp_path: Path, name: str, text: str) -> None:
    assert not is_key(tmp_path / name, text)


@pytest.mark.row(147)
def test_a_checked_file_is_not_opened_again_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bytes] = []
    original = secrets.is_private_key

    def look(path: bytes, found: os.stat_result) -> bool:
        opened.append(path.rpartition(b"/")[2])
        return original(path, found)

    monkeypatch.setattr(secrets, "is_private_key", look)
    plain, key_file, note = tmp_path / "plain", tmp_path / "notes.md", tmp_path / "looked"
    plain.write_text("x = 1\n" * 50)
    key_file.write_text(KEYS["openssh"])

    def look_at_all() -> list[bool]:
        opened.clear()
        looked = secrets.Looked(note)
        answers = [looked.is_private_key(os.fsencode(path), path.stat()) for path in (plain, key_file)]
        looked.note()
        return answers

    assert look_at_all() == [False, True]
    assert opened == [b"plain", b"notes.md"]
    assert look_at_all() == [False, True]
    assert opened == [b"notes.md"], "a key is looked into each time"
    # Of the same size and time; only that of its last change is another.
    found = plain.stat()
    for _ in range(10_000):
        plain.write_text(KEYS["openssh"][:300].ljust(300))
        os.utime(plain, ns=(found.st_mtime_ns, found.st_mtime_ns))
        # Some file systems have the time of the last tick of the clock.
        if plain.stat().st_ctime_ns != found.st_ctime_ns:
            break
    assert look_at_all() == [True, True]
    monkeypatch.setattr(secrets, "_RULES", b"other rules")
    plain.write_text("x = 1\n" * 50)
    assert look_at_all() == [False, True]
    assert look_at_all() == [False, True]
    assert opened == [b"notes.md"]


@pytest.mark.row(147)
@pytest.mark.parametrize("note", [b"", b"\n", b"nonsense\n\0\xff", os.urandom(500)])
def test_an_invalid_record_of_checked_files_is_ignored(tmp_path: Path, note: bytes) -> None:
    (tmp_path / "looked").write_bytes(note)
    (tmp_path / "notes.md").write_text(KEYS["openssh"])
    looked = secrets.Looked(tmp_path / "looked")
    assert looked.is_private_key(os.fsencode(tmp_path / "notes.md"), (tmp_path / "notes.md").stat())


def test_a_configured_key_is_known_by_any_name_and_a_missing_one_by_none(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key")
    os.link(key, tmp_path / "copy")
    found = (tmp_path / "copy").stat()
    assert identities([key, tmp_path / "missing"]) == {(found.st_dev, found.st_ino)}


def is_key(file: Path, text: str) -> bool:
    file.write_text(text, newline="")
    return is_private_key(os.fsencode(file), file.stat())
