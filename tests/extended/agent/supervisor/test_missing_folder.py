"""A running job whose folder is removed, renamed or replaced: it runs on, and can still be found and ended whole."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.proc import processes
from tests.extended.agent.conftest import PATIENCE, PretendServer, wait_until
from tests.extended.agent.jobs.test_orphans import end, find
from tests.processes import processes_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# One process that keeps the job's mark, and one that has cleared its environment and left the session.
COMMAND = "env -i setsid sleep 600 & echo $! > cleared; echo ready; exec sleep 600"


def remove(folder: Path) -> None:
    """Remove it as ``rm -r`` does."""
    shutil.rmtree(folder)


def rename(folder: Path) -> None:
    """Move it out of the way."""
    folder.rename(folder.with_name("away"))


def replace(folder: Path) -> None:
    """Have a copy in its place, as a restored backup would be."""
    rename(folder)
    shutil.copytree(folder.with_name("away"), folder, symlinks=True)
    shutil.rmtree(folder.with_name("away"))


def _folders(server: PretendServer, job_id: str) -> dict[str, Path]:
    return {"job": server.jobs / job_id, "jobs": server.jobs, "project": server.project}


def _start(server: PretendServer, command: str = COMMAND, **fields: Any) -> tuple[str, list[dict[str, int]]]:
    """Start a job; returns its id, and the supervisor's, the command's and the cleared process."""
    job_id = server.start(command, **fields)
    server.wait_for_output(job_id, "ready")
    started = server.record(job_id, "started")
    cleared = processes.read_process(int((server.project / "cleared").read_text()))
    assert cleared is not None
    return job_id, [started["supervisor"], started["command"], cleared.as_record()]


def _restore(server: PretendServer) -> None:
    """Prepare the server again, as far as it is not."""
    server.scripts.mkdir(parents=True, exist_ok=True)
    server.activate()


each_change = pytest.mark.parametrize(
    ("what", "change"),
    [(what, change) for what in ("job", "jobs", "project") for change in (remove, rename, replace)],
)


@pytest.mark.row(135)
@each_change
def test_a_stop_ends_a_job_whose_folder_is_not_there(
    server: PretendServer, what: str, change: Callable[[Path], None]
) -> None:
    job_id, everything = _start(server)
    change(_folders(server, job_id)[what])
    _restore(server)
    assert all(map(processes.find_alive, everything))
    answer = server.stop(job_id)
    assert (answer.get("error"), answer["left"], answer["already"]) == (None, [], False)
    assert not any(map(processes.find_alive, everything))
    assert processes_of(job_id) == []
    again = server.stop(job_id)
    assert again.get("error") == "there is no such job on this server" or again["already"]


@pytest.mark.row(135)
@each_change
def test_a_job_without_its_folder_is_an_orphan_and_can_be_ended_as_one(
    server: PretendServer, what: str, change: Callable[[Path], None]
) -> None:
    job_id, everything = _start(server)
    assert find(server) == {}
    change(_folders(server, job_id)[what])
    _restore(server)
    found = find(server)
    assert everything[1]["pid"] in found
    assert everything[0]["pid"] not in found
    assert {each["job"] for each in found.values()} == {job_id}
    pid = everything[1]["pid"]
    assert end(server, {pid: found[pid]})["jobs"] == [{"id": job_id, "left": []}]
    assert not any(map(processes.find_alive, everything))
    assert find(server) == {}


@pytest.mark.row(135)
def test_a_job_whose_folder_was_renamed_has_its_end_recorded_there(server: PretendServer) -> None:
    job_id, _ = _start(server)
    rename(server.project)
    _restore(server)
    server.stop(job_id)
    shutil.rmtree(server.project)
    (server.home / "away").rename(server.project)
    assert server.status(job_id)["state"] == "killed"
    assert server.record(job_id, "ended")["reason"] == "stopped by a signal to its supervisor"


@pytest.mark.row(135)
@pytest.mark.parametrize("grace", [0.3, None])
def test_a_job_without_its_folder_gets_the_grace_and_then_sigkill(server: PretendServer, grace: float | None) -> None:
    """That of the stop, else that of the job's start."""
    deaf = f"trap '' TERM; {COMMAND.replace('exec sleep 600', 'while :; do sleep 0.05; done')}"
    job_id, everything = _start(server, deaf, grace=0.3 if grace is None else 60.0)
    remove(server.jobs / job_id)
    begin = time.monotonic()
    answer = server.stop(job_id, grace=grace)
    assert 0.3 <= time.monotonic() - begin < 30
    assert (answer.get("error"), answer["left"]) == (None, [])
    assert not any(map(processes.find_alive, everything))


@pytest.mark.row(135)
def test_a_job_without_its_folder_and_without_a_supervisor_is_ended_by_its_marks(server: PretendServer) -> None:
    job_id, everything = _start(server, "echo 1 > cleared; echo ready; exec sleep 600")
    remove(server.jobs / job_id)
    os.kill(everything[0]["pid"], 9)
    wait_until(lambda: processes.find_alive(everything[0]) is None, "the end of the supervisor")
    assert server.stop(job_id)["left"] == []
    assert processes.find_alive(everything[1]) is None


@pytest.mark.row(135)
def test_the_neighbours_of_a_job_without_its_folder_are_not_touched(server: PretendServer) -> None:
    job_id, _ = _start(server)
    neighbour, others = _start(server)
    remove(server.jobs / job_id)
    assert {each["job"] for each in find(server).values()} == {job_id}
    server.stop(job_id)
    end(server, find(server))
    assert all(map(processes.find_alive, others))
    assert server.status(neighbour)["state"] == "running"


@pytest.mark.row(135)
def test_a_run_is_not_an_orphan_when_the_project_folder_is_removed(server: PretendServer) -> None:
    command = "echo $REMOTE_TOOL_JOB_ID > ../id; exec sleep 600"
    with server.open("run", command=command, environment={}) as call:
        wait_until(lambda: (server.home / "id").exists() and (server.home / "id").read_text(), "the run")
        remove(server.project)
        _restore(server)
        assert find(server) == {}
        call.stdin.close()
        call.process.wait(PATIENCE)
    assert processes_of((server.home / "id").read_text().strip()) == []


@pytest.mark.row(135)
@pytest.mark.parametrize("what", ["job", "project"])
def test_a_job_whose_folder_was_removed_runs_to_its_end_and_its_supervisor_ends_with_it(
    server: PretendServer, what: str
) -> None:
    job_id, everything = _start(server, "echo 1 > cleared; echo ready; until test -e ../go; do sleep 0.05; done")
    remove(_folders(server, job_id)[what])
    if what == "project":
        server.project.mkdir()
    wait_until(lambda: processes.find_alive(everything[1]), "the command")
    (server.home / "go").touch()
    wait_until(lambda: processes.find_alive(everything[0]) is None, "the end of the supervisor")
    assert processes.find_alive(everything[1]) is None
