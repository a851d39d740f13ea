"""What a server runs once nothing of its user is left there: once, after a wait, and only if nothing comes."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import pytest

from remote_tool.agent.proc.processes import read_process
from tests.extended.agent.conftest import PretendServer, wait_until

OUTPUT = "ran"


def on_empty(
    after: float = 0.3, command: str = f'echo "$REMOTE_TOOL_JOB_ID" >> {OUTPUT}', **more: Any
) -> dict[str, Any]:
    return {"command": command, "after": after, **more}


def log_of(server: PretendServer, job_id: str) -> str:
    path = server.jobs / job_id / "on-empty.log"
    return path.read_text() if path.exists() else ""


def ran(server: PretendServer) -> list[str]:
    """Return the jobs whose supervisors have run the command."""
    path = server.project / OUTPUT
    return path.read_text().split() if path.exists() else []


def leave(server: PretendServer, *jobs: str) -> None:
    """Wait until the supervisors of ended jobs have gone."""
    for job in jobs:
        pid = server.supervisor(job)
        wait_until(partial(_has_gone, pid), f"the end of the supervisor of {job}")


@pytest.mark.row(287)
def test_the_last_job_of_a_server_runs_it(server: PretendServer) -> None:
    job = server.start("true", on_empty=on_empty(secrets={"TOKEN": "very secret token"}, command='echo "$TOKEN"'))
    wait_until(lambda: "the on_empty command ended" in log_of(server, job), "the command")
    assert log_of(server, job) == (
        "remote-tool: no job is left: on_empty runs in 0.3 s\n"
        "very secret token\nremote-tool: the on_empty command ended with exit code 0\n"
    )
    files = [path for path in (server.jobs / job).rglob("*") if path.is_file() and path.name != "on-empty.log"]
    assert [path for path in files if b"very secret" in path.read_bytes()] == []
    leave(server, job)


@pytest.mark.row(287)
def test_it_waits_for_jobs_without_it(server: PretendServer) -> None:
    other = server.start("exec sleep 600")
    job = server.start("true", on_empty=on_empty())
    server.wait(job)
    wait_until(lambda: _waits(server, job), "the waiter")
    assert log_of(server, job) == ""
    server.stop(other)
    wait_until(lambda: ran(server) == [job], "the command")
    leave(server, job)


@pytest.mark.row(288)
def test_a_job_that_comes_meanwhile_decides_itself(server: PretendServer) -> None:
    first = server.start("true", on_empty=on_empty(after=600))
    wait_until(lambda: "no job is left" in log_of(server, first), "the wait")
    second = server.start("true")
    leave(server, first)
    server.wait(second)
    assert log_of(server, first).endswith(
        "remote-tool: on_empty does not run: another job has come, or this was stopped\n"
    )
    assert ran(server) == []


@pytest.mark.row(289)
def test_of_several_that_end_together_one_runs_it(server: PretendServer) -> None:
    jobs = [server.new_job("until test -e go; do sleep 0.01; done", on_empty=on_empty()) for _ in range(8)]
    server.call("start", jobs=jobs)
    ids = [job["id"] for job in jobs]
    for job in ids:
        wait_until((server.jobs / job / "started.json").exists, "the start")
    (server.project / "go").touch()
    leave(server, *ids)
    assert len(ran(server)) == 1


def test_one_whose_supervisor_is_killed_leaves_it_to_the_others(server: PretendServer) -> None:
    last = server.start("until test -e go; do sleep 0.01; done", on_empty=on_empty())
    first = server.start("true", on_empty=on_empty(after=600))
    wait_until(lambda: _waits(server, first), "the waiter")
    os.kill(server.supervisor(first), signal.SIGKILL)
    (server.project / "go").touch()
    wait_until(lambda: ran(server) == [last], "the command")
    leave(server, last)


def test_a_command_that_is_connected_counts(server: PretendServer) -> None:
    with server.open("shell", command="exec sleep 600", environment={}) as shell:
        job = server.start("true", on_empty=on_empty())
        wait_until(lambda: _waits(server, job), "the waiter")
        assert shell.process.poll() is None
        assert ran(server) == []
        shell.process.kill()
    wait_until(lambda: ran(server) == [job], "the command")
    leave(server, job)


@pytest.mark.parametrize(
    "value", ["true", {"command": "true"}, {"command": 3, "after": 1}, {"command": "true", "after": -1}]
)
def test_a_malformed_one_starts_nothing(server: PretendServer, value: object) -> None:
    assert server.call("start", jobs=[server.new_job("true", on_empty=value)])["begun"] is False


def _waits(server: PretendServer, job: str) -> bool:
    """Return whether the supervisor of a job has begun to wait."""
    return (server.jobs / job / "on-empty.log").exists()


def _has_gone(pid: int) -> bool:
    found = read_process(pid)
    return found is None or not found.is_alive
