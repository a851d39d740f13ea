"""rsync --relay: what servers get from each other is what they would have been sent from here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk

# Less is sent from here.
LARGE = 300_000


def write(file: Path, data: bytes, nanoseconds: int = 1_700_000_000_100_000_000) -> None:
    file.write_bytes(data)
    os.utime(file, ns=(nanoseconds, nanoseconds))


@pytest.mark.row(65, 106)
def test_a_server_hands_on_no_other_content_and_an_edit_in_the_same_second_reaches_all(desk_of_two: Desk) -> None:
    desk, whole = desk_of_two, os.urandom(LARGE)
    for name in ("changed.bin", "same.bin"):
        write(desk.root / name, whole)
    desk.does("rsync", "--server", "first")
    # Of the same size and time, but not what it was sent.
    write(desk.there("first") / "changed.bin", bytes(LARGE))
    assert "from first" in desk.tries("rsync", "--relay").stderr
    assert [(desk.there("second") / name).read_bytes() == whole for name in ("changed.bin", "same.bin")] == [True] * 2
    write(desk.root / "same.bin", bytes(LARGE), 1_700_000_000_200_000_000)
    desk.does("rsync", "--relay")
    assert [(desk.there(server) / "same.bin").read_bytes() == bytes(LARGE) for server in desk.servers] == [True] * 2
