"""What a server says may be without end, come too fast, or be older than the question."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.project import make_project
from tests.promises.conftest import PATIENCE, Desk, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

# Notes how much it has written.
FLOOD = """
import os
for number in range(1, 81):
    os.write(1, bytes(1_000_000))
    with open("written", "w") as file:
        file.write(str(number))
"""


@pytest.mark.row(37)
def test_a_difference_that_is_too_long_is_not_shown_cut_off(desk: Desk) -> None:
    for letter in "ab":
        (desk.root / "data.txt").write_text(f"{letter * 99}\n" * 25_000)
        desk.does("job-run", "--frozen", "--follow", "--cmd", "true")
    ran = desk.tries("job-diff", "1", "2")
    assert "printed more than 4194304 bytes" in " ".join((ran.stdout + ran.stderr).split())
    assert f"+{'b' * 99}" not in ran.stdout


@pytest.mark.row(53)
def test_an_old_answer_that_a_server_plays_again_is_not_believed(make_server: MakeServer, tmp_path: Path) -> None:
    said = tmp_path / "said"
    # It keeps all that it ever said, and says that first.
    again = f"""exec bash -o pipefail -c 'cat {said} 2>/dev/null; eval "$SSH_ORIGINAL_COMMAND" | tee -a {said}'"""
    server = make_server(ForceCommand=again)
    desk = Desk(make_project(tmp_path / "project", [server], keep_connections=0), {"first": server})
    for word in ("one", "two"):
        assert desk.does("run", "--cmd", f"echo {word}") == f"{word}\n"
    assert b"\none\n" in said.read_bytes()


@pytest.mark.row(37)
def test_output_that_nobody_reads_waits_on_the_server_and_all_of_it_arrives(desk: Desk) -> None:
    desk.configure(keep_connections=0)
    (desk.there() / "flood.py").write_text(FLOOD)
    written = desk.there() / "written"
    words = [sys.executable, "-m", "remote_tool", "shell", "--", "python", "flood.py"]
    with subprocess.Popen(words, cwd=desk.root, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        try:
            until(written.exists, "it writes")
            before = -1
            while (now := int(written.read_text() or 0)) != before:
                before = now
                time.sleep(0.5)  # what goes on would have gone on
            assert now < 40
            size = 0
            while data := os.read(running.stdout.fileno(), 1 << 20):
                size += len(data)
            assert running.wait(PATIENCE) == 0
        finally:
            running.kill()
    assert size == 80_000_000
