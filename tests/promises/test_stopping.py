"""Which jobs a stop is about, and who is asked first."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.terminal import Terminal
from tests.promises.conftest import PATIENCE

if TYPE_CHECKING:
    from tests.promises.conftest import Desk


def answered(desk: Desk, answers: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program with these lines on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "remote_tool", *words],
        cwd=desk.root,
        input=answers,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def two_sleepers(desk: Desk) -> None:
    for _ in range(2):
        desk.does("job-run", "--cmd", "sleep 1000")


@pytest.mark.parametrize("words", [("--all", "--yes"), ("all", "--yes")])
def test_all_jobs_are_stopped_without_a_question_when_asked_to(desk: Desk, words: tuple[str, ...]) -> None:
    two_sleepers(desk)
    desk.does("job-kill", *words)
    assert [job["state"] for job in desk.jobs("--stopped")] == ["killed", "killed"]
    assert "No job is running" in desk.refuses("job-kill", *words, status=2)


@pytest.mark.parametrize(("words", "answers"), [((), "y\n" * 20), (("--all",), "y\n"), ((), "all\nyes\n")])
def test_a_pipe_of_answers_stops_all(desk: Desk, words: tuple[str, ...], answers: str) -> None:
    two_sleepers(desk)
    ran = answered(desk, answers, "job-kill", *words)
    assert ran.returncode == 0, ran.stderr
    assert "Stop 1 (sleep 1000), 2 (sleep 1000)? [y/N]: y" in ran.stderr
    assert [job["state"] for job in desk.jobs("--stopped")] == ["killed", "killed"]


def test_without_an_answer_nothing_is_stopped(desk: Desk) -> None:
    two_sleepers(desk)
    assert "remote-tool job-kill --all --yes" in desk.refuses("job-kill", "--all", status=2)
    assert "No job is selected" in desk.refuses("job-kill", status=2)
    assert "cannot be combined" in desk.refuses("job-kill", "--all", "1", status=2)
    for words, answers in (((), "all\n"), ((), "1\nn\n"), (("--all",), "n\n"), ((), "\n\n")):
        ran = answered(desk, answers, "job-kill", *words)
        assert (ran.returncode, ran.stderr.splitlines()[-1]) == (1, "nothing was stopped")
    assert {job["state"] for job in desk.jobs("--stopped")} == {"running"}
    with Terminal("job-kill", "all", cwd=desk.root) as terminal:
        terminal.until("Stop 1 (sleep 1000), 2 (sleep 1000)? [y/N]: ")
        terminal.type("y\n")
        assert terminal.end() == 0


def test_keys_that_do_not_follow_each_other_are_not_shown_as_a_range(desk: Desk) -> None:
    for command in ("sleep 1000", "true", "sleep 1001"):
        desk.does("job-run", "--cmd", command)
    with Terminal("job-kill", "1,3", cwd=desk.root) as terminal:
        assert terminal.end() == 0
    assert "1, 3: stopped with SIGTERM" in terminal.text


def test_a_key_that_no_job_has_is_not_the_beginning_of_an_id(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "sleep 600")
    job = desk.waits_for(1, "running")
    for word in (job["id"][0], job["id"][:4]):
        assert f"No job '{word}'" in desk.refuses("job-kill", word)
    assert desk.job(1)["state"] == "running"
    desk.does("job-kill", job["id"][:10])
    assert desk.job(1)["state"] == "killed"
