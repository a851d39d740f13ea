"""A start that its server does not know is given up by the server, once and for all."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.processes import open_files, processes_of
from tests.project import make_project
from tests.promises.conftest import Desk, HeldRequest, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

LATER = 11 * 60
# The first request to start a job is carried out twenty times at once, as if it had been sent again and again.
MANY = """\
#!/bin/bash
if grep -qs '"starting"' {records} && mkdir {answers} 2>/dev/null; then
    read -r request
    for number in {{1..20}}; do
        {python} "$@" <<<"$request" >{answers}/$number &
    done
    wait
    exec cat {answers}/1
fi
exec {python} "$@"
"""


@pytest.fixture
def fresh(make_server: MakeServer, tmp_path: Path) -> Desk:
    """A project that is prepared on a server of its own."""
    server = make_server()
    desk = Desk(make_project(tmp_path / "project", [server], name="project"), {server.name: server})
    desk.does("prepare")
    return desk


def records(desk: Desk) -> list[Path]:
    return [*(desk.root / ".remote" / "jobs").glob("*/job.yaml")]


def cut_a_start(desk: Desk, *words: str) -> tuple[Path, HeldRequest]:
    """Start a job whose request is held up on the server, and kill the program; return the job's record."""
    held = HeldRequest(desk, f"""grep -qs '"starting"' {desk.root}/.remote/jobs/*/job.yaml""")
    known = {*records(desk)}
    with desk.runs_meanwhile("job-run", *words) as starting:
        held.wait()
        os.kill(starting.pid, signal.SIGKILL)
    (record,) = {*records(desk)} - known
    return record, held


def age(record: Path, seconds: float) -> None:
    text = record.read_text()
    record.write_text(
        re.sub(r"(?<=^created_at: )[0-9.]+", lambda at: str(float(at[0]) - seconds), text, flags=re.MULTILINE)
    )


@pytest.mark.row(134)
def test_a_start_that_the_server_does_not_know_is_failed_and_cannot_come_later(fresh: Desk, tmp_path: Path) -> None:
    fresh.does("job-run", "--cmd", "true", "--follow")
    record, held = cut_a_start(fresh, "--tag", "mine", "--cmd", f"echo ran >> {tmp_path}/ran")
    assert fresh.job(2)["state"] == "starting"
    age(record, LATER)
    listed = fresh.tries("job-list", "--stopped")
    assert "job 2: its start never reached the server; remote-tool job-rerun 2" in " ".join(listed.stderr.split())
    job = fresh.job(2)
    assert (job["state"], job["exit_code"], job["tags"]) == ("failed", None, ["mine"])
    assert job["reason"] == "its start never reached the server"
    held.let_go()
    fresh.does("job-run", "--cmd", "true", "--follow")
    assert fresh.job(2)["state"] == "failed"
    fresh.does("job-rerun", "2", "--follow")
    assert (tmp_path / "ran").read_text() == "ran\n"


@pytest.mark.row(134)
def test_a_start_that_comes_after_its_end_was_cleaned_away_runs_nothing(fresh: Desk, tmp_path: Path) -> None:
    record, held = cut_a_start(fresh, "--cmd", f"echo ran >> {tmp_path}/ran")
    age(record, LATER)
    assert fresh.job(1)["state"] == "failed"
    fresh.does("clean", "--yes")
    jobs = fresh.there() / ".jobs"
    assert [each.name for each in jobs.iterdir() if not each.name.startswith(".")] == []
    held.let_go()
    fresh.does("job-run", "--cmd", "true", "--follow")
    assert len([each.name for each in jobs.iterdir() if not each.name.startswith(".")]) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.row(134)
def test_a_start_that_has_arrived_is_not_given_up_however_long_it_took(fresh: Desk) -> None:
    record, held = cut_a_start(fresh, "--cmd", "sleep 600")
    age(record, LATER)
    held.let_go()
    jobs = fresh.there() / ".jobs"
    until((jobs / record.parent.name / "started.json").exists, "the start goes on", 60)
    assert fresh.job(1)["state"] == "running"
    fresh.does("job-kill", "1")


@pytest.mark.row(13)
def test_a_job_holds_nothing_of_the_connection_that_started_it(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "echo $$ > pid; exec sleep 1000")
    until(lambda: (desk.there() / "pid").exists() and (desk.there() / "pid").read_text(), "the job runs")
    files = open_files(int((desk.there() / "pid").read_text()))
    assert sorted(files) == [0, 1, 2]
    assert [name for name in files.values() if not name.startswith(("/dev/null", str(desk.there())))] == []
    desk.does("job-kill", "1", "--yes")


@pytest.mark.row(10)
def test_of_many_starts_of_one_job_at_once_exactly_one_runs(desk: Desk, tmp_path: Path) -> None:
    answers, program = tmp_path / "answers", desk.there() / ".remote-scripts" / "python"
    text = MANY.format(records=f"{desk.root}/.remote/jobs/*/job.yaml", answers=answers, python=program.resolve())
    program.unlink()
    program.write_text(text)
    program.chmod(0o700)
    runs = f"echo ran >> {tmp_path}/ran; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    desk.does("job-run", "--no-sync", "--cmd", runs)
    assert [answer.stat().st_size > 0 for answer in answers.iterdir()] == [True] * 20
    job = str(desk.job(1)["id"])
    assert [folder.name for folder in (desk.there() / ".jobs").glob("[!.]*")] == [job]
    (tmp_path / "go").touch()
    desk.waits_for(1, "succeeded")
    until(lambda: not processes_of(job), "nothing of it is left")
    assert (tmp_path / "ran").read_text() == "ran\n"
