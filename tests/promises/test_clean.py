"""What ``clean`` and ``keep_jobs`` remove, and what they never take."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import Desk, until

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86400
CLOCK = """
import time
real = time.time
time.time = lambda: real() + ({seconds})
"""


def with_clock(folder: Path, days: int) -> dict[str, str]:
    """Return the environment of a program here whose clock is wrong by days."""
    folder = folder / f"clock{days}"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(CLOCK.format(seconds=days * DAY))
    return {"PYTHONPATH": str(folder)}


def run(desk: Desk, command: str = "true", *words: str) -> str:
    """Run a job to its end, and return its id."""
    desk.does("job-run", "--no-sync", *words, "--follow", "--cmd", command)
    return str(max(desk.jobs(), key=lambda job: job["key"])["id"])


def age(desk: Desk, job_id: str, days: float) -> None:
    """Let a job have ended days ago, as its server says."""
    record = desk.there() / ".jobs" / job_id / "ended.json"
    values = json.loads(record.read_text())
    record.write_text(json.dumps(values | {"ended_at": time.time() - days * DAY}))
    # As if its server had restarted since.
    for path in (record.with_name("spec.json"), record.with_name("started.json")):
        values = json.loads(path.read_text())
        values["place"]["boot_id"] = "00000000-0000-0000-0000-000000000000"
        path.write_text(json.dumps(values))


def keys(desk: Desk) -> list[int]:
    return sorted(job["key"] for job in desk.jobs())


@pytest.mark.parametrize("days", [-400, 400])
def test_the_clock_here_does_not_decide_what_clean_removes(desk: Desk, tmp_path: Path, days: int) -> None:
    old, _ = run(desk), run(desk)
    age(desk, old, 31)
    clock = with_clock(tmp_path, days)
    dry = json.loads(desk.does("clean", "--older", "30d", "--dry-run", "--json", environment=clock))
    assert [each["goes"] for each in dry["items"] if each["server"] and each["what"] == "jobs"] == [1]
    desk.does("clean", "--older", "30d", "--yes", environment=clock)
    assert keys(desk) == [2]


def test_an_end_from_before_its_server_set_its_clock_is_not_taken_for_old(desk: Desk) -> None:
    """The clock of the server was years behind when the job ended, and the server has not restarted since."""
    desk.does("job-run", "--no-sync", "--cmd", "true")
    until(lambda: list(desk.there().glob(".jobs/*/ended.json")), "its end")
    (record,) = desk.there().glob(".jobs/*/ended.json")
    # Before this computer has seen the end.
    record.write_text(json.dumps(json.loads(record.read_text()) | {"ended_at": 5.0}))
    desk.does("clean", "--older", "1000w", "--yes")
    assert keys(desk) == [1]


def test_keep_jobs_says_what_it_removed_and_why(desk: Desk) -> None:
    desk.configure(keep_jobs=1)
    run(desk)
    run(desk)
    told = desk.tries("job-run", "--no-sync", "--cmd", "true").stderr
    assert "first: removed job 1 beyond the newest 1 (keep_jobs)" in told
    desk.waits_for(3, "succeeded")
    age(desk, str(desk.job(2)["id"]), 31)
    desk.configure(keep_jobs="30d")
    told = desk.tries("job-run", "--no-sync", "--cmd", "true").stderr
    assert "removed" not in told  # by the clock here, it was made seconds ago
    assert keys(desk) == [2, 3, 4]


@pytest.mark.row(173)
@pytest.mark.parametrize("end", ["success", "loss"])
def test_keep_jobs_never_takes_what_was_not_fetched(desk: Desk, end: str) -> None:
    command = "echo weights > model.pt" + ("; exec sleep 600" if end == "loss" else "")
    desk.does("job-run", "--no-sync", "--artifact", "*.pt", "--cmd", command)
    until((desk.there() / "model.pt").exists, "the job has written its file")
    if end == "loss":
        lose(desk, str(desk.job(1)["id"]))
    desk.waits_for(1, "lost" if end == "loss" else "succeeded")
    desk.configure(keep_jobs=1)
    # Each sees the end of the one before.
    said = "".join(desk.tries("job-run", "--no-sync", "--follow", "--cmd", "true").stderr for _ in range(3))
    assert "job 1" not in said
    assert 1 in keys(desk)


@pytest.mark.row(173)
@pytest.mark.parametrize("end", ["success", "loss"])
def test_a_job_that_is_named_stays_until_its_files_are_fetched_or_given_up(desk: Desk, end: str) -> None:
    command = "echo weights > model.pt" + ("; exec sleep 600" if end == "loss" else "")
    for key in (1, 2):
        desk.does("job-run", "--no-sync", "--artifact", "*.pt", "--cmd", command)
        if end == "loss":
            lose(desk, str(desk.waits_for(key, "running")["id"]))
        desk.waits_for(key, "lost" if end == "loss" else "succeeded")
    said = " ".join(desk.refuses("clean", "1", "--yes", status=2).split())
    assert "Artifacts of job 1 have not been pulled" in said
    assert "remote-tool job-pull 1" in said
    assert "remote-tool clean 1 --artifacts" in said
    assert keys(desk) == [1, 2]
    desk.does("clean", "--job", "2", "--artifacts", "--yes")
    assert keys(desk) == [1]
    desk.does("job-pull", "1")
    desk.does("clean", "1", "--yes")
    assert list((desk.there() / ".jobs").glob("*/ended.json")) == []


@pytest.mark.row(173)
def test_clean_keeps_what_runs_and_what_was_not_fetched(desk: Desk) -> None:
    desk.does("job-run", "--no-sync", "--artifact", "*.pt", "--cmd", "echo weights > model.pt")
    desk.waits_for(1, "succeeded")
    desk.does("job-run", "--no-sync", "--cmd", "sleep 1000")
    run(desk)
    clean_until_gone(desk, 3)
    assert keys(desk) == [1, 2]
    assert desk.job(2)["state"] == "running"
    desk.does("job-kill", "2")


@pytest.mark.row(173)
def test_a_launch_stays_whole_while_one_of_its_nodes_runs(desk_of_two: Desk) -> None:
    desk = desk_of_two
    desk.does("helper-launch", "--cmd", "[ $NODE_RANK = 1 ] || until [ -e end ]; do sleep 0.1; done")
    desk.waits_for(2, "succeeded")
    run(desk, "true", "--server", "second")
    clean_until_gone(desk, 3)
    assert keys(desk) == [1, 2]
    (desk.there() / "end").touch()
    desk.waits_for(1, "succeeded")
    clean_until_gone(desk, 1)
    assert keys(desk) == []


@pytest.mark.row(173)
def test_another_laptop_learns_how_a_job_ended_that_was_cleaned_away(desk: Desk, tmp_path: Path) -> None:
    desk.does("job-run", "--no-sync", "--cmd", f"until test -e {tmp_path}/go; do sleep 0.05; done; exit 7")
    other = Desk(shutil.copytree(desk.root, tmp_path / "other-laptop"), desk.servers)
    assert other.job(1)["state"] == "running"
    (tmp_path / "go").touch()
    desk.waits_for(1, "failed")
    clean_until_gone(desk, 1)
    known = other.job(1)
    assert (known["state"], known["exit_code"]) == ("failed", 7)


def clean_until_gone(desk: Desk, key: int) -> None:
    """Clean until a job is gone, whose last process may end a moment after it."""

    def is_gone() -> bool:
        desk.does("clean", "--yes")
        return key not in keys(desk)

    until(is_gone, f"job {key} is gone")


def lose(desk: Desk, job_id: str) -> None:
    """Kill the processes of a job so that no end is recorded, as the end of its server would."""
    started = json.loads((desk.there() / ".jobs" / job_id / "started.json").read_text())
    for process in (started["supervisor"], started["command"]):
        os.kill(process["pid"], signal.SIGKILL)


@pytest.mark.row(176)
def test_a_job_whose_folder_is_gone_for_good_can_be_forgotten_and_no_other(desk: Desk) -> None:
    gone = run(desk)
    desk.does("job-run", "--no-sync", "--cmd", "sleep 1000")
    shutil.rmtree(desk.there() / ".jobs" / gone)
    desk.does("clean", "--job", "1", "--yes")
    assert keys(desk) == [2]
    desk.tries("clean", "--job", "2", "--yes")
    assert (keys(desk), desk.job(2)["state"]) == ([2], "running")
    desk.does("job-kill", "2", "--yes")


@pytest.mark.row(295)
def test_a_copy_of_the_code_stays_until_its_last_job_is_cleaned(desk: Desk) -> None:
    copies = desk.there() / ".remote-scripts" / "copies"
    for text in ("one", "two"):
        (desk.root / "train.py").write_text(f"print('{text}')\n")
        desk.does("job-run", "--frozen", "--follow", "--cmd", "python train.py")
    assert desk.does("job-rerun", "1", "--follow") == "one\n"

    def has(*texts: str) -> bool:
        return sorted(path.read_text() for path in copies.glob("*/**/train.py")) == [
            f"print('{text}')\n" for text in texts
        ]

    assert has("one", "two")
    for key, left in ((1, ("one", "two")), (2, ("one",)), (3, ())):
        desk.does("clean", "--job", str(key), "--yes")
        assert has(*left), [*copies.glob("*/**/train.py")]


@pytest.mark.row(173)
def test_a_key_is_not_given_again_when_its_job_is_cleaned(desk: Desk) -> None:
    for _ in range(2):
        desk.does("job-run", "--no-sync", "--follow", "--cmd", "true")
    (desk.root / ".remote" / "jobs" / "last_key").unlink()
    desk.does("clean", "--yes")
    assert desk.jobs() == []
    desk.does("job-run", "--no-sync", "--follow", "--cmd", "true")
    assert [job["key"] for job in desk.jobs()] == [3]


@pytest.mark.row(174)
def test_clean_follows_no_link_of_a_job(desk: Desk, tmp_path: Path) -> None:
    elsewhere = tmp_path / "results"
    elsewhere.mkdir()
    (elsewhere / "best").write_text("a week's work\n")
    desk.does("job-run", "--no-sync", "--follow", "--cmd", "true")
    folder = desk.there() / ".jobs" / desk.job(1)["id"]
    (folder / "results").symlink_to(elsewhere)
    desk.does("clean", "1", "--yes")
    assert not folder.exists()
    partial = desk.there() / ".remote-scripts" / "partial"
    partial.symlink_to(elsewhere)
    desk.does("clean", "--yes")
    assert not partial.is_symlink()
    assert (elsewhere / "best").read_text() == "a week's work\n"


@pytest.mark.row(175)
def test_clean_all_removes_our_files_and_what_is_as_it_was_sent_and_nothing_while_a_job_runs(desk_alone: Desk) -> None:
    desk = desk_alone
    for name in ("as-sent.py", "changed.py"):
        (desk.root / name).write_text("sent\n")
    desk.does("job-run", "--follow", "--cmd", "echo made > made; echo more >> changed.py")
    desk.does("job-run", "--no-sync", "--cmd", "until [ -e go ]; do sleep 0.05; done")
    before = sorted(path.name for path in desk.there().iterdir())
    clean_all = ("clean", "--all", "--server", "first", "--yes")
    desk.refuses(*clean_all)
    assert sorted(path.name for path in desk.there().iterdir()) == before
    (desk.there() / "go").touch()
    desk.waits_for(2, "succeeded")
    # A conda that has an environment of somebody else.
    home = desk.servers["first"].home
    conda = home / ".miniconda3.20261121053000.4711"
    (conda / "envs" / "other").mkdir(parents=True)
    (home / "miniconda3").symlink_to(conda.name)
    planned, done = (json.loads(desk.does(*clean_all, *words, "--json"))["items"] for words in (("--dry-run",), ()))
    # Nothing is counted twice.
    assert sum(each["frees"] for each in done) <= sum(each["frees"] for each in planned)
    assert (home / "miniconda3" / "envs" / "other").exists()
    assert sorted(path.name for path in desk.there().iterdir()) == ["changed.py", "go", "made"]
    assert (desk.there() / "changed.py").read_text() == "sent\nmore\n"
    assert [*desk.servers["first"].home.glob(".remote*")] == []
