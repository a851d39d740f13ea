"""Values of variables in what a server sends: not in messages of ours, and untouched in what a command prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

CORE = "hf_kLmNoPqRsTuVwX"


@pytest.mark.row(111)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("run",), ("job-run", "--no-sync"), ("job-run", "--no-sync", "--json")], ids=" ".join
)
def test_a_shell_that_takes_the_request_for_a_command_tells_nobody_what_is_in_it(
    words: tuple[str, ...], make_server: MakeServer, tmp_path: Path
) -> None:
    """A start-up file that reads one line gets our script; the shell then runs the request, and complains of it."""
    server = make_server("first")
    root = make_project(tmp_path / "project", [server])
    assert remote_tool("prepare", cwd=root).returncode == 0
    (server.home / ".bashrc").write_text("read -r taken\n")
    value = f"x`{CORE}`"
    ran = remote_tool(*words, "--cmd", "true", "--env", "TOKEN", value, "-v", cwd=root, timeout=300)
    assert ran.returncode != 0
    assert CORE not in ran.stdout + ran.stderr
    records = [file for file in (root / ".remote").rglob("*") if file.is_file()]
    assert [file for file in records if CORE in file.read_text(errors="replace")] == []


@pytest.mark.row(111)
def test_what_a_command_prints_is_not_altered(make_server: MakeServer, tmp_path: Path) -> None:
    root = make_project(tmp_path / "project", [make_server("first")])
    assert remote_tool("prepare", cwd=root).returncode == 0
    ran = remote_tool("run", "--cmd", 'echo "$TOKEN"; echo "$TOKEN" >&2', "--env", "TOKEN", CORE, cwd=root)
    assert (ran.stdout, ran.stderr) == (f"{CORE}\n", f"{CORE}\n")
    ran = remote_tool("job-run", "--follow", "--cmd", 'echo "$TOKEN"', "--env", "TOKEN", CORE, cwd=root)
    assert ran.stdout == f"{CORE}\n"
    logs = [file for file in (root / ".remote" / "jobs").rglob("*") if file.is_file() and CORE in file.read_text()]
    assert logs
