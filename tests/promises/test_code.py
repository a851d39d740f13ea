"""Which code a job runs when it is started again, and how the code of two jobs differs."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

RUN = ("job-run", "--follow", "--cmd", "python train.py")


def git(desk: Desk, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *words], cwd=desk.root, check=True, capture_output=True)


def write(desk: Desk, text: str, name: str = "train.py") -> None:
    (desk.root / name).write_text(f"print({text!r})\n")


def diff_of(desk: Desk, one: int, other: int) -> dict[str, str]:
    code = json.loads(desk.does("job-diff", str(one), str(other), "--json"))["code"]
    lines = [line for line in code["diff"].splitlines() if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    return {"source": code["source"], "lines": lines}


@pytest.mark.row(307)
def test_a_rerun_says_which_code_it_runs_and_names_the_other(desk: Desk) -> None:
    write(desk, "one")
    desk.does(*RUN, "--frozen")
    same = desk.tries("job-rerun", "1", "--follow")
    assert same.stdout == "one\n"
    copy = desk.job(1)["copy"]
    assert f"job 1: running the kept code (copy {copy}), which is the same as the current code" in same.stderr
    write(desk, "two")
    kept = desk.tries("job-rerun", "1", "--follow")
    text = f"job 1: running the kept code (copy {copy}), not the current code: train.py differs; --current-code runs"
    assert (kept.stdout, text in kept.stderr) == ("one\n", True), kept.stderr
    current = desk.tries("job-rerun", "1", "--follow", "--current-code")
    assert (current.stdout, "running the current code" in current.stderr) == ("two\n", True), current.stderr
    assert desk.does("job-rerun", "1", "--follow", "--kept-code") == "one\n"
    assert "cannot be combined" in desk.refuses("job-rerun", "1", "--kept-code", "--current-code", status=2)
    desk.does(*RUN)
    count = len(desk.jobs())
    refused = desk.refuses("job-rerun", str(count), "--kept-code", status=2)
    assert f"The code of job {count} is not kept" in refused
    assert len(desk.jobs()) == count


def test_the_code_of_two_jobs_is_compared_by_their_copies(desk: Desk) -> None:
    for text in ("one", "two"):
        write(desk, text)
        desk.does(*RUN, "--frozen")
    (desk.root / "new file.py").write_text("x = 1\n")
    desk.does(*RUN, "--frozen")
    assert diff_of(desk, 1, 2) == {"source": "copies", "lines": ["-print('one')", "+print('two')"]}
    assert diff_of(desk, 2, 3) == {"source": "copies", "lines": ["+x = 1"]}
    shown = desk.does("job-diff", "1", "2")
    assert "-print('one')\n+print('two')\n" in shown
    assert "copy" not in [line.split(" ")[0] for line in shown.splitlines()]


def test_an_edit_in_the_second_of_the_last_sync_is_part_of_the_difference(desk: Desk) -> None:
    for text, moment in (("one", 1_700_000_000_100_000_000), ("two", 1_700_000_000_900_000_000)):
        write(desk, text)
        os.utime(desk.root / "train.py", ns=(moment, moment))
        desk.does(*RUN, "--frozen")
    assert diff_of(desk, 1, 2) == {"source": "copies", "lines": ["-print('one')", "+print('two')"]}
    said = desk.tries("job-rerun", "1").stderr
    assert "train.py" in said


def test_the_code_of_two_jobs_is_compared_by_commits_and_what_was_not_committed(desk_of_two: Desk) -> None:
    desk = desk_of_two
    git(desk, "init")
    write(desk, "one")
    write(desk, "gone", "old.py")
    git(desk, "add", "-A")
    git(desk, "commit", "-m", "one")
    desk.does(*RUN, "--server", "first", "--frozen")
    write(desk, "two")
    write(desk, "new", "new.py")
    (desk.root / "old.py").unlink()
    # The copies are on different servers, so only commit and patch can tell.
    desk.does(*RUN, "--server", "second", "--frozen")
    changed = ["+print('new')", "-print('gone')", "-print('one')", "+print('two')"]
    assert diff_of(desk, 1, 2) == {"source": "commits", "lines": changed}
    git(desk, "add", "-A")
    git(desk, "commit", "-m", "two")
    desk.does(*RUN, "--server", "first")
    assert diff_of(desk, 2, 3) == {"source": "commits", "lines": []}
    assert diff_of(desk, 1, 3) == {"source": "commits", "lines": changed}
    write(desk, "three")
    desk.does(*RUN, "--server", "second")
    told = desk.tries("job-diff", "3", "4")
    assert "code: job 4 also had changes that were not committed, and they are not recorded whole" in told.stderr


def test_code_that_cannot_be_compared_is_named(desk: Desk) -> None:
    write(desk, "one")
    desk.does(*RUN, "--frozen")
    desk.does(*RUN)
    told = desk.tries("job-diff", "1", "2")
    assert told.returncode == 0
    assert "code: they did not run in copies on one server, and no commit is recorded for job 1, 2" in told.stderr


@pytest.mark.row(301)
def test_a_rerun_has_all_that_its_job_had(desk: Desk) -> None:
    (desk.root / "work").mkdir()
    (desk.root / "work" / "data").touch()
    options = ("--tag", "night", "--name", "digits", "--artifact", "work/*.pt", "--nice", "5", "--workdir", "work")
    desk.does("job-run", *options, "--follow", "--cmd", "pwd; nice; echo weights > model.pt")
    first = desk.does("job-tail", "1")
    desk.does("job-rerun", "1", "--follow")
    assert desk.does("job-tail", "2") == first
    same = ("command", "server", "tags", "name", "nice", "workdir")
    one, two = desk.job(1), desk.job(2)
    assert [two[key] for key in same] == [one[key] for key in same]
    assert (one["rerun_of"], two["rerun_of"]) == (None, one["id"])
    assert first.splitlines() == [str(desk.there() / "work"), str(os.nice(0) + 5)]
    desk.does("job-pull")
    pulled = {path.relative_to(desk.root / ".remote" / "jobs").parts[0] for path in desk.root.rglob("model.pt")}
    assert pulled == {one["id"], two["id"]}


@pytest.mark.row(305)
def test_a_launch_is_run_again_as_a_whole(desk_of_two: Desk) -> None:
    desk = desk_of_two
    desk.does("helper-launch", "--follow", "--cmd", "echo $NODE_RANK >> ranks")
    desk.does("job-rerun", "2", "--follow")
    jobs = desk.jobs()
    assert [(job["key"], job["server"], job["node_rank"]) for job in sorted(jobs, key=lambda job: job["key"])] == [
        (1, "first", 0),
        (2, "second", 1),
        (3, "first", 0),
        (4, "second", 1),
    ]
    assert len({job["launch_id"] for job in jobs}) == 2
    assert (desk.there("second") / "ranks").read_text().split() == ["1", "1"]
    desk.does("clean", "2", "--yes")
    assert "had 2 nodes, of which 1 can be found" in desk.refuses("job-rerun", "1", status=2)
    assert len(desk.jobs()) == 3
    desk.does("helper-launch", "--cmd", "exec sleep 1000")
    ends = "remote-tool job-kill 5 6 ends it"
    assert f"the launch of job 5 has not ended; {ends}" in desk.tries("job-rerun", "6").stderr
    desk.does("job-kill", "--all", "--yes")
