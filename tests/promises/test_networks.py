"""Servers that share a home, and servers that have rebooted."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running
from tests.promises.conftest import until

if TYPE_CHECKING:
    from collections.abc import Iterator

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
def test_a_job_of_another_machine_with_the_same_home_is_neither_judged_nor_stopped(desk: Desk) -> None:
    pid = begin(desk)
    with recorded_at(desk, boot_id="another", machine_id="another", hostname="another"):
        job = desk.job(1)
        reason = "last seen running; it runs on another machine or container: another"
        assert (job["state"], job["reason"]) == ("unreachable", reason)
        said = desk.refuses("job-kill", "1", "--yes", "--signal", "SIGKILL")
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


@pytest.mark.row(22)
def test_the_recorded_end_of_a_job_stays_whatever_its_server_says_later(desk: Desk) -> None:
    desk.does("job-run", "--no-sync", "--follow", "--cmd", "true")
    (record,) = (desk.there() / ".jobs").glob("*/ended.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"exit_code": 9}))
    desk.does("job-rsync")
    assert (desk.job(1)["state"], desk.job(1)["exit_code"]) == ("succeeded", 0)


@pytest.mark.row(20)
def test_the_end_of_a_job_leaves_its_neighbour_alone(desk: Desk) -> None:
    for number in (1, 2):
        desk.does("job-run", "--no-sync", "--cmd", f"exec sleep 100{number}")
    desk.does("job-kill", "1", "--yes")
    assert desk.job(2)["state"] == "running"
    desk.does("job-kill", "2", "--yes")
    assert desk.job(2)["reason"] == desk.job(1)["reason"]
