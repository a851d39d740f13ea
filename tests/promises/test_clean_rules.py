"""What ``clean`` leaves because it is in use, and that nothing is half removed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import is_running
from tests.promises.conftest import PATIENCE, before_each_request, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.promises.conftest import Desk

# Deeper than clean descends.
DEEP = "/".join(["deep"] * 210)
# A server whose first start does what it is asked for, and whose answer is lost later.
LOSES_AN_ANSWER = """\
if mkdir "{place}/lost" 2>/dev/null; then
    "$python" "$@" >/dev/null
    touch "{place}/done"
    while [ ! -e "{place}/go" ]; do sleep 0.05; done
    exit
fi
"""


@contextmanager
def lock(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock, as a program on the server does while it is at work."""
    opened = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(opened, kind)
        yield
    finally:
        os.close(opened)


def only_folder(desk: Desk) -> Path:
    """Return the folder of the only job on the server."""
    (found,) = (path.parent for path in desk.there().glob(".jobs/20*/spec.json"))
    return found


def run(desk: Desk, command: str = "true", *words: str) -> Path:
    """Run a job until nothing of it is left, and return its folder on the server."""
    desk.does("job-run", "--no-sync", *words, "--cmd", command)
    folder = only_folder(desk)
    until((folder / "ended.json").exists, "its end")
    supervisor = json.loads((folder / "started.json").read_text())["supervisor"]["pid"]
    until(lambda: not is_running(supervisor), "the end of its supervisor")
    return folder


def clean(desk: Desk, *words: str) -> dict[str, dict[str, Any]]:
    """Clean, and return what is said about the server, by kind of file."""
    told = json.loads(desk.tries("clean", "--yes", "--json", *words).stdout)
    return {each["what"]: each for each in told["items"] if each["server"]}


@pytest.mark.row(173, 175)
def test_a_lost_job_stays_while_one_of_its_processes_is_left(desk: Desk) -> None:
    desk.does("job-run", "--no-sync", "--cmd", "exec sleep 600")
    folder = only_folder(desk)
    started = json.loads((folder / "started.json").read_text())
    os.kill(started["supervisor"]["pid"], signal.SIGKILL)
    desk.waits_for(1, "lost")
    assert "processes are still running" in desk.refuses("clean", "--all", "--server", "first", "--yes")
    assert folder.exists()
    os.kill(started["command"]["pid"], signal.SIGKILL)
    until(lambda: not is_running(started["command"]["pid"]), "the end of its process")
    clean(desk)
    assert not folder.exists()


@pytest.mark.row(173)
def test_a_job_stays_while_its_supervisor_is_not_done_with_it(desk: Desk) -> None:
    folder = run(desk)
    (folder / "reserve").touch()
    with lock(folder / "reserve"):
        clean(desk)
        assert (folder / "ended.json").exists()
    clean(desk)
    assert not folder.exists()


@pytest.mark.row(173)
def test_fetched_files_stay_here_until_they_are_given_up(desk: Desk) -> None:
    folder = run(desk, "echo weights > model.pt", "--artifact", "*.pt")
    desk.does("job-pull", "1")
    clean(desk)
    assert not folder.exists()
    (fetched,) = desk.root.glob(".remote/jobs/*/artifacts/model.pt")
    assert fetched.read_text() == "weights\n"
    desk.does("clean", "--artifacts", "--yes")
    assert not fetched.exists()


@pytest.mark.row(173, 175)
def test_clean_all_removes_nothing_while_a_job_runs_on_another_machine_that_has_the_same_home(desk: Desk) -> None:
    folder = run(desk)
    (folder / "ended.json").unlink()
    for path in (folder / "spec.json", folder / "started.json"):
        record = json.loads(path.read_text())
        elsewhere = {"boot_id": "00000000-0000-0000-0000-000000000000", "hostname": "elsewhere", "machine_id": "other"}
        path.write_text(json.dumps(record | {"place": record["place"] | elsewhere}))
    assert "on another machine" in desk.refuses("clean", "--all", "--server", "first", "--yes")
    assert folder.exists()


@pytest.mark.row(174)
def test_a_start_whose_answer_is_lost_runs_no_second_time_when_its_job_was_cleaned_meanwhile(desk: Desk) -> None:
    place = desk.there()
    before_each_request(desk, LOSES_AN_ANSWER.format(place=place))
    with desk.runs_meanwhile("job-run", "--no-sync", "--cmd", "echo ran >> ran") as starting:
        until((place / "done").exists, "the job was started")

        def is_gone() -> bool:
            clean(desk)
            return not [*place.glob(".jobs/20*")]

        until(is_gone, "the job is removed")
        desk.servers["first"].drop_connections()
        (place / "go").touch()
        said, _ = starting.communicate(timeout=PATIENCE)
    assert "it has run, and was cleaned away" in said
    assert (place / "ran").read_text() == "ran\n"


@pytest.mark.row(174)
def test_a_job_of_which_something_cannot_be_removed_goes_all_the_same(desk: Desk) -> None:
    folder = run(desk)
    (folder / "ranks" / DEEP).mkdir(parents=True)
    clean(desk)
    assert desk.jobs() == []
    assert not folder.exists()


@pytest.mark.row(174)
def test_what_could_not_be_removed_is_not_reported_as_removed(desk: Desk) -> None:
    half = desk.there() / ".remote-scripts" / "environment"
    (half / DEEP).mkdir(parents=True)
    told = clean(desk)["half-made environments"]
    assert (told["goes"], told["frees"], told["reason"]) == (0, 0, "some of it could not be removed")


@pytest.mark.row(174)
def test_half_an_environment_stays_while_a_process_uses_it(desk: Desk) -> None:
    half = desk.there() / ".remote-scripts" / "environment"
    (half / "bin").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()", str(half)], stdin=subprocess.PIPE) as user:
        assert clean(desk)["half-made environments"]["reason"] == "a setup is running"
        assert (half / "bin").exists()
        user.communicate(b"\n")
    clean(desk)
    assert not half.exists()


@pytest.mark.row(174)
def test_what_a_sync_has_received_stays_while_the_sync_runs(desk: Desk) -> None:
    partial = desk.there() / "data" / ".remote-tool-partial"
    partial.mkdir(parents=True)
    with lock(desk.there() / ".remote-scripts" / "sync-lock"):
        assert clean(desk)["partial syncs"]["reason"] == "a sync is running"
        assert partial.exists()
    clean(desk)
    assert not partial.exists()


@pytest.mark.row(175)
def test_a_start_and_clean_all_never_both_go_on(desk: Desk) -> None:
    folder = run(desk).parent
    with lock(folder, fcntl.LOCK_SH):
        assert "a job is starting" in desk.refuses("clean", "--all", "--server", "first", "--yes")
    with lock(folder):
        assert "is being removed from this server" in desk.refuses("job-run", "--no-sync", "--cmd", "touch ran")
    assert not (desk.there() / "ran").exists()
