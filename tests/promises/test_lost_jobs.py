"""A job is lost only where its server has evidence of that, and it is found again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running, open_files, parents, read_of
from tests.promises.conftest import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.promises.conftest import Desk

UNTIL_TOLD = "echo begun $$; until [ -e end ]; do sleep 0.05; done; echo done; exit 7"
ANOTHER = "its server has another folder of jobs now, such as that of an empty disk; trying again"
SHOWN = r"begun \d+\ndone\n"


def begin(desk: Desk) -> int:
    """Start a job that runs until it is told to end; return the process of its command."""
    desk.does("job-run", "--cmd", UNTIL_TOLD)
    (output,) = [job / "job.out" for job in (desk.there() / ".jobs").iterdir() if (job / "spec.json").exists()]
    until(lambda: output.read_text().endswith("\n"), "it has begun")
    assert desk.job(1)["state"] == "running"
    return int(output.read_text().split()[1])


@contextmanager
def away(folder: Path, *, is_empty: bool = False) -> Iterator[None]:
    """Take a folder away for a moment, as a disk that is not mounted yet; an empty one may be in its place."""
    aside = folder.rename(folder.with_name(f"{folder.name}.aside"))
    if is_empty:
        folder.mkdir(mode=0o700)
    try:
        yield
    finally:
        if is_empty:
            folder.rmdir()
        aside.rename(folder)


def ends(desk: Desk) -> None:
    """Let the job end, and look at all that is known of it."""
    (desk.there() / "end").touch()
    job = desk.waits_for(1, "failed")
    assert (job["exit_code"], job["reason"]) == (7, None)
    assert re.fullmatch(SHOWN, desk.does("job-tail", "1"))


@pytest.mark.row(131)
@pytest.mark.parametrize("folder", [".jobs", ".remote-scripts"])
def test_a_job_whose_folders_are_away_for_a_moment_is_unreachable_and_then_runs(desk: Desk, folder: str) -> None:
    begin(desk)
    with away(desk.there() / folder, is_empty=folder == ".jobs"):
        listed = desk.tries("job-list", "--rsync")
        assert "unreachable" in listed.stdout, listed.stdout + listed.stderr
        assert "last seen running" in listed.stdout + listed.stderr
    assert (desk.job(1)["state"], desk.job(1)["reason"]) == ("running", None)
    ends(desk)


@pytest.mark.row(131)
def test_a_follower_waits_while_the_folders_are_away_and_shows_the_rest(desk: Desk) -> None:
    begin(desk)
    said = desk.root / "said"
    words = [sys.executable, "-m", "remote_tool", "job-tail", "1"]
    with said.open("wb") as to, subprocess.Popen(words, cwd=desk.root, stdout=to, stderr=to) as following:
        try:
            until(lambda: "begun" in said.read_text(), "the output so far")
            with away(desk.there() / ".jobs", is_empty=True):
                desk.servers["first"].drop_connections()
                until(lambda: ANOTHER in said.read_text(), "the follower has asked again")
                # It asks about twice a second now; nothing shows that it does.
                time.sleep(2)
            (desk.there() / "end").touch()
            assert following.wait(PATIENCE) == 0
        finally:
            following.kill()
    assert said.read_text().count(ANOTHER) == 1
    assert re.findall("^(begun|done)", said.read_text(), re.MULTILINE) == ["begun", "done"]
    ends(desk)


@pytest.mark.row(131)
def test_a_loss_is_taken_back_when_the_job_is_found(desk: Desk) -> None:
    begin(desk)
    folder = desk.there() / ".jobs" / desk.job(1)["id"]
    # The next start is in the same folder of jobs.
    desk.does("job-run", "--no-sync", "--cmd", "true")
    with away(folder):
        lost = desk.job(1)
        assert lost["state"] == "lost"
        assert lost["reason"].startswith("its folder is gone from the server")
    assert (desk.job(1)["state"], desk.job(1)["reason"]) == ("running", None)
    ends(desk)


@pytest.mark.row(131)
def test_files_of_an_ended_job_that_are_away_for_a_moment_come_later(desk: Desk) -> None:
    desk.does("job-run", "--artifact", "*.pt", "--cmd", "echo 7 > model.pt")
    assert desk.waits_for(1, "succeeded", "failed")["state"] == "succeeded"
    jobs = desk.there() / ".jobs"
    with away(jobs, is_empty=True):
        # Another one of this program.
        (jobs / ".folder-id").write_text("a" * 32)
        desk.tries("job-rsync")
        (jobs / ".folder-id").unlink()
    desk.does("job-rsync")
    assert [path.read_text() for path in (desk.root / ".remote" / "jobs").glob("*/artifacts/model.pt")] == ["7\n"]


@pytest.mark.row(131)
def test_a_stop_that_an_unprepared_server_does_not_take_is_made_up_for(desk: Desk) -> None:
    command = begin(desk)
    with away(desk.there()):
        assert "first is not prepared" in desk.refuses("job-kill", "1", "--yes")
        assert is_running(command)
    desk.waits_for(1, "killed")
    assert not is_running(command)


@pytest.mark.row(14)
def test_the_end_of_the_login_that_started_a_job_does_not_end_its_supervisor(desk: Desk) -> None:
    command = begin(desk)
    supervisor = parents()[command]
    assert os.getsid(supervisor) == supervisor
    ends(desk)


@pytest.mark.row(3)
def test_a_job_without_its_supervisor_is_lost_and_what_is_left_of_it_is_stopped(desk: Desk) -> None:
    command = begin(desk)
    os.kill(parents()[command], signal.SIGKILL)
    job = desk.waits_for(1, "lost")
    assert (job["exit_code"], is_running(command)) == (None, True)
    desk.does("clean", "--yes")
    assert "Job 1 is lost" in desk.refuses("clean", "1", "--yes", status=2)
    assert (desk.there() / ".jobs" / job["id"] / "job.out").exists()
    desk.does("job-kill", "1", "--yes")
    assert not is_running(command)
    assert desk.job(1)["exit_code"] is None


@pytest.mark.row(3)
def test_a_command_that_hides_is_stopped_without_its_supervisor(desk: Desk, tmp_path: Path) -> None:
    """It has no variables of its job, and writes nowhere."""
    desk.does("job-run", "--cmd", f"echo $$ > {tmp_path}/pid; exec env -i sleep 1000 >/dev/null 2>&1")
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "it has begun")
    command = int((tmp_path / "pid").read_text())
    until(lambda: read_of(command, "comm") == b"sleep\n", "it hides")
    os.kill(parents()[command], signal.SIGKILL)
    desk.waits_for(1, "lost")
    desk.does("job-kill", "1", "--yes")
    assert not is_running(command)


@pytest.mark.row(268)
def test_a_job_that_waited_without_its_supervisor_is_lost_and_holds_nobody_up(desk: Desk) -> None:
    begin(desk)
    for _ in range(2):
        desk.does("job-run", "--after-any", "1", "--cmd", "touch began-$REMOTE_TOOL_JOB_ID")
    second, third = (desk.waits_for(key, "queued")["id"] for key in (2, 3))
    (supervisor,) = [pid for pid in parents() if f"/.jobs/{second}" in " ".join(open_files(pid).values())]
    os.kill(supervisor, signal.SIGKILL)
    assert desk.waits_for(2, "lost")["reason"]
    (desk.there() / "end").touch()
    desk.waits_for(3, "succeeded")
    assert [path.name for path in desk.there().glob("began-*")] == [f"began-{third}"]


@pytest.mark.row(133)
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"schema": 2}, "spec.json: schema must be 1, found 2; a newer remote-tool"),
        ({"server": "x" * 300}, "server: must be a text of at most 256 characters"),
    ],
    ids=["a newer version", "a refused field"],
)
def test_a_job_that_cannot_be_read_is_unreachable_with_the_reason_and_others_are_followed_to_their_ends(
    desk: Desk, changed: dict[str, object], why: str
) -> None:
    begin(desk)
    desk.does("job-run", "--cmd", "echo waits; until [ -e end-2 ]; do sleep 0.05; done; echo over; exit 3")
    record = desk.there() / ".jobs" / desk.job(1)["id"] / "spec.json"
    text = record.read_text()
    record.write_text(json.dumps(json.loads(text) | changed))
    job = desk.waits_for(1, "unreachable")
    assert why in job["reason"]
    (desk.there() / "end").touch()
    until((record.parent / "ended.json").exists, "its end")
    said = ""
    with desk.runs_meanwhile("job-tail", "1", "2") as following:
        assert following.stdout is not None
        for line in following.stdout:
            said += line
            if "waits" in line:
                (desk.there() / "end-2").touch()
    assert "over\n" in said
    assert following.returncode != 0
    assert "Traceback" not in said
    assert {key: desk.job(key)["state"] for key in (1, 2)} == {1: "unreachable", 2: "failed"}
    record.write_text(text)
    assert desk.waits_for(1, "failed")["exit_code"] == 7
    assert re.fullmatch(SHOWN, desk.does("job-tail", "1"))
