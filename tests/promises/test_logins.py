"""Keys of hosts, and passwords: a new key is shown, a changed one refused, and no password goes to a stranger."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.below import contents_below
from tests.project import make_project
from tests.promises.conftest import Desk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.sshd import TestServer

PASSWORD = "correct-horse-battery-staple"


def fingerprint(server: TestServer) -> str:
    words = ["ssh-keygen", "-l", "-f", f"{server.host_key}.pub"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[1]


@pytest.mark.row(38, 39)
def test_a_new_key_is_shown_once_and_a_changed_one_is_refused(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("first")
    desk = Desk(make_project(tmp_path / "project", [server]), {"first": server})
    first = desk.tries("run", "--cmd", "true")
    assert fingerprint(server) in first.stderr
    assert f"[{server.address}]:{server.port}" in (desk.root / ".remote" / "known_hosts").read_text()
    assert "host key" not in desk.tries("run", "--cmd", "true").stderr
    server.stop()
    for name in ("host_key", "host_key.pub"):
        (server.folder / name).unlink()
    server.start()
    before = server.log().count("Accepted publickey")
    said = desk.refuses("run", "--cmd", "true", status=4)
    assert "has changed" in said
    assert fingerprint(server) in said
    assert "changed" in desk.refuses("run", "--accept-new-keys", "--cmd", "true", status=4)
    assert server.log().count("Accepted publickey") == before


@pytest.mark.row(39)
def test_a_new_key_is_refused_where_keys_are_strict(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("first")
    desk = Desk(make_project(tmp_path / "project", [server], host_keys="strict"), {"first": server})
    assert fingerprint(server) in desk.refuses("run", "--cmd", "true", status=4)
    assert not (desk.root / ".remote" / "known_hosts").exists()


@pytest.mark.row(141)
@pytest.mark.parametrize("key", ["password", "password_env"])
def test_no_password_is_sent_to_a_host_before_its_key_is_accepted(
    make_server: MakeServer, tmp_path: Path, key: str
) -> None:
    server = make_server("first", PasswordAuthentication="yes", PubkeyAuthentication="no")
    desk = Desk(make_project(tmp_path / "project", [server]), {"first": server})
    settings = desk.settings()["servers"]["first"]
    del settings["private_key"]
    desk.configure(servers={"first": settings | {key: PASSWORD if key == "password" else "DOOR"}})
    environment = {"DOOR": PASSWORD}
    refused = desk.tries("run", "--cmd", "true", environment=environment)
    assert refused.returncode == 4
    assert f"no password was sent to it: ssh-ed25519 {fingerprint(server)}" in refused.stderr
    assert "Failed password" not in server.log()
    # It is not that of the account, so sshd says that it came.
    tried = desk.tries("run", "-vv", "--accept-new-keys", "--cmd", "true", environment=environment)
    assert tried.returncode == 4
    assert re.search("Failed password", server.log())
    assert PASSWORD not in refused.stderr + tried.stdout + tried.stderr
    kept = [path for path, data in contents_below(desk.root) if PASSWORD.encode() in data]
    assert [path.name for path in kept] == (["configs.yaml"] if key == "password" else [])
