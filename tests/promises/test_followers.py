"""What commands show that follow a job, while others bring its output home."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import PATIENCE, before_each_request, until
from tests.promises.kinds import works

if TYPE_CHECKING:
    from tests.promises.conftest import Desk


@pytest.mark.row(150)
def test_a_follower_shows_once_what_another_command_brings_home_while_its_connection_is_broken(desk: Desk) -> None:
    waits = "until [ -e {0} ]; do sleep 0.05; done; echo {0}"
    desk.does("job-run", "--no-sync", "--cmd", f"echo one; {waits.format('two')}; {waits.format('three')}")
    (log,) = desk.there().glob(".jobs/*/job.out")
    with desk.runs_meanwhile("job-tail", "1") as tail:
        assert tail.stdout is not None
        assert "one\n" in iter(tail.stdout.readline, "")
        tail.send_signal(signal.SIGSTOP)
        desk.servers["first"].drop_connections()
        (desk.there() / "two").touch()
        until(lambda: b"two\n" in log.read_bytes(), "the job goes on")
        desk.does("job-rsync")
        tail.send_signal(signal.SIGCONT)
        (desk.there() / "three").touch()
        said, _ = tail.communicate(timeout=PATIENCE)
    assert [said.count(f"{word}\n") for word in ("one", "two", "three")] == [0, 1, 1], said


@pytest.mark.row(150)
def test_what_a_job_writes_while_its_output_comes_home_comes_with_the_next_command(desk: Desk) -> None:
    count = 40_000_000
    waits = "until [ -e go ]; do sleep 0.05; done; echo end"
    desk.does("job-run", "--no-sync", "--cmd", f"head -c {count} /dev/zero; {waits}")
    (log,) = desk.there().glob(".jobs/*/job.out")
    until(lambda: log.stat().st_size == count, "the job has written much")
    here = desk.root / ".remote" / "jobs" / log.parent.name / "job.out"
    with desk.runs_meanwhile("job-rsync") as program:
        while not here.exists():
            assert program.poll() is None
            time.sleep(0.005)
        program.send_signal(signal.SIGSTOP)
        (desk.there() / "go").touch()
        until((log.parent / "ended.json").exists, "the job ends")
        program.send_signal(signal.SIGCONT)
        program.communicate(timeout=PATIENCE)
    desk.does("job-rsync")
    assert here.stat().st_size == count + len("end\n")
    assert here.read_bytes()[count:] == b"end\n"


@pytest.mark.row(151)
def test_a_job_whose_output_cannot_be_read_for_a_moment_holds_up_no_other_and_loses_nothing(desk: Desk) -> None:
    if not works("strace -qq -o /dev/null true"):
        pytest.skip("a disk with errors needs strace")
    for word in ("one", "other"):
        desk.does("job-run", "--no-sync", "--cmd", f"echo {word}")
    here, there = desk.root / ".remote" / "jobs", desk.there() / ".jobs"
    until(lambda: len([*there.glob("*/ended.json")]) == 2, "both have ended")
    one, other = (f"{job['id']}/job.out" for job in sorted(desk.jobs(), key=lambda job: job["key"]))
    fails = f"-e trace=pread64 -e inject=pread64:error=EIO:when=1..2 -P '{there / one}'"
    before_each_request(desk, f'exec strace -qq -o /dev/null {fails} "$python" "$@"')
    told = desk.tries("job-rsync")
    assert told.returncode == 0, told.stderr
    assert told.stderr.count("job 1 cannot be read on the server: Input/output error; trying again") == 1
    assert [(here / name).read_text() for name in (one, other)] == ["one\n", "other\n"]
