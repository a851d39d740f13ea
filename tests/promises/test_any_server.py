"""Jobs for any server that wait are moved to where GPUs are free: one runs, whatever is killed meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.promises.conftest import PATIENCE, HeldRequest
from tests.stand_in_gpus import gpu_line, put_nvidia_smi, set_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.promises.conftest import Desk

FREE, USED = gpu_line(0, load=0, used=1), gpu_line(0)
WITHDRAWN = "grep -qs moved_to {there}/.jobs/*/ended.json"
STARTING = """grep -qs '"starting"' {root}/.remote/jobs/*/job.yaml"""


@pytest.fixture
def pair(desk_of_two: Desk) -> Iterator[Desk]:
    """Two servers with a GPU each: a job has the one, and somebody else the other."""
    desk = desk_of_two
    desk.configure(idle_after=1)
    for name, gpu in (("first", FREE), ("second", USED)):
        put_nvidia_smi(desk.servers[name].programs, gpu)
    desk.does("job-run", "--server", "first", "--gpus", "1", "--cmd", "sleep 600")
    desk.waits_for(1, "running")
    yield desk
    desk.tries("job-kill", "--all", "--yes", "--signal", "SIGKILL")
    for server in desk.servers.values():
        # The servers are shared.
        shutil.rmtree(server.programs)


def give(desk: Desk, *words: str, file: str = "ran") -> Path:
    """Start job 2, which waits on ``first``; return the file that it adds a line to."""
    ran = desk.root.parent / file
    desk.does("job-run", "--any-server", "--gpus", "1", *words, "--cmd", f"echo $REMOTE_TOOL_SERVER >> {ran}")
    assert desk.waits_for(2, "queued")["server"] == "first"
    return ran


def free(desk: Desk) -> None:
    set_gpus(desk.servers["second"].programs, FREE)


def said(desk: Desk, *words: str) -> str:
    return " ".join(desk.tries(*words).stderr.split())


def of(desk: Desk, key: int) -> dict[str, Any]:
    return next((job for job in desk.jobs() if job["key"] == key), {})


@pytest.mark.row(277)
def test_a_job_that_waits_is_moved_by_the_next_command_that_sees_both(pair: Desk) -> None:
    ran = give(pair, "--tag", "mine", "--name", "try", "--priority", "7", "--retries", "2", "--artifact", "ran*")
    pair.does("job-note", "2", "remember")
    assert "moved" not in said(pair, "job-list")
    # It does not see both.
    free(pair)
    assert "moved" not in said(pair, "job-list", "--server", "first")
    assert "job 2: moved from first to second, where 1 GPU is free, as job 3" in said(pair, "job-list")
    moved = pair.waits_for(3, "succeeded")
    assert ran.read_text() == "second\n"
    names = ("server", "tags", "name", "priority", "retries", "note", "gpu_count")
    assert [moved[name] for name in names] == ["second", ["mine"], "try", 7, 2, "remember", 1]
    assert moved["rerun_of"] == of(pair, 2)["id"]
    assert (of(pair, 2)["state"], of(pair, 2)["reason"]) == ("killed", "moved to second, as job 3 (try)")
    assert len(pair.jobs()) == 3
    # Whoever waits for it waits for the one in its place.
    assert pair.tries("job-wait", "2").returncode == 0


def test_who_follows_a_job_that_is_moved_follows_it_there(pair: Desk) -> None:
    pair.does("job-run", "--any-server", "--gpus", "1", "--cmd", "echo from $REMOTE_TOOL_SERVER; exit 5")
    pair.waits_for(2, "queued")
    with pair.runs_meanwhile("job-tail", "2") as tail, pair.runs_meanwhile("job-wait", "2") as wait:
        assert tail.stdout is not None
        assert any("is queued" in line for line in iter(tail.stdout.readline, ""))
        free(pair)
        # Whoever asks first moves it: job-wait may do so too.
        pair.does("job-list")
        assert wait.wait(PATIENCE) == 5
        assert "from second" in tail.communicate(timeout=PATIENCE)[0]
    assert pair.tries("job-wait", "2").returncode == 5


@pytest.mark.parametrize("words", [["--env", "SECRET", "x"], ["--on-end", "true"], ["--no-frozen"]])
def test_a_job_whose_record_does_not_have_all_stays_where_it_is(pair: Desk, words: list[str]) -> None:
    give(pair, *words)
    free(pair)
    assert "moved" not in said(pair, "job-list")
    assert pair.job(2)["state"] == "queued"


def test_a_job_stays_where_another_one_waits_for_it(pair: Desk) -> None:
    give(pair)
    pair.does("job-run", "--after", "2", "--cmd", "true")
    free(pair)
    assert "moved" not in said(pair, "job-list")
    assert len(pair.jobs()) == 3


@pytest.mark.row(277)
def test_a_job_is_not_moved_to_other_code(pair: Desk) -> None:
    (pair.root / "train.py").write_text("old\n")
    ran = give(pair)
    (pair.root / "train.py").write_text("new, and longer\n")
    free(pair)
    text = said(pair, "job-list")
    assert "job 2 waits on first and is not moved here: the project has changed since, train.py differs" in text
    assert "remote-tool job-rerun 2 --server second" in text
    assert not (pair.there("second") / "train.py").exists()
    (pair.root / "train.py").write_text("old\n")
    (pair.root / "more.py").write_text("more\n")
    assert "there are other files" in said(pair, "job-list")
    assert pair.job(2)["state"] == "queued"
    assert not ran.exists()
    pair.does("job-kill", "1")
    pair.waits_for(2, "succeeded")
    assert ran.read_text() == "first\n"


def killed_in_a_move(desk: Desk, held: HeldRequest) -> None:
    """Begin a move, and kill the program when this request has arrived."""
    free(desk)
    with desk.runs_meanwhile("job-list") as listing:
        held.wait()
        os.kill(listing.pid, signal.SIGKILL)


@pytest.mark.row(277)
@pytest.mark.parametrize("goes_on", ["before", "after"])
def test_a_move_that_is_killed_when_the_old_job_was_given_up_is_finished_by_the_next_command(
    pair: Desk, goes_on: str
) -> None:
    ran = give(pair)
    held = HeldRequest(pair, WITHDRAWN.format(there=pair.there()))
    killed_in_a_move(pair, held)
    if goes_on == "before":
        held.let_go()
    assert "job 2: moved from first to second" in said(pair, "job-list")
    held.let_go()
    pair.waits_for(3, "succeeded")
    assert ran.read_text() == "second\n"
    assert len(pair.jobs()) == 3


@pytest.mark.row(277)
@pytest.mark.parametrize("goes_on", ["before", "after"])
def test_a_move_that_is_killed_when_the_new_job_was_requested_is_finished_once(pair: Desk, goes_on: str) -> None:
    ran = give(pair)
    held = HeldRequest(pair, STARTING.format(root=pair.root), "second")
    killed_in_a_move(pair, held)
    if goes_on == "before":
        held.let_go()
    pair.does("job-list")
    held.let_go()
    pair.waits_for(3, "succeeded")
    pair.does("job-list")
    assert ran.read_text() == "second\n"
    assert len(pair.jobs()) == 3
    assert pair.job(2)["state"] == "killed"


@pytest.mark.row(277)
def test_a_job_that_is_killed_while_it_is_moved_runs_nowhere(pair: Desk) -> None:
    ran = give(pair)
    held = HeldRequest(pair, WITHDRAWN.format(there=pair.there()))
    killed_in_a_move(pair, held)
    set_gpus(pair.servers["second"].programs, USED)
    pair.does("job-kill", "2")
    held.let_go()
    free(pair)
    assert [job["state"] for job in pair.jobs()] == ["running", "killed", "killed"]
    assert not ran.exists()


@pytest.mark.row(277)
def test_commands_at_once_move_a_job_once(pair: Desk) -> None:
    ran = give(pair)
    free(pair)
    programs = [pair.runs_meanwhile("job-list") for _ in range(3)]
    for program in programs:
        program.communicate(timeout=120)
    pair.waits_for(3, "succeeded")
    pair.does("job-list")
    assert ran.read_text() == "second\n"
    assert [job["state"] for job in pair.jobs()] == ["running", "killed", "succeeded"]


@pytest.mark.row(277)
def test_a_move_that_cannot_be_finished_names_the_command_that_does_it_later(pair: Desk) -> None:
    ran = give(pair)
    held = HeldRequest(pair, WITHDRAWN.format(there=pair.there()))
    killed_in_a_move(pair, held)
    held.let_go()
    scripts = pair.there("second") / ".remote-scripts"
    scripts.rename(scripts.with_name("away"))
    text = said(pair, "job-list")
    assert "job 2 was to be moved to second, and the copy of its code is gone: remote-tool job-requeue 2" in text
    scripts.with_name("away").rename(scripts)
    pair.does("job-requeue", "2")
    pair.waits_for(3, "succeeded")
    assert len(pair.jobs()) == 3
    assert ran.read_text() == "second\n"
