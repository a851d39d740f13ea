"""Secrets stay here, and files on the servers stay there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.below import contents_below
from tests.processes import parents, read_of
from tests.promises.conftest import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk


@pytest.mark.row(111)
def test_variables_of_a_job_are_on_no_disk_and_on_no_command_line(desk: Desk, own_home: Path, tmp_path: Path) -> None:
    canary = f"canary-{os.urandom(12).hex()}"
    words = ("--env", f"TOKEN={canary}", "--cmd")
    desk.does("run", *words, 'test "${#TOKEN}" = 31')
    desk.does("job-run", *words, f'test "${{#TOKEN}}" = 31 && touch {tmp_path}/has-it && sleep 1000')
    desk.does("job-run", "--frozen", "--after", "1", *words, "true")
    until((tmp_path / "has-it").exists, "the job has its variable")
    everywhere = (desk.root, desk.servers["first"].folder, own_home)
    assert [path for path, data in contents_below(*everywhere) if canary.encode() in data] == []
    assert [pid for pid in parents() if canary.encode() in read_of(pid, "cmdline")] == []
    ran = desk.tries("job-show", "1", "-vv")
    assert canary not in ran.stdout + ran.stderr
    desk.does("job-kill", "--all", "--yes", "--grace", "0")
    assert canary not in desk.tries("job-run", *words, "false", "--server", "nowhere", "-vv").stderr
    assert [path for path, data in contents_below(*everywhere) if canary.encode() in data] == []


@pytest.mark.row(112)
def test_environment_files_and_keys_are_not_sent_whatever_the_patterns_say(desk: Desk) -> None:
    (desk.root / ".remote" / "exclude.txt").write_text("*.log\n")
    (desk.root / "deploy").mkdir()
    secret = (".env", ".env.local", "deploy/.env", "deploy/id_rsa")
    for name in secret:
        (desk.root / name).write_text("TOKEN=x\n")
    (desk.root / "deploy" / "run.sh").write_text("true\n")
    said = desk.tries("rsync").stderr
    assert (desk.there() / "deploy" / "run.sh").exists()
    for name in secret:
        assert not (desk.there() / name).exists()
        assert name.rpartition("/")[2] in said


@pytest.mark.row(67)
def test_a_sync_removes_and_replaces_only_what_was_sent_and_is_unchanged(desk: Desk) -> None:
    there = desk.there()
    for name in ("plain.txt", "changed.txt", "written.txt"):
        (desk.root / name).write_text("sent\n")
    desk.does("rsync")
    (there / "out").mkdir()
    kept = dict.fromkeys(("changed.txt", "written.txt", "model.pt", "out/log"), "by a job, and longer\n")
    for name, text in kept.items():
        (there / name).write_text(text)
    for name in ("plain.txt", "changed.txt"):
        (desk.root / name).unlink()
    said = desk.tries("rsync").stderr
    assert "kept the server's version, changed or made there: written.txt" in said
    assert not (there / "plain.txt").exists()
    assert {name: (there / name).read_text() for name in kept} == kept
    # Now rsync looks at everything by itself.
    desk.does("rsync", "--checksum")
    assert {name: (there / name).read_text() for name in kept} == kept


@pytest.mark.row(70, 146)
def test_a_file_that_changed_on_both_sides_is_kept_and_no_job_starts(desk: Desk) -> None:
    (desk.root / "settings.txt").write_text("sent\n")
    desk.does("rsync")
    (desk.there() / "settings.txt").write_text("by a job, and longer\n")
    (desk.root / "settings.txt").write_text("edited here\n")
    for words in (("rsync",), ("job-run", "--cmd", "true")):
        assert "settings.txt" in desk.refuses(*words, status=1)
        assert (desk.there() / "settings.txt").read_text() == "by a job, and longer\n"
    assert desk.jobs() == []
    desk.does("rsync", "--overwrite")
    assert (desk.there() / "settings.txt").read_text() == "edited here\n"


@pytest.mark.row(302)
def test_a_rerun_asks_for_the_variables_that_are_on_no_disk(desk: Desk) -> None:
    desk.does("job-run", "--env", "TOKEN", "abcdefgh", "--env", "DOOR", "ijklmnop", "--follow", "--cmd", "true")
    desk.does("job-run", "--follow", "--cmd", "true")
    said = desk.refuses("job-rerun", "1", "2", status=2)
    assert "TOKEN" in said
    assert "DOOR" in said
    assert [job["key"] for job in desk.jobs()] == [1, 2]
    desk.does("job-rerun", "1", "--env", "TOKEN", "abcdefgh", "--env", "DOOR", "ijklmnop")
    assert desk.waits_for(3, "succeeded")["command"] == "true"
    # This machine's HOME is not that of the server.
    desk.does("job-run", "--env", "HOME", "/nowhere", "--follow", "--cmd", "true")
    assert "HOME" in desk.refuses("job-rerun", "4", status=2)
