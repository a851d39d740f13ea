"""A server that takes the login and then says nothing holds up no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.extended.hostile.conftest import ADDRESSES, SILENCE, Desk, make_hostile_project
from tests.extended.hostile.test_answers import lose_patience

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import TestServer


@pytest.mark.slow
@pytest.mark.row(120)
def test_a_tarpit_among_five_servers_holds_up_no_other(
    hostile_server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lose_patience(monkeypatch)
    monkeypatch.setattr("tests.extended.hostile.conftest.BOUND", 10 * SILENCE)
    root = make_hostile_project(tmp_path / "here" / "project", hostile_server, tuple(ADDRESSES))
    desk = Desk(root, hostile_server, capfd)
    # Each waits for the others, which none could that had to end first.
    meet = f"mkdir -p {tmp_path.name}; touch {tmp_path.name}/$REMOTE_TOOL_SERVER; for try in $(seq 200); do"
    count = f"$(ls {tmp_path.name} | wc -l)"
    ran = desk.program("run", "--cmd", f"{meet} [ {count} -lt 4 ] || break; sleep 0.05; done; echo met {count}")
    desk.check(ran)
    assert ran.out.count("met 4") == 4
    (error,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: silent: the login shell did not start the command within {SILENCE:g} s: ")
    listed = desk.program("job-list", "--stopped")
    desk.check(listed)
    assert "honest-tag" in listed.out
    assert listed.err.count("error: ") == 1
    assert "error: silent: " in listed.err
    assert (ran.status, listed.status) == (3, 3)
