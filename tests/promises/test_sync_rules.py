"""What a sync does where the server has another version than here."""

from __future__ import annotations

import os
import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import Desk

if TYPE_CHECKING:
    from pathlib import Path

BOTH = "changed both here and on the server since the last sync: results.csv"


@pytest.fixture
def there(desk: Desk) -> Path:
    """A file that was sent, and that a job has changed since."""
    (desk.root / "results.csv").write_text("step,loss\n")
    (desk.root / "train.py").write_text("rate = 0.1\n")
    desk.does("rsync")
    file = desk.there() / "results.csv"
    file.write_text("a job's\n")
    return file


@pytest.mark.row(146)
def test_what_a_job_has_changed_is_kept_and_named_also_with_checksum(desk: Desk, there: Path) -> None:
    said = desk.tries("rsync", "--checksum")
    assert (said.returncode, there.read_text()) == (0, "a job's\n")
    assert "results.csv" in said.stderr
    (desk.root / "train.py").write_text("rate = 0.2\n")
    for words in ((), ("--checksum",)):
        desk.does("rsync", *words)
        assert there.read_text() == "a job's\n"
    assert (desk.there() / "train.py").read_text() == "rate = 0.2\n"


@pytest.mark.row(146)
def test_what_was_changed_on_both_sides_is_refused_the_rest_is_sent_and_no_job_starts_on_it(
    desk: Desk, there: Path
) -> None:
    (desk.root / "results.csv").write_text("mine, and longer\n")
    (desk.root / "train.py").write_text("rate = 0.2\n")
    assert BOTH in " ".join(desk.refuses("rsync", status=1).split())
    assert (desk.there() / "train.py").read_text() == "rate = 0.2\n"
    for words in ((), ("--no-sync",)):
        desk.refuses("job-run", *words, "--cmd", "touch began")
    assert not (desk.there() / "began").exists()
    assert there.read_text() == "a job's\n"
    there.unlink()
    desk.does("job-run", "--follow", "--cmd", "touch began")
    assert there.read_text() == "mine, and longer\n"


@pytest.mark.row(146)
def test_a_second_laptop_replaces_what_the_first_sent_and_keeps_what_the_server_wrote(
    desk: Desk, there: Path, tmp_path: Path
) -> None:
    other = Desk(shutil.copytree(desk.root, tmp_path / "copied"), desk.servers)
    (desk.root / "train.py").write_text("rate = 0.2, of the first\n")
    desk.does("rsync")
    (other.root / "train.py").write_text("rate = 0.3, of the other one\n")
    other.does("rsync")
    assert (desk.there() / "train.py").read_text() == "rate = 0.3, of the other one\n"
    assert there.read_text() == "a job's\n"
    desk.does("rsync")
    assert (desk.there() / "train.py").read_text() == "rate = 0.2, of the first\n"
    (other.root / "results.csv").write_text("something else\n")
    assert "results.csv" in other.refuses("rsync", status=1)
    assert there.read_text() == "a job's\n"


@pytest.mark.row(146)
def test_what_a_job_has_changed_is_not_replaced_by_what_another_server_hands_on(desk_of_two: Desk) -> None:
    desk = desk_of_two
    (desk.root / "results.csv").write_text("step,loss\n")
    desk.does("rsync")
    there = desk.there("second") / "results.csv"
    there.write_text("a job's, and longer\n")
    for _ in range(2):
        (desk.root / "large.bin").write_bytes(os.urandom(300_000))
        desk.does("rsync", "--relay")
        assert (desk.there("second") / "large.bin").read_bytes() == (desk.root / "large.bin").read_bytes()
        assert there.read_text() == "a job's, and longer\n"
    assert (desk.there("first") / "results.csv").read_text() == "step,loss\n"


@pytest.mark.row(146)
def test_a_file_that_changes_while_it_is_sent_is_no_conflict_later(desk: Desk) -> None:
    here, there, rsync = desk.root / "run.log", desk.there() / "run.log", desk.servers["first"].programs / "rsync"
    here.write_text("1\n")
    rsync.parent.mkdir(exist_ok=True)
    # The project has been listed by now, and the file is not yet read.
    rsync.write_text(f'#!/bin/sh\nprintf "1\\n2\\n" > {here}\n{shutil.which("rsync")} "$@"\n')
    rsync.chmod(0o755)
    try:
        desk.does("rsync")
    finally:
        # The server is shared.
        rsync.unlink()
    assert there.read_text() == "1\n2\n"
    here.write_text("1\n2\n3\n")
    desk.does("rsync")
    assert there.read_text() == "1\n2\n3\n"


@pytest.mark.row(247)
def test_a_project_that_cannot_be_listed_is_one_error_before_any_login(desk: Desk) -> None:
    (desk.root / ".remote" / "exclude.txt").unlink(missing_ok=True)
    (desk.root / ".remote" / "exclude.txt").mkdir()
    # It takes connections and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = {"hostname": "127.0.0.1", "port": silent.getsockname()[1], "username": "me"}
        desk.configure(servers={"first": server, "second": server | {"username": "you"}}, keep_connections=0)
        assert desk.refuses("rsync").count("exclude.txt cannot be read: Is a directory") == 1
