"""How many output files of a job are read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from remote_tool.protocol import streams
from remote_tool.protocol.streams import find_streams

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.row(76)
def test_a_million_names_in_a_folder_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_STREAMS", 20)
    for run in range(3):
        for attempt in range(10):
            place = tmp_path / "ranks" / f"run{run}" / f"attempt_{attempt}" / "0"
            place.mkdir(parents=True)
            (place / "stdout.log").touch()
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    assert len(find_streams(folder)) == 20
    os.close(folder)
