"""Commands, variables, and output arrive as they are, and cannot do anything on the way."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import PATIENCE

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

ODD = 'it\'s "odd"; $(touch began) `touch began` \\ %s \t\n ü ${HOME} *'


@pytest.mark.row(107)
@pytest.mark.parametrize("words", [("run",), ("job-run", "--no-sync", "--follow")], ids=["run", "job-run"])
def test_a_command_and_its_variables_arrive_unchanged(desk: Desk, words: tuple[str, ...]) -> None:
    quoted = "'" + ODD.replace("'", "'\\''") + "'"
    desk.does(*words, "--env", "ODD", ODD, "--cmd", f'printf %s {quoted} > word; printf %s "$ODD" > variable')
    assert (desk.there() / "word").read_text() == ODD
    assert (desk.there() / "variable").read_text() == ODD
    assert not (desk.there() / "began").exists()


@pytest.mark.row(37)
def test_any_bytes_arrive_in_any_amount(desk: Desk) -> None:
    data = os.urandom(4_000_000) + bytes(range(256)) * 4
    (desk.there() / "data").write_bytes(data)
    words = [sys.executable, "-m", "remote_tool", "run", "--cmd", "cat data data data"]
    ran = subprocess.run(words, cwd=desk.root, capture_output=True, check=True, timeout=PATIENCE)
    assert hashlib.sha256(ran.stdout).digest() == hashlib.sha256(data * 3).digest()


@pytest.mark.row(110)
def test_what_a_server_says_does_not_control_the_terminal(desk: Desk) -> None:
    desk.does("job-run", "--no-sync", "--cmd", "printf 'ValueError: \\033]0;owned\\007\\033[2J\\n' >&2; exit 1")
    desk.waits_for(1, "failed")
    said = desk.tries("job-show", "1")
    assert "ValueError" in said.stdout
    assert [character for character in said.stdout + said.stderr if character in "\033\007"] == []
