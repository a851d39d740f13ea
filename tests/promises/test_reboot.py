"""A server reboots while jobs wait there."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.promises.conftest import HeldRequest, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk


def reboot(desk: Desk, server: str = "first") -> None:
    """End all jobs of the project at once, and let their records be of an earlier boot."""
    desk.end_all(server)
    for path in [each for each in (desk.there(server) / ".jobs").iterdir() if (each / "spec.json").exists()]:
        for name in ("spec.json", "started.json"):
            with suppress(FileNotFoundError):
                record: dict[str, Any] = json.loads((path / name).read_text())
                record["place"]["boot_id"] = "00000000-0000-0000-0000-000000000000"
                (path / name).write_text(json.dumps(record))


def keys(desk: Desk, state: str) -> list[int]:
    return sorted(job["key"] for job in desk.jobs("--state", state))


def test_what_waited_when_its_server_rebooted_waits_again_in_its_order(desk: Desk, tmp_path: Path) -> None:
    order = f"echo {{n}} >> {tmp_path}/order; test {{n}} != 0 || sleep 600"
    desk.does("helper-sweep", "--cmd", order, "--grid", "n=0", "--per-server", "1")
    until(lambda: keys(desk, "running") == [1], "the first job runs")
    name = str(desk.jobs("--state", "running")[0]["tags"][0])
    desk.does("helper-sweep", "--resume", name, "--grid", "n=1..3")
    desk.does("job-run", "--after-any", "4", "--cmd", f"echo after >> {tmp_path}/order")
    desk.does("job-run", "--after-any", "5", "--cmd", f"echo then >> {tmp_path}/order")
    desk.does("job-run", "--after-any", "1", "--cmd", f"echo $SECRET >> {tmp_path}/order", "--env", "SECRET", "x")
    until(lambda: keys(desk, "queued") == [2, 3, 4, 5, 6, 7], "six jobs wait")
    reboot(desk)
    listed = desk.tries("job-list")
    said = " ".join(listed.stderr.split())
    assert "first: jobs 2, 3, 4, 5, 6 waited when it rebooted; they wait again, as jobs 8, 9, 10, 11, 12" in said
    problem = "job 7 waited when it rebooted, and the values of SECRET are on no disk"
    assert f"{problem}: remote-tool job-requeue 7 --env SECRET VALUE" in said
    until(lambda: set(range(8, 13)) <= {*keys(desk, "succeeded")}, "the end of all")
    assert (tmp_path / "order").read_text().split() == ["0", "1", "2", "3", "after", "then"]
    # Once, whoever looks again.
    assert "rebooted;" not in desk.tries("job-list").stderr
    desk.does("job-requeue", "7", "--env", "SECRET", "y")
    until(lambda: 13 in keys(desk, "succeeded"), "the end of the last")
    assert len(desk.jobs("--stopped")) == 13


@pytest.mark.parametrize("when", ["before it is recorded", "when it is requested"])
def test_a_program_that_is_killed_as_it_puts_a_job_back_leaves_that_to_the_next(
    desk: Desk, tmp_path: Path, when: str
) -> None:
    desk.does("job-run", "--cmd", "sleep 600")
    desk.does("job-run", "--after-any", "1", "--cmd", f"echo ran >> {tmp_path}/ran")
    until(lambda: keys(desk, "queued") == [2], "a job waits")
    reboot(desk)
    second_request = f"! mkdir {desk.there()}/asked 2>/dev/null"
    is_recorded = f"""grep -qs '"starting"' {desk.root}/.remote/jobs/*/job.yaml"""
    held = HeldRequest(desk, second_request if when == "before it is recorded" else is_recorded)
    with desk.runs_meanwhile("job-list") as listing:
        held.wait()
        os.kill(listing.pid, signal.SIGKILL)
    desk.does("job-list")
    until(lambda: keys(desk, "succeeded") == [3], "it was put back")
    held.let_go()
    desk.does("job-list")
    assert [job["state"] for job in desk.jobs("--stopped")] == ["lost", "lost", "succeeded"]
    assert (tmp_path / "ran").read_text() == "ran\n"


@pytest.mark.parametrize("words", [["job-kill", "2", "--yes"], ["job-kill", "--tag", "of-two", "--yes"]])
def test_what_is_being_stopped_is_not_put_back(desk: Desk, words: list[str]) -> None:
    desk.does("job-run", "--cmd", "sleep 600")
    for tag in ("of-two", "of-three"):
        desk.does("job-run", "--after-any", "1", "--cmd", "true", "--tag", tag)
    until(lambda: keys(desk, "queued") == [2, 3], "two jobs wait")
    reboot(desk)
    desk.tries(*words)
    until(lambda: keys(desk, "succeeded") == [4], "the other one was put back")
    assert [job["tags"] for job in desk.jobs("--state", "succeeded")] == [["of-three"]]
    desk.does("job-list")
    assert len(desk.jobs("--stopped")) == 4


def test_a_job_with_variables_that_its_record_cannot_name_is_not_put_back(desk: Desk, tmp_path: Path) -> None:
    desk.does("job-run", "--cmd", "sleep 600")
    command = f"echo ran >> {tmp_path}/ran"
    desk.does("job-run", "--after-any", "1", "--cmd", command, "--env", "LONG" * 40, "x")
    until(lambda: keys(desk, "queued") == [2], "a job waits")
    reboot(desk)
    said = " ".join(desk.tries("job-list").stderr.split())
    assert "job 2 waited when it rebooted, and its record does not name its variables" in said
    assert len(desk.jobs("--stopped")) == 2
    assert not (tmp_path / "ran").exists()


def test_a_clean_after_a_reboot_loses_no_place_in_the_queue(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "sleep 600")
    desk.does("job-run", "--after-any", "1", "--cmd", "true")
    until(lambda: keys(desk, "queued") == [2], "a job waits")
    reboot(desk)
    cleaned = desk.tries("clean", "--older", "30d", "--yes")
    assert "job 2 waited when it rebooted; it waits again, as job 3" in " ".join(cleaned.stderr.split())
    until(lambda: keys(desk, "succeeded") == [3], "it was put back")


def test_who_follows_a_job_through_a_reboot_puts_it_back(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "sleep 600")
    desk.does("job-run", "--after-any", "1", "--cmd", "true")
    until(lambda: keys(desk, "queued") == [2], "a job waits")
    with desk.runs_meanwhile("job-tail", "2") as tail:
        assert tail.stdout is not None
        said = iter(tail.stdout.readline, "")
        assert any("is queued" in line for line in said)
        reboot(desk)
        rest = " ".join(tail.communicate()[0].split())
    assert "job 2 waited when it rebooted; it waits again, as job 3" in rest
    until(lambda: keys(desk, "succeeded") == [3], "it was put back")
