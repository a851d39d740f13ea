"""What runs on a server after a job, and after the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes import open_files, parents
from tests.promises.conftest import until

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

SECRET = "open-sesame-open-sesame"


def log_of(desk: Desk, key: int) -> str:
    path = desk.there() / ".jobs" / desk.job(key)["id"] / "on-empty.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.row(216)
def test_a_secret_of_on_end_is_in_no_file_no_variable_of_the_job_and_no_output(desk_alone: Desk) -> None:
    run = f'test "$DOOR" = {SECRET[:11]}"-open-sesame" && touch told'
    desk_alone.configure(on_end={"run": run, "secrets": ["DOOR"]})
    ran = desk_alone.tries("-vv", "job-run", "--follow", "--cmd", "env", environment={"DOOR": SECRET})
    assert ran.returncode == 0, ran.stderr
    until((desk_alone.there() / "told").exists, "the command has had its secret")
    assert SECRET not in ran.stdout + ran.stderr
    for folder in (desk_alone.servers["first"].home, desk_alone.root):
        files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.row(288)
def test_on_empty_does_not_run_if_another_job_came_meanwhile_however_short(desk_alone: Desk) -> None:
    desk_alone.configure(on_empty={"run": "touch ran", "after": "10m"})
    desk_alone.does("job-run", "--follow", "--cmd", "true")
    until(lambda: "no job is left: on_empty runs in" in log_of(desk_alone, 1), "it waits")
    desk_alone.configure(on_empty=None)
    desk_alone.does("job-run", "--follow", "--cmd", "true")
    until(lambda: "on_empty does not run: another job has come" in log_of(desk_alone, 1), "it does not run")
    assert not (desk_alone.there() / "ran").exists()


@pytest.mark.row(289)
def test_of_several_jobs_that_end_together_one_runs_on_empty(desk_alone: Desk) -> None:
    desk_alone.configure(on_empty={"run": "echo ran >> ran", "after": "1s"})
    for _ in range(4):
        desk_alone.does("job-run", "--no-sync", "--cmd", "until [ -e go ]; do sleep 0.01; done")
    (desk_alone.there() / "go").touch()
    mark = f"{desk_alone.there()}/"
    until(lambda: not [pid for pid in parents() if mark in " ".join(open_files(pid).values())], "all have gone")
    assert (desk_alone.there() / "ran").read_text() == "ran\n"
