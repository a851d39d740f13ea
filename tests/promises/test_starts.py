"""A start that its server does not know is given up by the server, once and for all."""

from __future__ import annotations

import os
import re
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.processes import open_files, parents, processes_of
from tests.project import make_project
from tests.promises.conftest import Desk, HeldRequest, before_each_request, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

LATER = 11 * 60
# The first request to start a job is carried out twenty times at once, as if it had been sent again and again.
MANY = """\
if grep -qs '"starting"' {records} && mkdir {answers} 2>/dev/null; then
    read -r request
    for number in {{1..20}}; do
        "$python" "$@" <<<"$request" >{answers}/$number &
    done
    wait
    exec cat {answers}/1
fi
"""
# Something happens, once, to the first request to start a job.
ONCE = """\
if record=$(grep -ls '"starting"' {records}) && mkdir {once} 2>/dev/null; then
    job=$(basename "$(dirname "$record")")
    {does}
fi
"""
# Its answer is lost with its connection.
CUT = "kill -KILL $PPID; exit"


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


def before_a_start(desk: Desk, does: str) -> None:
    """Have a shell do something before it answers the next request to start a job, which it knows as $job."""
    records = f"{desk.root}/.remote/jobs/*/job.yaml"
    before_each_request(
        desk, ONCE.format(records=records, once=desk.there("first").with_name(f"once-{desk.root.name}"), does=does)
    )


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
    pid = int((desk.there() / "pid").read_text())
    assert sorted(open_files(pid)) == [0, 1, 2]
    supervisor = parents()[pid]
    for each in (pid, supervisor):
        names = set(open_files(each).values())
        assert [name for name in names if not name.startswith(("/dev/null", str(desk.there())))] == []
    assert os.getsid(supervisor) == supervisor
    desk.does("job-kill", "1", "--yes")


@pytest.mark.row(10)
def test_of_many_starts_of_one_job_at_once_exactly_one_runs(desk: Desk, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    before_each_request(desk, MANY.format(records=f"{desk.root}/.remote/jobs/*/job.yaml", answers=answers))
    runs = f"echo ran >> {tmp_path}/ran; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    desk.does("job-run", "--no-sync", "--cmd", runs)
    assert [answer.stat().st_size > 0 for answer in answers.iterdir()] == [True] * 20
    job = str(desk.job(1)["id"])
    assert [folder.name for folder in (desk.there() / ".jobs").glob("[!.]*")] == [job]
    (tmp_path / "go").touch()
    desk.waits_for(1, "succeeded")
    until(lambda: not processes_of(job), "nothing of it is left")
    assert (tmp_path / "ran").read_text() == "ran\n"


@pytest.mark.row(153)
@pytest.mark.parametrize(
    "fault",
    [
        '"$python" "$@" >/dev/null; exit 1',
        'exec strace -o /dev/null -e trace=openat -e inject=openat:error=EIO -P "$job" "$python" "$@"',
    ],
    ids=["that ends without an answer", "whose disk does not answer"],
)
def test_a_start_that_is_answered_unclearly_is_asked_for_by_its_id(desk: Desk, fault: str) -> None:
    if "strace" in fault and shutil.which("strace") is None:
        pytest.skip("strace is missing")
    before_a_start(desk, fault)
    desk.does("job-run", "--no-sync", "--cmd", "sleep 1000")
    assert desk.job(1)["state"] == "running"
    desk.does("job-kill", "1", "--grace", "0")


@pytest.mark.row(153)
def test_a_start_that_the_server_could_not_begin_has_failed_and_says_why(desk: Desk) -> None:
    jobs = desk.there() / ".jobs"
    before_a_start(desk, "ulimit -f 0")
    said = desk.refuses("job-run", "--no-sync", "--cmd", "true", status=1)
    job = desk.job(1)
    assert f"{jobs}/{job['id']}: " in said
    assert (job["state"], job["exit_code"]) == ("failed", None)
    assert job["reason"].startswith(f"not started: {jobs}/{job['id']}: ")


@pytest.mark.row(153)
@pytest.mark.parametrize(
    "fault",
    [
        f'touch {{jobs}}/"$job"; {CUT}',
        f"rm {{scripts}}/activation.json; {CUT}",
        f"rm {{scripts}}/python; {CUT}",
    ],
    ids=["a folder that cannot be made", "no environment", "nothing"],
)
def test_a_start_whose_link_was_lost_is_not_called_failed_when_it_cannot_begin_again(desk: Desk, fault: str) -> None:
    jobs, scripts = desk.there() / ".jobs", desk.there() / ".remote-scripts"
    before_a_start(desk, f"mkdir -p -m 700 {jobs}; {fault.format(jobs=jobs, scripts=scripts)}")
    said = desk.refuses("job-run", "--no-sync", "--cmd", "true")
    assert "remote-tool job-list" in said
    (record,) = records(desk)
    assert "starting" in record.read_text()


@pytest.mark.row(153)
def test_more_jobs_than_open_files_start_at_once_and_are_stopped_at_once(desk: Desk) -> None:
    before_each_request(desk, "ulimit -Sn 24; ulimit -Hn 40")
    sweep = ("helper-sweep", "--no-sync", "--grid", "n=1..30", "--per-server", "30")
    desk.does(*sweep, "--cmd", f"ulimit -Sn > {desk.root}/limit-{{n}}; exec sleep 1000")
    limits = [desk.root / f"limit-{number}" for number in range(1, 31)]
    until(lambda: all(each.exists() and each.read_text() for each in limits), "all run")
    assert {each.read_text() for each in limits} == {"24\n"}
    desk.does("job-kill", "--all", "--yes", "--grace", "0")
    assert {job["state"] for job in desk.jobs()} == {"killed"}
