"""A pipe or a device in place of a file is refused at once."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.program import remote_tool
from tests.project import make_project
from tests.promises.conftest import Desk
from tests.sshd import TestServer

SECONDS = 60.0


@pytest.mark.row(114)
def test_a_pipe_as_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".remote").mkdir()
    os.mkfifo(tmp_path / ".remote" / "configs.yaml")
    ran = remote_tool("job-list", cwd=tmp_path, timeout=SECONDS)
    assert ran.returncode != 0
    assert ".remote/configs.yaml: Not a plain file" in ran.stderr


def test_a_pipe_of_patterns_is_refused(desk: Desk) -> None:
    os.mkfifo(desk.root / ".remote" / "exclude.txt")
    assert "exclude.txt cannot be read: Not a plain file" in desk.refuses("rsync")


@pytest.mark.row(247)
def test_a_pipe_of_patterns_is_one_error_for_all_servers_without_waiting_for_a_login(
    tmp_path: Path, ssh_key: Path
) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = {f"server{number}": each.getsockname()[1] for number, each in enumerate(silent)}
        servers = [TestServer(name, tmp_path / name, ssh_key, port=port) for name, port in ports.items()]
        desk = Desk(make_project(tmp_path / "project", servers), {})
        os.mkfifo(desk.root / ".remote" / "exclude.txt")
        said = desk.refuses("rsync")
    assert said.count("exclude.txt cannot be read: Not a plain file") == 1
    assert "no answer" not in said


def test_a_pipe_of_host_keys_is_refused(desk: Desk) -> None:
    file = desk.root / ".remote" / "known_hosts"
    file.unlink()
    os.mkfifo(file)
    desk.configure(keep_connections=0)
    assert "known_hosts cannot be read and is ignored: Not a plain file" in desk.refuses("run", "--cmd", "true")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_private_key_that_is_no_file_is_refused(desk: Desk, tmp_path: Path, kind: str) -> None:
    odd = tmp_path / "odd" if kind == "pipe" else Path("/dev/null")
    if kind == "pipe":
        os.mkfifo(odd, 0o644)
    mode = stat.S_IMODE(odd.stat().st_mode)
    servers = desk.settings()["servers"]
    servers["first"]["private_key"] = str(odd)
    desk.configure(servers=servers, keep_connections=0)
    said = desk.refuses("run", "--cmd", "true")
    assert f"the private key {odd} cannot be read: Not a plain file" in said
    assert stat.S_IMODE(odd.stat().st_mode) == mode
