"""Which jobs a stop is about, and who is asked first."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running, processes_of, read_of
from tests.project import make_project
from tests.promises.conftest import PATIENCE, Desk, until
from tests.terminal import Terminal

if TYPE_CHECKING:
    from tests.sshd import TestServer


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


TRAPS = "trap 'echo INT; exit 3' INT; trap 'echo TERM; exit 4' TERM; echo ready; while :; do sleep 0.1; done"


def stopped(desk: Desk, key: int, *words: str) -> str:
    """Stop a job, and return what it said about that."""
    until(lambda: "ready" in desk.does("job-tail", str(key), "--no-follow"), "the traps")
    desk.does("job-kill", str(key), *words)
    return desk.does("job-tail", str(key), "--no-follow").split("ready\n")[1]


def test_a_stop_begins_as_configured_and_a_rerun_as_recorded(desk: Desk) -> None:
    desk.configure(stop_signal="SIGINT")
    desk.does("job-run", "--cmd", TRAPS)
    assert stopped(desk, 1) == "INT\n"
    assert "stopped with SIGINT" in desk.does("job-show", "1")
    desk.does("job-run", "--cmd", TRAPS, "--stop-signal", "SIGTERM")
    assert stopped(desk, 2) == "TERM\n"
    desk.configure(stop_signal="SIGUSR1")
    for key, said in ((1, "INT\n"), (2, "TERM\n")):
        desk.does("job-rerun", str(key))
        assert stopped(desk, key + 2) == said
    desk.does("job-rerun", "2")
    assert stopped(desk, 5, "--signal", "SIGINT") == "INT\n"


def test_a_time_limit_begins_with_the_signal_of_the_job(desk: Desk) -> None:
    ran = desk.tries(
        *("job-run", "--follow", "--max-duration", "1s", "--stop-signal", "SIGINT", "--cmd", TRAPS),
    )
    assert ran.stdout == "ready\nINT\n"


@pytest.mark.parametrize("signal_name", ["INT", "2", "SIGNONE", "SIGRTMIN+3", "sigint", ""])
def test_a_signal_that_does_not_exist_is_refused_before_anything_starts(desk: Desk, signal_name: str) -> None:
    message = desk.refuses("job-run", "--cmd", "true", "--stop-signal", signal_name, status=2)
    assert f"--stop-signal must be a signal, such as SIGINT, found {signal_name!r}" in message
    assert desk.jobs("--stopped") == []


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


def test_a_stop_at_a_new_address_that_is_not_prepared_is_one_sentence(desk_of_two: Desk) -> None:
    servers = desk_of_two.settings()["servers"]
    desk_of_two.does("job-run", "--server", "first", "--cmd", "sleep 1000")
    job = desk_of_two.job(1)
    # The folder of another project's name is that of an unprepared machine.
    moved = {"first": {**servers["first"], "port": servers["second"]["port"]}}
    (desk_of_two.there("second")).rename(desk_of_two.there("second").with_name(f"away-{job['id']}"))
    desk_of_two.configure(servers=moved)
    for words in (("job-kill", "1"), ("job-list",), ("job-tail", "1", "--no-follow")):
        said = desk_of_two.refuses(*words)
        assert said.count("first is not prepared") == 1, said
        assert "so its jobs will be stopped when it is again" in said, said
        assert "remote-tool prepare --server first" in said
        assert "hostname:" in said
        assert not any(text in said for text in ("cannot be stopped", "when the server answers again"))
    assert processes_of(job["id"])
    desk_of_two.configure(servers=servers)
    assert "job 1 has now been stopped" in desk_of_two.tries("job-list").stderr
    assert desk_of_two.job(1)["state"] == "killed"


def test_a_stop_of_a_job_that_a_new_address_does_not_have_says_what_to_do(desk_of_two: Desk) -> None:
    servers = desk_of_two.settings()["servers"]
    desk_of_two.does("job-run", "--server", "first", "--cmd", "sleep 1000")
    job = desk_of_two.job(1)
    # On one machine, the other server would find its processes.
    for pid in processes_of(job["id"]):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not processes_of(job["id"]), "its processes have ended")
    desk_of_two.configure(servers={"first": {**servers["first"], "port": 1}})
    desk_of_two.refuses("job-kill", "1")
    desk_of_two.configure(servers={"first": {**servers["first"], "port": servers["second"]["port"]}})
    for words in (("job-list",), ("job-kill", "1")):
        said = desk_of_two.tries(*words).stderr
        assert "job 1: there is no such job on this server" in said, said
        assert "hostname: of first" in said, said
        assert "remote-tool clean --job 1" in said, said
        assert "ps aux" not in said
    desk_of_two.does("clean", "--job", "1", "--yes")
    assert desk_of_two.jobs() == []


def test_a_job_of_a_server_that_has_left_the_configuration_is_stopped_after_its_return(desk_of_two: Desk) -> None:
    servers = desk_of_two.settings()["servers"]
    desk_of_two.does("job-run", "--server", "first", "--cmd", "sleep 1000")
    desk_of_two.configure(servers={"second": servers["second"]})
    said = desk_of_two.refuses("job-kill", "1")
    assert "first is no longer in the configuration, so its jobs cannot be stopped" in said
    assert "servers: in .remote/configs.yaml" in said
    assert "will be stopped" not in said
    desk_of_two.configure(servers=servers)
    desk_of_two.does("job-kill", "1")


def test_a_key_that_no_job_has_is_not_the_beginning_of_an_id(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "sleep 600")
    job = desk.waits_for(1, "running")
    for word in (job["id"][0], job["id"][:4]):
        assert f"No job '{word}'" in desk.refuses("job-kill", word)
    assert desk.job(1)["state"] == "running"
    desk.does("job-kill", job["id"][:10])
    assert desk.job(1)["state"] == "killed"


@pytest.mark.row(7)
def test_a_stopped_job_with_a_terminal_says_which_signal_ended_it(desk: Desk) -> None:
    desk.does("job-run", "--server", "first", "--tty", "--cmd", "sleep 1000")
    leader = desk.job(1)["pid"]
    # The first process of its terminal is slow to tell how the command ended.
    os.kill(leader, signal.SIGSTOP)
    with desk.runs_meanwhile("job-kill", "1") as stopping:
        until(lambda: not _children(leader), "the command has ended")
        os.kill(leader, signal.SIGCONT)
        assert stopping.wait(PATIENCE) == 0
    job = desk.job(1)
    assert (job["state"], job["signal"], job["reason"]) == ("killed", "SIGTERM", "stopped with SIGTERM")


def _children(pid: int) -> list[int]:
    """Return the children of a process that have not ended."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found if b") Z " not in read_of(int(each), "stat")]


@pytest.mark.row(20)
def test_kept_shells_of_two_projects_are_two_shells(
    desk: Desk, two_machines: dict[str, TestServer], tmp_path: Path
) -> None:
    name = f"other-{os.urandom(4).hex()}"
    other = Desk(make_project(tmp_path / name, [two_machines["first"]], name=name), desk.servers)
    other.does("prepare")
    words = ("shell", "--server", "first", "--keep", f"work-{name}")
    with Terminal(*words, cwd=desk.root) as one, Terminal(*words, cwd=other.root) as two:
        for terminal in (one, two):
            terminal.until("#" if os.geteuid() == 0 else "$")
        assert desk.job(1)["id"] != other.job(1)["id"]
        desk.does("job-kill", "1")
        assert one.end() == 128 + signal.SIGHUP
        assert other.job(1)["state"] == "running"
        two.type("exit 9\r")
        assert two.end() == 9


@pytest.mark.row(135)
@pytest.mark.parametrize("folder", ["of the job", "of all jobs"])
def test_a_job_whose_folder_was_removed_is_ended_completely(desk: Desk, folder: str) -> None:
    desk.does("job-run", "--cmd", "echo $$ > pid; exec sleep 1000")
    until(lambda: (desk.there() / "pid").exists() and (desk.there() / "pid").read_text(), "the job runs")
    pid, jobs = int((desk.there() / "pid").read_text()), desk.there() / ".jobs"
    job_id = desk.job(1)["id"]
    shutil.rmtree(jobs / job_id if folder == "of the job" else jobs)
    assert is_running(pid)
    desk.tries("job-kill", "1", "--yes")
    until(lambda: not is_running(pid), "its command has ended")
    until(lambda: job_id not in desk.does("job-kill", "--orphans", "--json"), "nothing of it is left")


@pytest.mark.row(273)
def test_a_queued_job_that_is_stopped_never_starts(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "sleep 1000")
    desk.does("job-run", "--after-any", "1", "--cmd", "touch began")
    desk.waits_for(2, "queued")
    desk.does("job-kill", "2", "--yes")
    job = desk.job(2)
    assert job["state"] == "killed"
    assert "before its command started" in job["reason"]
    desk.does("job-kill", "1", "--yes")
    desk.does("job-run", "--after-any", "1", "--after-any", "2", "--follow", "--cmd", "true")
    assert not (desk.there() / "began").exists()


@pytest.mark.row(284)
def test_a_job_that_was_stopped_is_not_tried_again(desk: Desk) -> None:
    desk.does("job-run", "--retries", "3", "--cmd", "echo attempt >> attempts; sleep 1000")
    until((desk.there() / "attempts").exists, "the first attempt")
    desk.does("job-kill", "1", "--yes")
    assert (desk.job(1)["state"], desk.job(1)["reason"]) == ("killed", "stopped with SIGTERM")
    assert (desk.there() / "attempts").read_text() == "attempt\n"


@pytest.mark.row(269)
def test_a_job_that_waits_for_one_that_fails_does_not_start(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "until [ -e go ]; do sleep 0.05; done; exit 3")
    desk.does("job-run", "--after", "1", "--cmd", "touch began")
    desk.does("job-run", "--after-any", "1", "--cmd", "touch went-on")
    (desk.there() / "go").touch()
    assert "job 1" in desk.waits_for(2, "failed")["reason"]
    desk.waits_for(3, "succeeded")
    assert [(desk.there() / name).exists() for name in ("began", "went-on")] == [False, True]
