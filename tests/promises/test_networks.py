"""Servers that share a home, that have rebooted, and that go away."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running
from tests.promises.conftest import HeldRequest, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.promises.conftest import Desk


def begin(desk: Desk) -> int:
    """Start a job; return the pid of its command."""
    file = desk.there() / "pid"
    desk.does("job-run", "--no-sync", "--cmd", "echo $$ > pid; exec sleep 1000")
    until(lambda: file.exists() and file.read_text(), "the job runs")
    return int(file.read_text())


@contextmanager
def recorded_at(desk: Desk, **place: str) -> Iterator[None]:
    """Have the record of the only job say that it was started at another place."""
    (record,) = (desk.there() / ".jobs").glob("*/started.json")
    text = record.read_text()
    started = json.loads(text)
    assert started["place"].keys() >= place.keys()
    started["place"].update(place)
    record.write_text(json.dumps(started))
    yield
    record.write_text(text)


@pytest.mark.row(30)
@pytest.mark.parametrize("also", [{}, {"machine_id": "another"}], ids=["cloned", "other"])
def test_a_job_of_another_machine_with_the_same_home_is_neither_judged_nor_stopped(
    desk: Desk, also: dict[str, str]
) -> None:
    pid = begin(desk)
    with recorded_at(desk, boot_id="another", hostname="another", **also):
        job = desk.job(1)
        reason = "last seen running; it runs on another machine or container: another"
        assert (job["state"], job["reason"]) == ("unreachable", reason)
        for wish in (("--signal", "SIGKILL"), ("--grace", "0")):
            said = desk.refuses("job-kill", "1", "--yes", *wish)
            assert "it cannot be stopped from here: it runs on another machine or container: another" in said
        assert is_running(pid)
        assert desk.job(1)["state"] == "unreachable"
    desk.does("job-kill", "1", "--yes")
    assert not is_running(pid)


@pytest.mark.row(4, 5)
def test_a_job_of_before_a_reboot_is_lost_and_whoever_has_its_pid_now_is_not_signalled(desk: Desk) -> None:
    pid = begin(desk)
    with recorded_at(desk, boot_id="00000000-0000-0000-0000-000000000000"):
        job = desk.job(1)
        assert (job["state"], job["reason"]) == ("lost", "the server rebooted")
        desk.tries("job-kill", "1", "--yes", "--signal", "SIGKILL")
        assert is_running(pid)
    assert desk.job(1)["state"] == "running"
    desk.does("job-kill", "1", "--yes")


@pytest.mark.row(20)
def test_the_end_of_a_job_leaves_its_neighbour_alone(desk: Desk) -> None:
    for number in (1, 2):
        desk.does("job-run", "--no-sync", "--cmd", f"exec sleep 100{number}")
    desk.does("job-kill", "1", "--yes")
    assert desk.job(2)["state"] == "running"
    desk.does("job-kill", "2", "--yes")
    assert desk.job(2)["reason"] == desk.job(1)["reason"]


@pytest.mark.row(9)
@pytest.mark.slow
def test_a_job_whose_server_went_away_before_its_answer_came_is_not_called_failed(
    desk_alone: Desk, tmp_path: Path
) -> None:
    desk, ran = desk_alone, tmp_path / "ran"
    held = HeldRequest(desk, f"""grep -qs '"starting"' {desk.root}/.remote/jobs/*/job.yaml""")
    with desk.runs_meanwhile("job-run", "--no-sync", "--cmd", f"echo ran >> {ran}; sleep 1000") as program:
        held.wait()
        desk.servers["first"].stop()
        said, _ = program.communicate()
    assert program.returncode != 0
    assert "The answer of first to 'start' was lost, so it may have been done" in said
    desk.servers["first"].start()
    held.let_go()
    until(ran.exists, "the job runs")
    assert desk.waits_for(1, "running", "failed")["state"] == "running"
    desk.does("job-kill", "1", "--yes")
    assert ran.read_text() == "ran\n"


@pytest.mark.row(36)
@pytest.mark.slow
def test_a_server_that_falls_silent_in_the_middle_of_a_command_is_an_error(desk: Desk, own_home: Path) -> None:
    (own_home / ".ssh").mkdir(mode=0o700)
    (own_home / ".ssh" / "config").write_text("Host *\n  ServerAliveInterval 1\n  ServerAliveCountMax 1\n")
    desk.configure(keep_connections=0)
    with desk.runs_meanwhile("run", "--cmd", "echo begun; sleep 1000") as running:
        assert running.stdout is not None
        assert any("begun" in line for line in iter(running.stdout.readline, ""))
        sessions = desk.servers["first"].session_pids()
        try:
            signal_all(sessions, signal.SIGSTOP)
            said, _ = running.communicate(timeout=60)
        finally:
            signal_all(sessions, signal.SIGKILL)
    assert running.returncode == 4, said
    assert "the connection was lost" in said


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
