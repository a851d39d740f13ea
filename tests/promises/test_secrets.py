"""What is nobody else's business stays here."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.sshd import make_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.promises.conftest import Desk


@pytest.mark.row(147)
def test_keys_and_credentials_stay_here_however_they_are_written_and_code_is_sent(desk: Desk) -> None:
    lines = [
        f"-----{'BEGIN'} PRIVATE KEY-----",
        *(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDdNwcFPvw5AhBa"] * 9),
    ]
    literal = "KEY = (\n" + "".join(f'    "{line}\\n"\n' for line in lines) + ")\n"
    secret = {
        "look.ipynb": json.dumps({"cells": [{"source": [f"{line}\n" for line in lines]}]}, indent=1).encode(),
        "narrow.json": json.dumps(
            {"key": "\n".join([lines[0], *("MIIEvQIBADANBgkqhkiG9w0B" for _ in range(9))])}
        ).encode(),
        "deploy.py": literal.encode(),
        "wide.txt": "\n".join(lines).encode("utf-16-le"),
        "identity.txt": f"AGE-SECRET-{'KEY'}-1{'QPZRY9X8GF' * 5}QPZRY9X8\n".encode(),
    }
    names = (
        "env.prod",
        "env.prod~",
        "a.env.local~",
        "staging.env.local",
        "backup.env~",
        "application_default_credentials.json",
        "kaggle.json",
    )
    secret |= dict.fromkeys((*names, "client_secret_1.json", "hf_token", ".vault-token", ".rclone.conf"), b"secret")
    sent = dict.fromkeys(("env.py", "env.sh", "environment.yml", "train.ipynb"), b"plain")
    for name, data in (secret | sent).items():
        (desk.root / name).write_bytes(data)
    assert desk.tries("rsync").stderr.count("not sent: ") >= 10
    assert {path.name for path in desk.there().iterdir()} == {*sent, "hello.py", ".remote-scripts"}


@pytest.mark.row(186)
@pytest.mark.parametrize("unusable", ["", "grep", "find"])
def test_no_private_key_among_many_new_files_is_sent(desk: Desk, tmp_path: Path, unusable: str) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    if unusable:
        (programs / unusable).write_text("#!/bin/sh\nexit 1\n")
        (programs / unusable).chmod(0o755)
    key = make_key(tmp_path / "key").read_text()
    age = f"AGE-SECRET-{'KEY'}-1{'QPZRY9X8GF' * 5}QPZRY9X8\n"
    secret = {"openssh": key.encode(), "wide": key.encode("utf-16"), "age": age.encode()}
    sent = {f"{number}.txt": f"{number}\n".encode() * 40 for number in range(600)}
    sent["mentions.txt"] = b"PRIVATE KEY, in a text about keys\n" * 5
    (desk.root / "many").mkdir()
    for name, data in (secret | sent).items():
        (desk.root / "many" / name).write_bytes(data)
    said = desk.tries("rsync", environment={"PATH": f"{programs}:{os.environ['PATH']}"}).stderr
    assert {name for name in secret if f"not sent: many/{name} is a private key" in said} == secret.keys()
    assert {path.name: path.read_bytes() for path in (desk.there() / "many").iterdir()} == sent


def _nothing(_: Desk) -> None:
    """The next sync looks at what has changed since the last one."""


def _other_patterns(desk: Desk) -> None:
    """The next sync looks at everything again."""
    (desk.root / ".remote" / "exclude.txt").write_text("*.other\n")


@pytest.mark.row(186)
@pytest.mark.parametrize("meanwhile", [_nothing, _other_patterns])
def test_a_file_that_turns_into_a_private_key_of_the_same_size_and_time_is_held_back(
    desk: Desk, tmp_path: Path, meanwhile: Callable[[Desk], None]
) -> None:
    key, file, there = make_key(tmp_path / "key").read_text(), desk.root / "notes.txt", desk.there() / "notes.txt"
    harmless = "x" * len(key)
    file.write_text(harmless)
    desk.does("rsync")
    before = file.stat()
    file.write_text(key)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    meanwhile(desk)
    assert "not sent: notes.txt is a private key" in desk.tries("rsync", "--checksum").stderr
    assert there.read_text() == harmless


def test_a_secret_in_the_place_of_variables_is_not_shown(desk: Desk) -> None:
    for env in ("hunter2hunter2", ["hunter2hunter2"], {"TOKEN=hunter2hunter2": "x"}, {"TOKEN": ["hunter2hunter2"]}):
        desk.configure(env=env)
        said = desk.refuses("rsync", status=2)
        assert "env" in said
        assert "hunter2" not in said


@pytest.mark.parametrize("secrets", ["TOKEN=hunter2hunter2", ["TOKEN=hunter2hunter2"], {"TOKEN": "hunter2hunter2"}])
@pytest.mark.parametrize("key", ["on_end", "on_empty"])
def test_a_secret_in_the_place_of_the_names_of_secrets_is_not_shown(desk: Desk, key: str, secrets: object) -> None:
    desk.configure(**{key: {"run": "true", "secrets": secrets}})
    said = desk.refuses("rsync", status=2)
    assert f"{key}.secrets" in said
    assert "hunter2" not in said


@pytest.mark.row(300)
def test_recorded_changes_have_no_file_that_is_not_sent_and_no_value_of_a_variable(desk: Desk) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *who, *words], cwd=desk.root, check=True, capture_output=True)

    for name in ("train.py", "login.py", ".env", "old.py", "old.env"):
        (desk.root / name).write_text("rate = 1\n")
    # It is a key no more, so it is sent.
    key = make_key(desk.root / "was-key.txt").read_text().splitlines()
    (desk.root / "was-key.txt.pub").unlink()
    git("init")
    git("add", "--force", "hello.py", "train.py", "login.py", ".env", "old.py", "old.env", "was-key.txt")
    git("commit", "-m", "one")
    (desk.root / ".env").write_text("DOOR=open-sesame-open-sesame\n")
    (desk.root / "login.py").write_text("token = 'hunter2hunter2'\n")
    (desk.root / "train.py").write_text("rate = 2\n")
    (desk.root / "was-key.txt").write_text("none\n")
    for name in ("old.py", "old.env"):
        (desk.root / name).unlink()
    desk.does("job-run", "--frozen", "--env", "TOKEN", "hunter2hunter2", "--follow", "--cmd", "true")
    (changes,) = (desk.root / ".remote" / "jobs").glob("*/changes.patch")
    assert [line for line in changes.read_text().splitlines() if line.startswith("+") and line[1] != "+"] == [
        "+token = '***'",
        "+rate = 2",
    ]
    for secret in ("DOOR", "old.env", key[1]):
        assert secret not in changes.read_text()
    # What was removed is only named.
    assert "old.py" in changes.read_text()
    assert changes.read_text().count("-rate = 1") == 2


@pytest.mark.row(113)
def test_our_files_on_a_server_are_private_and_a_link_in_their_place_is_refused(desk: Desk) -> None:
    desk.does("job-run", "--no-sync", "--follow", "--cmd", "true")
    for name in (".jobs", ".remote-scripts"):
        assert stat.S_IMODE((desk.there() / name).stat().st_mode) == 0o700
    elsewhere = (desk.there() / ".jobs").rename(desk.root.parent / "elsewhere")
    (desk.there() / ".jobs").symlink_to(elsewhere)
    said = desk.refuses("job-run", "--no-sync", "--cmd", "touch began")
    assert f"{desk.there()}/.jobs is a symbolic link or no folder" in said
    assert not (desk.there() / "began").exists()
