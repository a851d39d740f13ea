"""A failed command runs again: in the same job, with its number, and after nothing of the attempt before is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.extended.agent.conftest import PretendServer, wait_until

if TYPE_CHECKING:
    from pathlib import Path

FAIL_TWICE = 'echo "attempt $REMOTE_TOOL_ATTEMPT" >> attempts; test $REMOTE_TOOL_ATTEMPT = 3 || exit 75'


@pytest.mark.row(281)
def test_a_failed_command_runs_again_in_the_same_folder(server: PretendServer) -> None:
    job = server.start(FAIL_TWICE, retries=2)
    ended = server.wait(job)[job]
    assert (ended["exit_code"], ended["reason"]) == (0, "attempt 3 of 3, after exit code 75")
    assert (server.project / "attempts").read_text() == "attempt 1\nattempt 2\nattempt 3\n"
    assert server.record(job, "started")["failed_attempts"] == ["exit code 75", "exit code 75"]
    assert server.output(job, "err") == "".join(
        f"remote-tool: attempt {number} of 3, after exit code 75\n" for number in (2, 3)
    )


@pytest.mark.row(281)
def test_the_last_attempts_end_is_the_jobs(server: PretendServer) -> None:
    job = server.start("exit $((10 + REMOTE_TOOL_ATTEMPT))", retries=1)
    ended = server.wait(job)[job]
    assert (ended["exit_code"], ended["reason"]) == (12, "attempt 2 of 2, after exit code 11")
    assert server.status(job)["state"] == "failed"


@pytest.mark.row(282)
@pytest.mark.parametrize(
    ("retry_on", "command", "attempts"),
    [
        (["75"], "exit 75", 2),
        (["75"], "exit 76", 1),
        (["SIGKILL"], "kill -KILL $$", 2),
        (["SIGKILL"], "sh -c 'kill -KILL $$'; exit $?", 2),
        (["SIGKILL", "1"], "kill -TERM $$", 1),
        ([], "exit 0", 1),
    ],
)
def test_only_what_is_listed_runs_again(
    server: PretendServer, retry_on: list[str], command: str, attempts: int
) -> None:
    job = server.start(f"echo x >> attempts; {command}", retries=1, retry_on=retry_on)
    server.wait(job)
    assert (server.project / "attempts").read_text() == "x\n" * attempts


@pytest.mark.row(283)
def test_nothing_of_an_attempt_is_left_when_the_next_begins(server: PretendServer) -> None:
    """The next attempt finds none of the processes of the one before, even of those that ignore SIGTERM."""
    first = "(trap '' TERM; echo $BASHPID > left; exec sleep 600) & until test -s left; do sleep 0.01; done; exit 1"
    next_one = 'if kill -0 "$(cat left)"; then exit 5; else exit 0; fi'
    job = server.start(f"if test $REMOTE_TOOL_ATTEMPT = 1; then {first}; else {next_one}; fi", retries=1)
    assert server.wait(job)[job]["exit_code"] == 0


@pytest.mark.row(284)
def test_a_stop_is_no_failure(server: PretendServer) -> None:
    job = server.start("echo x >> attempts; exec sleep 600", retries=5)
    path = server.project / "attempts"
    wait_until(lambda: path.exists() and path.read_text() == "x\n", "the command")
    server.stop(job)
    assert server.wait(job)[job]["killed"] is True
    assert (server.project / "attempts").read_text() == "x\n"


@pytest.mark.row(284)
def test_a_stop_during_a_later_attempt_stops_the_job(server: PretendServer) -> None:
    job = server.start("echo x >> attempts; test $REMOTE_TOOL_ATTEMPT = 2 || exit 1; exec sleep 600", retries=5)
    wait_until(lambda: _lines(server.project / "attempts") == 2, "the second attempt")
    wait_until(lambda: server.status(job)["reason"] == "attempt 2 of 6, after exit code 1", "its state")
    server.stop(job)
    ended = server.wait(job)[job]
    assert (ended["killed"], ended["reason"]) == (True, "attempt 2 of 6, after exit code 1; stopped with SIGTERM")


def test_it_has_run_since_its_first_attempt(server: PretendServer) -> None:
    job = server.start(
        "test $REMOTE_TOOL_ATTEMPT = 2 && exec sleep 600; until test -e go; do sleep 0.01; done; exit 1", retries=1
    )
    first = server.record(job, "started")
    (server.project / "go").touch()
    wait_until(lambda: server.record(job, "started")["pid"] != first["pid"], "the second attempt")
    assert server.record(job, "started")["started_at"] == first["started_at"]


def test_without_retries_there_is_no_number(server: PretendServer) -> None:
    job = server.start('echo "<$REMOTE_TOOL_ATTEMPT>"; exit 1')
    server.wait(job)
    assert server.output(job) == "<>\n"


def test_the_setup_script_runs_before_each_attempt(server: PretendServer) -> None:
    setup = "echo setup >> order; test $REMOTE_TOOL_ATTEMPT = 2"
    job = server.start("echo command >> order", retries=2, setup=setup)
    ended = server.wait(job)[job]
    assert (ended["exit_code"], (server.project / "order").read_text()) == (0, "setup\nsetup\ncommand\n")


def test_behind_a_launch_command_the_number_is_set_inside(server: PretendServer) -> None:
    job = server.start(FAIL_TWICE, retries=2, entry={"launch": ["env", "A=$PATH"], "activate": False})
    assert server.wait(job)[job]["exit_code"] == 0
    assert (server.project / "attempts").read_text() == "attempt 1\nattempt 2\nattempt 3\n"


@pytest.mark.parametrize("fields", [{"terminal": "command"}, {"retries": 101}, {"retry_on": [75]}])
def test_what_cannot_run_again_is_not_started(server: PretendServer, fields: dict[str, object]) -> None:
    answer = server.call("start", jobs=[server.new_job("true", **{"retries": 1, **fields})])
    assert answer["begun"] is False


def test_the_oldest_python_runs_a_command_again(oldest: PretendServer) -> None:
    job = oldest.start(FAIL_TWICE, retries=2)
    assert oldest.wait(job)[job]["exit_code"] == 0


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0
