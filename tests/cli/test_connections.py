"""The program with logins that are kept: what it lists and closes, and what it need not load."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.project import make_project, remote_tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import MakeServer
    from tests.sshd import TestServer

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh program here")


@pytest.fixture
def server(make_server: MakeServer) -> TestServer:
    return make_server("first")


@pytest.fixture
def project(server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with one server, whose login is kept."""
    folder = Path(tempfile.mkdtemp(prefix="rtk"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    root = make_project(tmp_path / "project", [server], keep_connections="10m")
    remote_tool("check", cwd=root)
    deadline = time.monotonic() + 60
    while not [path for path in folder.glob("*/*/s????") if path.is_socket()] and time.monotonic() < deadline:
        time.sleep(0.05)
    yield root
    remote_tool("disconnect", cwd=root)
    shutil.rmtree(folder)


def test_kept_logins_are_listed_and_closed(project: Path) -> None:
    listed = remote_tool("connections", cwd=project)
    assert listed.returncode == 0
    assert listed.stdout.startswith("first: ")
    assert listed.stdout.endswith(", 0 in use\n")
    document = json.loads(remote_tool("connections", "--json", cwd=project).stdout)
    (login,) = document["connections"]
    assert login["server"] == "first"
    assert login["pid"] > 1

    closed = json.loads(remote_tool("disconnect", "--server", "first", "--json", cwd=project).stdout)
    assert closed["connections"] == [login]
    again = remote_tool("connections", cwd=project)
    assert (again.returncode, again.stdout) == (0, "")
    assert "no login is kept" in again.stderr


def test_a_sync_goes_over_a_kept_login(project: Path, server: TestServer) -> None:
    logins = server.log().count("Accepted publickey")
    ran = remote_tool("rsync", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert (server.home / "project" / "hello.py").read_bytes() == (project / "hello.py").read_bytes()
    assert server.log().count("Accepted publickey") == logins


def test_a_command_over_a_kept_login_loads_neither_the_ssh_library_nor_cryptography(project: Path) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "remote_tool", "check", "--json"]
    ran = subprocess.run(words, cwd=project, check=False, capture_output=True, text=True, timeout=100)
    assert '"first"' in ran.stdout
    lines = [line for line in ran.stderr.splitlines() if line.startswith("import time:")]
    packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "remote_tool" in packages
    assert not packages & {"asyncssh", "cryptography"}
