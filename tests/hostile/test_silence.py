"""A server that takes the login and then says nothing holds up no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hostile.conftest import ADDRESSES, SILENCE, Desk, make_hostile_project
from tests.hostile.test_answers import lose_patience

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import TestServer


@pytest.mark.slow
@pytest.mark.row(120)
def test_a_tarpit_among_five_servers_holds_up_no_other(
    hostile_server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lose_patience(monkeypatch)
    monkeypatch.setattr("tests.hostile.conftest.BOUND", 10 * SILENCE)
    root = make_hostile_project(tmp_path / "here" / "project", hostile_server, tuple(ADDRESSES))
    desk = Desk(root, hostile_server, capfd)
    ran = desk.program("run", "--cmd", "echo hello from $REMOTE_TOOL_TEST_SERVER")
    desk.check(ran)
    assert ran.out.count("hello from") == 4
    assert [line for line in ran.err.splitlines() if line.startswith("error: ")] == [
        f"error: silent: the command did not begin within {SILENCE:.0f} s"
    ]
    listed = desk.program("job-list", "--stopped")
    desk.check(listed)
    assert "an honest word" in listed.out
    assert listed.err.count("error: ") == 1
    assert "error: silent: " in listed.err
    assert (ran.status, listed.status) == (3, 3)
