"""A pipe or a device in place of a file is refused at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.program import remote_tool

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

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
