"""Startup files of the login shell that move its outputs: nothing is mistaken, and what does not work is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.project import make_project
from tests.promises.conftest import Desk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

BOTH_IN_ONE = ("exec 2>&1", "exec 2>&1; set -x", "exec 2>&1; echo noise; echo noise >&2")


@pytest.fixture
def fresh(make_server: MakeServer, tmp_path: Path) -> Desk:
    """A project and a server of its own, which was never prepared."""
    server = make_server()
    return Desk(make_project(tmp_path / "project", [server], name="project"), {"first": server})


@pytest.mark.parametrize("line", BOTH_IN_ONE)
def test_standard_error_in_standard_output_is_not_taken_for_data(fresh: Desk, line: str) -> None:
    (fresh.servers["first"].home / ".bashrc").write_text(f"{line}\n")
    file = fresh.root / "a.py"
    for text in ("first\n", "second\n", "third, and longer\n"):
        file.write_text(text)
        fresh.does("rsync")
        assert (fresh.there() / "a.py").read_text() == text
    fresh.does("prepare")
    assert fresh.does("run", "--cmd", "echo out 42; echo err 42 >&2") == "out 42\nerr 42\n"
    fresh.does("job-run", "--follow", "--cmd", "echo in a job")
    assert fresh.job(1)["exit_code"] == 0


@pytest.mark.parametrize("line", [*BOTH_IN_ONE, "exec 2>/dev/null"])
def test_errors_of_commands_and_steps_are_seen_where_there_is_no_standard_error(fresh: Desk, line: str) -> None:
    (fresh.servers["first"].home / ".bashrc").write_text(f"{line}\n")
    spoken = ("run", "--cmd", "echo out 42; echo err 42 >&2; exit 3")
    ran = fresh.tries(*spoken)
    assert (ran.returncode, ran.stdout) == (3, "out 42\nerr 42\n"), ran.stderr
    fresh.does("prepare")
    servers = fresh.settings()["servers"]
    fresh.configure(servers={"first": {**servers["first"], "launch": "env INSIDE=1"}})
    ran = fresh.tries(*spoken)
    assert (ran.returncode, ran.stdout) == (3, "out 42\nerr 42\n"), ran.stderr
    (fresh.root / "requirements.txt").write_text("none @ file:///nowhere/none-1.0.tar.gz\n")
    fresh.configure(servers=servers)
    assert "No such file or directory: '/nowhere/none-1.0.tar.gz'" in fresh.refuses("prepare")


def test_a_copy_that_was_marked_wrongly_is_complete_after_the_next_sync(fresh: Desk) -> None:
    """As an older version left it: its list and ours do not know what lies there."""
    file = fresh.root / "a.py"
    file.write_text("first\n")
    fresh.does("rsync")
    scripts = fresh.there() / ".remote-scripts"
    (scripts / "sync").write_text("incomplete x y\n")
    (scripts / "sent").write_bytes(b"-1 -1 a.py\0")
    file.write_text("second, and longer\n")
    fresh.does("rsync")
    assert (fresh.there() / "a.py").read_text() == "second, and longer\n"


@pytest.mark.parametrize("line", ["exec 1>/dev/null", "exec >/dev/null 2>&1", "exec 1>shell.log"])
def test_an_output_that_leads_elsewhere_is_named_soon(fresh: Desk, line: str) -> None:
    (fresh.servers["first"].home / ".bashrc").write_text(f"{line}\n")
    said = fresh.refuses("rsync")
    assert "startup file" in said
    assert "standard output" in said
    assert "[[ $- == *i* ]] || return" in said
    assert not fresh.there().exists()
