"""What a power cut leaves on a server is mended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sshd import python_of_servers

if TYPE_CHECKING:
    from tests.promises.conftest import Desk


@pytest.mark.slow
@pytest.mark.parametrize("left", ["", '{"schema": 1, "pre'])
def test_a_damaged_record_of_an_environment_in_use_is_written_again(desk: Desk, left: str) -> None:
    desk.configure(environment="venv", python=python_of_servers())
    desk.does("prepare")
    desk.does("job-run", "--cmd", "sleep 1000")
    folder = desk.there() / ".remote-scripts"
    before, made = (folder / "activation.json").read_text(), (folder / "environment").stat().st_ino
    (folder / "activation.json").write_text(left)
    desk.does("prepare")
    assert (folder / "activation.json").read_text() == before
    assert (folder / "environment").stat().st_ino == made
    assert desk.job(1)["state"] == "running"
    desk.does("job-kill", "1")
