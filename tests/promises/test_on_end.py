"""What runs on a server after a job, and after the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes import open_files, parents
from tests.project import make_project
from tests.promises.conftest import Desk, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

SECRET = "open-sesame-open-sesame"


@pytest.fixture
def alone(make_server: MakeServer, tmp_path: Path) -> Desk:
    """A prepared project on a server that no other project uses."""
    server = make_server()
    desk = Desk(make_project(tmp_path / "project", [server]), {"first": server})
    desk.does("prepare")
    return desk


def log_of(desk: Desk, key: int) -> str:
    path = desk.there() / ".jobs" / desk.job(key)["id"] / "on-empty.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.row(216)
def test_a_secret_of_on_end_is_in_no_file_no_variable_of_the_job_and_no_output(alone: Desk) -> None:
    run = f'test "$DOOR" = {SECRET[:11]}"-open-sesame" && touch told'
    alone.configure(on_end={"run": run, "secrets": ["DOOR"]})
    ran = alone.tries("-vv", "job-run", "--follow", "--cmd", "env", environment={"DOOR": SECRET})
    assert ran.returncode == 0, ran.stderr
    until((alone.there() / "told").exists, "the command has had its secret")
    assert SECRET not in ran.stdout + ran.stderr
    for folder in (alone.servers["first"].home, alone.root):
        files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.row(288)
def test_on_empty_does_not_run_if_another_job_came_meanwhile_however_short(alone: Desk) -> None:
    alone.configure(on_empty={"run": "touch ran", "after": "10m"})
    alone.does("job-run", "--follow", "--cmd", "true")
    until(lambda: "no job is left: on_empty runs in" in log_of(alone, 1), "it waits")
    alone.configure(on_empty=None)
    alone.does("job-run", "--follow", "--cmd", "true")
    until(lambda: "on_empty does not run: another job has come" in log_of(alone, 1), "it does not run")
    assert not (alone.there() / "ran").exists()


@pytest.mark.row(289)
def test_of_several_jobs_that_end_together_one_runs_on_empty(alone: Desk) -> None:
    alone.configure(on_empty={"run": "echo ran >> ran", "after": "1s"})
    for _ in range(4):
        alone.does("job-run", "--no-sync", "--cmd", "until [ -e go ]; do sleep 0.01; done")
    (alone.there() / "go").touch()
    mark = f"{alone.there()}/"
    until(lambda: not [pid for pid in parents() if mark in " ".join(open_files(pid).values())], "all have gone")
    assert (alone.there() / "ran").read_text() == "ran\n"
