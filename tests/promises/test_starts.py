"""A start that its server does not know is given up by the server, once and for all."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.project import make_project
from tests.promises.conftest import Desk, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

# The first control program after a job was recorded hangs with its request, as on a machine whose disk does.
HOLD = """\
#!/bin/bash
if grep -qs '"starting"' {records}/*/job.yaml && mkdir "$HOME/held" 2>/dev/null; then
    until read -t 0; do sleep 0.05; done
    touch "$HOME/arrived"
    while [ ! -e "$HOME/go" ]; do sleep 0.05; done
    touch "$HOME/gone-on"
fi
exec {python} "$@"
"""
LATER = 11 * 60


@pytest.fixture
def fresh(make_server: MakeServer, tmp_path: Path) -> Desk:
    """A project that is prepared on a server of its own."""
    server = make_server()
    desk = Desk(make_project(tmp_path / "project", [server], name="project"), {server.name: server})
    desk.does("prepare")
    return desk


def records(desk: Desk) -> list[Path]:
    return [*(desk.root / ".remote" / "jobs").glob("*/job.yaml")]


def cut_a_start(desk: Desk, *words: str) -> Path:
    """Start a job whose request is held up on the server, and kill the program; return the job's record."""
    home = desk.servers["first"].home
    program = desk.there() / ".remote-scripts" / "python"
    text = HOLD.format(records=desk.root / ".remote" / "jobs", python=program.resolve())
    program.unlink()
    program.write_text(text)
    program.chmod(0o700)
    known = {*records(desk)}
    with desk.runs_meanwhile("job-run", *words) as starting:
        until((home / "arrived").exists, "the start is on its way", 60)
        os.kill(starting.pid, signal.SIGKILL)
    (record,) = {*records(desk)} - known
    return record


def age(record: Path, seconds: float) -> None:
    text = record.read_text()
    record.write_text(
        re.sub(r"(?<=^created_at: )[0-9.]+", lambda at: str(float(at[0]) - seconds), text, flags=re.MULTILINE)
    )


def test_a_start_that_the_server_does_not_know_is_failed_and_cannot_come_later(fresh: Desk, tmp_path: Path) -> None:
    fresh.does("job-run", "--cmd", "true", "--follow")
    record = cut_a_start(fresh, "--tag", "mine", "--cmd", f"echo ran >> {tmp_path}/ran")
    home = fresh.servers["first"].home
    assert fresh.job(2)["state"] == "starting"
    age(record, LATER)
    listed = fresh.tries("job-list", "--stopped")
    assert "job 2: its start never reached the server; remote-tool job-rerun 2" in " ".join(listed.stderr.split())
    job = fresh.job(2)
    assert (job["state"], job["exit_code"], job["tags"]) == ("failed", None, ["mine"])
    assert job["reason"] == "its start never reached the server"
    (home / "go").touch()
    until((home / "gone-on").exists, "the start goes on", 60)
    fresh.does("job-run", "--cmd", "true", "--follow")
    assert fresh.job(2)["state"] == "failed"
    fresh.does("job-rerun", "2", "--follow")
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_a_start_that_comes_after_its_end_was_cleaned_away_runs_nothing(fresh: Desk, tmp_path: Path) -> None:
    record = cut_a_start(fresh, "--cmd", f"echo ran >> {tmp_path}/ran")
    home = fresh.servers["first"].home
    age(record, LATER)
    assert fresh.job(1)["state"] == "failed"
    fresh.does("clean", "--yes")
    jobs = fresh.there() / ".jobs"
    assert [each.name for each in jobs.iterdir() if not each.name.startswith(".")] == []
    (home / "go").touch()
    until((home / "gone-on").exists, "the start goes on", 60)
    fresh.does("job-run", "--cmd", "true", "--follow")
    assert len([each.name for each in jobs.iterdir() if not each.name.startswith(".")]) == 1
    assert not (tmp_path / "ran").exists()


def test_a_start_that_has_arrived_is_not_given_up_however_long_it_took(fresh: Desk) -> None:
    record = cut_a_start(fresh, "--cmd", "sleep 600")
    age(record, LATER)
    home = fresh.servers["first"].home
    (home / "go").touch()
    jobs = fresh.there() / ".jobs"
    until((jobs / record.parent.name / "started.json").exists, "the start goes on", 60)
    assert fresh.job(1)["state"] == "running"
    fresh.does("job-kill", "1")
