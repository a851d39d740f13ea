"""The keys of hosts are compared with those that are known."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.promises.conftest import Desk


@pytest.mark.row(39)
def test_a_damaged_line_of_a_known_host_does_not_make_its_key_new(desk: Desk) -> None:
    desk.configure(keep_connections=0)
    known = desk.root / ".remote" / "known_hosts"
    (line,) = known.read_text().splitlines()
    name, kind, key = line.split()[:3]
    for damaged in (f"{name} {kind} {key[:-12]}", f"{name} {kind}", f"{name} {kind} {key[:40]} rest"):
        known.write_text(f"{damaged}\n")
        said = desk.refuses("run", "--cmd", "true")
        assert f"cannot be compared with the known one, as {known}:1 is damaged" in said
        assert known.read_text() == f"{damaged}\n"
    subprocess.run(["sed", "-i.bak", "1d", str(known)], check=True)
    assert "accepted" in desk.tries("run", "--cmd", "true").stderr
