"""What jobs wrote stays: in the project's folder on the server, whichever code they ran and whatever is removed."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk

TRAIN = "mkdir -p out; echo weights >out/model.pt; echo log >src/run.log"


def edit(desk: Desk) -> None:
    """Change a file that is sent, so that the next frozen job gets another copy of the project."""
    (desk.root / "src").mkdir(exist_ok=True)
    path = desk.root / "src" / "settings.py"
    path.write_text(f"VERSION = '{os.urandom(8).hex()}'\n")


def copies_of(desk: Desk) -> list[Path]:
    folder = desk.there() / ".remote-scripts" / "copies"
    return sorted(folder.iterdir()) if folder.exists() else []


def trains(desk: Desk, command: str = TRAIN, *options: str) -> int:
    """Start a frozen job and wait for its success; returns its key."""
    edit(desk)
    desk.does("job-run", "--frozen", *options, "--cmd", command)
    key = max(job["key"] for job in desk.jobs())
    assert desk.waits_for(key, "succeeded", "failed")["exit_code"] == 0
    return int(key)


def has_output(desk: Desk) -> bool:
    model, log = desk.there() / "out" / "model.pt", desk.there() / "src" / "run.log"
    return (model.read_text(), log.read_text()) == ("weights\n", "log\n") and not model.is_symlink()


@pytest.mark.row(296)
def test_the_output_of_a_frozen_job_is_in_the_project_and_stays_after_clean(desk: Desk) -> None:
    trains(desk)
    assert has_output(desk)
    desk.does("clean", "--yes")
    assert copies_of(desk) == []
    assert has_output(desk)


@pytest.mark.row(175, 296)
def test_clean_all_leaves_what_frozen_jobs_wrote(desk: Desk) -> None:
    trains(desk)
    desk.does("clean", "--all", "--server", "first", "--yes")
    assert not (desk.there() / ".remote-scripts").exists()
    assert has_output(desk)


@pytest.mark.row(296)
def test_keep_jobs_leaves_what_frozen_jobs_wrote(desk: Desk) -> None:
    trains(desk)
    desk.configure(keep_jobs=1)
    trains(desk, "true")
    trains(desk, "true")
    assert len(copies_of(desk)) <= 2
    assert has_output(desk)


@pytest.mark.row(296)
def test_the_next_frozen_job_finds_the_output_of_one_before_an_edit(desk: Desk) -> None:
    edit(desk)
    desk.does("job-run", "--frozen", "--cmd", f"until [ -e ~/go-{desk.there().name} ]; do sleep 0.1; done; {TRAIN}")
    edit(desk)
    desk.does("job-run", "--after", "1", "--cmd", "cat out/model.pt src/run.log src/settings.py")
    (desk.there().parent / f"go-{desk.there().name}").touch()
    desk.waits_for(2, "succeeded", "failed")
    settings = (desk.root / "src" / "settings.py").read_text()
    assert desk.does("job-tail", "2", "--no-follow") == f"weights\nlog\n{settings}"


@pytest.mark.row(296)
def test_a_lost_jobs_checkpoint_is_there_for_the_next_job_and_after_clean(desk: Desk) -> None:
    edit(desk)
    desk.does("job-run", "--frozen", "--artifact", "out/*.pt", "--cmd", f"{TRAIN}; exec sleep 600")
    started = next((desk.there() / ".jobs").glob("*/started.json"))
    until(lambda: list(copies_of(desk)[0].glob("code/src/run.log")), "the output")
    kill_all(started)
    desk.waits_for(1, "lost")
    trains(desk, "cat out/model.pt")
    assert desk.does("job-tail", "2", "--no-follow") == "weights\n"
    assert has_output(desk)
    listed = desk.does("clean", "--yes")
    assert desk.job(1)["state"] == "lost", listed
    desk.does("job-pull", "1")
    pulled = list((desk.root / ".remote" / "jobs").glob("*/artifacts/out/model.pt"))
    assert [path.read_text() for path in pulled] == ["weights\n"]
    desk.does("clean", "--yes")
    assert has_output(desk)
    assert copies_of(desk) == []


def test_clean_names_whole_files_that_are_kept_beside_the_projects_own(desk: Desk) -> None:
    (desk.root / "tables").mkdir()
    for number in range(5):
        (desk.root / "tables" / f"measured on day {number}.csv").write_text("sent\n")
    key = trains(desk, 'for each in tables/*; do echo more >>"$each"; done')
    beside = [f"tables/measured on day {number}.csv.{desk.job(key)['id']}" for number in range(3)]
    listed = desk.tries("clean", "--dry-run").stderr
    assert f"kept outputs under a job's id: {', '.join(beside)} and 2 more" in " ".join(listed.split())


def kill_all(started: Path) -> None:
    """Kill the processes of a job and its supervisor at once, as a reboot does."""
    record = json.loads(started.read_text())
    os.kill(record["supervisor"]["pid"], signal.SIGKILL)
    os.killpg(record["command"]["pid"], signal.SIGKILL)


@pytest.mark.row(296)
def test_a_name_that_is_taken_is_kept_beside_it_and_named(desk: Desk) -> None:
    wait = f"until [ -e ~/go-{desk.there().name} ]; do sleep 0.1; done"
    for name in ("one", "two"):
        edit(desk)
        command = f"mkdir -p out; echo {name} >out/model.pt; echo {name} >{name}.txt; {wait}"
        desk.does("job-run", "--frozen", "--artifact", "out/*.pt", "--cmd", command)
    until(lambda: len(list(desk.there().glob(".remote-scripts/copies/*/code/*.txt"))) == 2, "both outputs")
    (desk.there().parent / f"go-{desk.there().name}").touch()
    jobs = {str(desk.waits_for(key, "succeeded")["id"]): name for key, name in ((1, "one"), (2, "two"))}
    (beside,) = (desk.there() / "out").glob("model.pt.*")
    late = beside.name.removeprefix("model.pt.")
    assert beside.read_text() == f"{jobs[late]}\n"
    (early,) = set(jobs) - {late}
    assert (desk.there() / "out" / "model.pt").read_text() == f"{jobs[early]}\n"
    named = f"kept beside the project's own: out/{beside.name}"
    assert named[: named.index(late)] in desk.does("job-list", "--stopped")
    key, reason = next((job["key"], job["reason"]) for job in desk.jobs() if job["id"] == late)
    assert named in reason
    assert named in desk.tries("job-tail", str(key), "--no-follow").stderr
    assert beside.name[:30] in desk.tries("clean", "--dry-run").stderr
    desk.does("job-pull")
    pulled = {path.parents[2].name: path.read_text() for path in desk.root.glob(".remote/jobs/*/artifacts/out/*")}
    assert pulled == {job_id: f"{name}\n" for job_id, name in jobs.items()}
    desk.does("clean", "--yes", "--artifacts")
    assert beside.exists()
    assert {path.name for path in desk.there().glob("*.txt")} == {"one.txt", "two.txt"}
