"""What a sync holds back: named once, let through by send_anyway, and told where a server has it already."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool.transport.sync import secrets
from remote_tool.transport.sync.project.snapshot import take_snapshot
from remote_tool.workflows.sync.project import selection_rules
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.test_push import Desk
from tests.unit.transport.sync.test_secrets import KEYS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

pytestmark = pytest.mark.row(147)
SECRETS = {
    "notes.md": KEYS["openssh"],
    "prod.env": "TOKEN=1\n",
    ".env-prod": "TOKEN=1\n",
    "staging.env.local": "TOKEN=1\n",
    "nb.ipynb": json.dumps({"cells": [{"source": KEYS["openssh"].splitlines(keepends=True)}]}, indent=1),
    "gcp.json": '{"private_key": "' + KEYS["pkcs8"].replace("\n", "\\n") + '"}',
    ".npmrc": "_authToken=1\n",
    ".docker/config.json": "{}",
    ".huggingface/token": "hf_1",
    ".config/gcloud/credentials.db": "x",
}


@pytest.fixture
def desk(make_server: MakeServer, tmp_path: Path) -> Desk:
    server = make_server()
    desk = Desk(make_configuration([server], tmp_path / "project"), server)
    desk.write("train.py")
    return desk


def plant(desk: Desk) -> None:
    for name, text in SECRETS.items():
        desk.write(name, text).chmod(0o644)


def files(desk: Desk) -> set[str]:
    return {name for name in desk.names() if (desk.copy / name).is_file()}


async def test_no_secret_is_sent_whatever_its_mode(desk: Desk) -> None:
    plant(desk)
    for _ in range(2):
        await desk.sync()
        assert files(desk) == {"train.py"}
    await desk.sync(checksum=True)
    assert files(desk) == {"train.py"}


async def test_held_back_files_are_named_once_until_they_change(desk: Desk) -> None:
    plant(desk)
    await desk.sync()
    assert desk.notices.count("not sent: ") == len(SECRETS)
    assert "not sent: notes.md is a private key" in desk.notices
    assert "not sent: .config/gcloud may contain secrets" in desk.notices
    result = await desk.sync()
    assert len(result.skipped) == len(SECRETS)
    assert desk.notices.count("not sent: ") == len(SECRETS)
    desk.write("deploy", KEYS["openssh"])
    await desk.sync()
    assert desk.notices.count("not sent: ") == len(SECRETS) + 1
    (desk.project / "deploy").unlink()
    await desk.sync()
    desk.write("deploy", KEYS["openssh"])
    await desk.sync()
    assert desk.notices.count("not sent: deploy") == 2


@pytest.mark.parametrize("checksum", [False, True])
async def test_send_anyway_lets_what_it_names_through_and_nothing_else(desk: Desk, *, checksum: bool) -> None:
    plant(desk)
    desk.write("sub/prod.env", "TOKEN=1\n")
    desk.write("keys/test [1].pem", KEYS["pkcs8"])
    desk.write("keys/other.txt", KEYS["pkcs8"])
    patterns = ("/prod.env", "notes.*", "keys/*.pem", ".config/gcloud", ".git", ".remote")
    desk.config = replace(desk.config, send_anyway=patterns)
    desk.write(".git/config")
    expected = {"train.py", "prod.env", "notes.md", "keys/test [1].pem", ".config/gcloud/credentials.db"}
    for _ in range(2):
        await desk.sync(checksum=checksum)
        assert files(desk) == expected
    # Excluded by the user, it stays all the same.
    desk.exclude(b"prod.env\n")
    (desk.copy / "prod.env").unlink()
    await desk.sync(checksum=checksum)
    assert files(desk) == expected - {"prod.env"}


async def test_a_configured_private_key_is_not_let_through(desk: Desk) -> None:
    desk.write("server_key", KEYS["openssh"])
    server = replace(desk.config.servers["first"], private_key=desk.project / "server_key")
    config = replace(desk.config, send_anyway=("server_key",))
    assert (await take_snapshot(desk.project, selection_rules(config))).skipped == ()
    config = replace(config, servers={"first": server})
    wanted = await take_snapshot(desk.project, selection_rules(config))
    assert wanted.skipped == (("server_key", "is a private key"),)


@pytest.mark.parametrize("has_note", [True, False])
async def test_what_a_server_has_already_stays_and_is_told_once_with_what_removes_it(
    desk: Desk, *, has_note: bool
) -> None:
    """As after an update of remote-tool, whose rules hold back more."""
    everything = ("*",)
    desk.config = replace(desk.config, send_anyway=everything)
    plant(desk)
    desk.write(".config/gcloud/it's.db", "y")
    await desk.sync()
    assert files(desk) == {"train.py", ".config/gcloud/it's.db", *SECRETS}
    desk.config = replace(desk.config, send_anyway=())
    if not has_note:
        desk.config.local.known_copy("first").unlink()
    for number in range(3):
        desk.write("train.py", f"edited {number}\n")
        result = await desk.sync()
        assert result.removed == ()
    assert files(desk) == {"train.py", ".config/gcloud/it's.db", *SECRETS}
    (told,) = {line for line in desk.notices.splitlines() if "no longer sent" in line}
    assert desk.notices.count("no longer sent") == 1
    command = told.partition("--cmd ")[2]
    (inner,) = subprocess.run(["sh", "-c", f"printf %s {command}"], check=True, capture_output=True).stdout.splitlines()
    subprocess.run(["sh", "-c", inner], check=True, cwd=desk.copy)
    assert files(desk) == {"train.py"}
    assert (await desk.sync()).sent == ()


async def test_a_second_sync_looks_into_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        desk.write(f"module_{number}.py", "x = 1\n" * 20)
    looked: list[bytes] = []
    original = secrets.is_private_key

    def look(path: bytes, *rest: object) -> bool:
        looked.append(path)
        return original(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(secrets, "is_private_key", look)
    await desk.sync()
    assert len(looked) == 20
    desk.write("module_3.py", "y = 2\n" * 30)
    await desk.sync()
    assert len(looked) == 21
