"""The local copy of a log: read in bounded memory, and nothing is made up for what is not there."""

from __future__ import annotations

import os
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from remote_tool.jobs.logs import READ_SIZE, LogFolder
from remote_tool.protocol.sparse_files import KEPT_BEGINNING, give_back
from tests.figures import record_figure

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


@pytest.mark.row(27)
@pytest.mark.slow
def test_a_line_of_a_gigabyte_is_read_piece_by_piece(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    line = b"\x00\xff\rx" * (MIB // 4)
    with (tmp_path / "job.out").open("wb") as file:
        for _ in range(200):
            file.write(line)
    tracemalloc.start()
    try:
        # One line has no last lines but itself.
        assert logs.start_of_last_lines("out", 10) == 0
        read = sum(len(data) for data in logs.read("out", 0))
        highest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read == 200 * MIB
    record_figure("memory for the last lines of a line without end (KiB)", highest // 1024)
    assert highest < 4 * READ_SIZE


@pytest.mark.row(76)
def test_the_last_lines_of_a_sparse_terabyte_come_at_once(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    logs.write("out", 0, b"first\n")
    logs.skip("out", 2**40)
    logs.write("out", 2**40, b"one\ntwo\nthree\n")
    begin = time.monotonic()
    for lines, expected in ((2, b"two\nthree\n"), (50, b"one\ntwo\nthree\n")):
        shown = b"".join(logs.read("out", logs.start_of_last_lines("out", lines)))
        # Zeros up to the end of a block belong to what was written there.
        assert shown.lstrip(b"\0") == expected
    assert len(b"".join(logs.read("out", 0))) < MIB
    assert time.monotonic() - begin < 30


@pytest.mark.row(26)
def test_dropped_output_is_not_shown_as_zeros(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    content = os.urandom(2 * MIB).replace(b"\0", b"x")
    logs.write("out", 0, content)
    logs.keep_within("out", MIB)
    dropped = MIB + MIB // 4 - KEPT_BEGINNING
    start = KEPT_BEGINNING - 100
    shown = b"".join(logs.read("out", start))
    assert shown == content[start:KEPT_BEGINNING] + content[KEPT_BEGINNING + dropped :]
    with (tmp_path / "job.out").open("rb+") as file:
        assert give_back(file.fileno(), MIB) == 0
