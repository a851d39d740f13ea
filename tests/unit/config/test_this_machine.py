"""This machine as a server, and what init proposes for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.loading import parse
from remote_tool.errors import UsageError
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.servers.init import InitAnswers, ThisMachine, format_configuration

if TYPE_CHECKING:
    from pathlib import Path

CONFIGURATION = b"name: p\nservers: {here: {localhost: true}}\n"


async def test_a_mac_is_refused_as_a_server_by_init_and_by_each_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse(CONFIGURATION, tmp_path / "configs.yaml", tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="here: this machine cannot be a server"):
        ThisMachine.now()
    async with HostPool(config) as pool:
        with pytest.raises(UsageError, match="need Linux"):
            await pool.host("here")


def test_init_proposes_to_leave_out_what_git_ignores_where_git_ignores_something(tmp_path: Path) -> None:
    answers = InitAnswers("p", (), None, ThisMachine())
    assert "respect_gitignore" not in format_configuration(tmp_path, answers)
    (tmp_path / ".gitignore").write_text("*.ckpt\n")
    proposed = format_configuration(tmp_path, answers).replace("# respect_gitignore", "respect_gitignore")
    assert parse(proposed.encode(), tmp_path / "configs.yaml", tmp_path).respect_gitignore
