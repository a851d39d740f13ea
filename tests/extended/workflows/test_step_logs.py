"""The output of steps is kept whole, and without passwords."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool.paths import LocalPaths
from remote_tool.workflows.step_logs import LONGEST_LINE, LONGEST_TAIL, MOST_OF_STEP, StepLog, remove_old_logs

if TYPE_CHECKING:
    from pathlib import Path


def test_every_byte_is_kept_in_a_file_of_the_users_own(tmp_path: Path) -> None:
    with StepLog(LocalPaths(tmp_path), "first", "packages") as log:
        shown = log.write(b"one\ntw") + log.write(b"o\n\xff\n") + log.write(b"end") + log.end()
    assert shown == log.path.read_bytes() == b"one\ntwo\n\xff\nend"
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert log.path.name.endswith("-first-packages.log")


def test_lines_of_the_two_streams_are_not_mixed(tmp_path: Path) -> None:
    with StepLog(LocalPaths(tmp_path), "first", "packages") as log:
        assert log.write(b"out", 1) + log.write(b"err\n", 2) + log.write(b"put\n", 1) == b"err\noutput\n"


def test_a_password_in_a_url_is_hidden_however_it_comes(tmp_path: Path) -> None:
    with StepLog(LocalPaths(tmp_path), "first", "packages") as log:
        for byte in b"Looking in https://me:s3cret@host/simple, https://t0ken@host/x and mail me@host\n":
            log.write(bytes([byte]))
    assert log.path.read_bytes() == b"Looking in https://***@host/simple, https://***@host/x and mail me@host\n"
    assert b"s3cret" not in log.tail


def test_progress_bars_and_endless_lines_are_passed_on(tmp_path: Path) -> None:
    with StepLog(LocalPaths(tmp_path), "first", "packages") as log:
        assert log.write(b"10%\r20") == b"10%\r"
        assert len(log.write(b"x" * (LONGEST_LINE + 1))) == LONGEST_LINE + 3


def test_the_tail_is_bounded(tmp_path: Path) -> None:
    with StepLog(LocalPaths(tmp_path), "first", "packages") as log:
        for number in range(20_000):
            log.write(f"line {number}\n".encode())
        assert len(log.tail) < 2 * LONGEST_TAIL
        assert log.last_lines[-1] == "line 19999"


@pytest.mark.row(177)
def test_logs_of_steps_are_bounded_for_each_server_and_step(tmp_path: Path) -> None:
    paths = LocalPaths(tmp_path)
    for server in ("first", "second"):
        for _ in range(MOST_OF_STEP + 3):
            with StepLog(paths, server, "rsync") as log:
                log.write(b"sent\n")
    (paths.logs / "first.known-copy").touch()
    newest = log.path
    remove_old_logs(paths)
    names = [path.name for path in paths.logs.iterdir()]
    assert sum(name.endswith("-first-rsync.log") for name in names) == MOST_OF_STEP
    assert sum(name.endswith("-second-rsync.log") for name in names) == MOST_OF_STEP
    assert newest.exists()
    assert "first.known-copy" in names
