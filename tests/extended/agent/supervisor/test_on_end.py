"""What a server runs when a job has ended: once, bounded, and without effect on the job."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.proc.processes import read_process
from tests.extended.agent.conftest import PretendServer, wait_until

if TYPE_CHECKING:
    from pathlib import Path

TELL = 'env | grep ^REMOTE_TOOL_JOB_ | sort; echo "$TOKEN"'


def log_of(server: PretendServer, job_id: str) -> str:
    """Return what the command printed, once it has ended."""
    path = server.jobs / job_id / "on-end.log"
    wait_until(lambda: path.exists() and "remote-tool: the on_end command " in path.read_text(), "its end")
    return path.read_text()


@pytest.mark.row(215)
def test_the_command_gets_how_the_job_ended(server: PretendServer) -> None:
    on_end = {"command": TELL, "secrets": {"TOKEN": "very secret token"}}
    job = server.start("echo first; echo last; exit 3", on_end=on_end, name="digits")
    assert server.wait(job)[job]["exit_code"] == 3
    lines = log_of(server, job).splitlines()
    duration = next(line for line in lines if line.startswith("REMOTE_TOOL_JOB_DURATION="))
    assert duration.partition("=")[2].isdigit()
    assert [line for line in lines if line != duration] == [
        "REMOTE_TOOL_JOB_EXIT_CODE=3",
        f"REMOTE_TOOL_JOB_ID={job}",
        "REMOTE_TOOL_JOB_LAST_LINES=first",
        "REMOTE_TOOL_JOB_NAME=digits",
        "REMOTE_TOOL_JOB_REASON=",
        "REMOTE_TOOL_JOB_STATE=failed",
        "very secret token",
        "remote-tool: the on_end command ended with exit code 0",
    ]


@pytest.mark.row(216)
def test_its_secrets_are_no_variable_of_the_job_and_in_no_file(server: PretendServer) -> None:
    job = server.start("env", on_end={"command": "true", "secrets": {"TOKEN": "very secret token"}})
    server.wait(job)
    log_of(server, job)
    files = [path for path in (server.jobs / job).rglob("*") if path.is_file()]
    assert [path for path in files if b"very secret" in path.read_bytes()] == []


@pytest.mark.row(217)
def test_its_failure_changes_nothing_and_leaves_no_process(server: PretendServer) -> None:
    job = server.start("true", on_end={"command": "sleep 600 >/dev/null 2>&1 & yes | head -c 200000; exit 7"})
    supervisor = server.supervisor(job)
    assert server.wait(job)[job]["exit_code"] == 0
    text = log_of(server, job)
    assert text.endswith("\nremote-tool: the on_end command ended with exit code 7\n")
    assert 64 * 1024 <= len(text) < 66 * 1024
    wait_until(lambda: server.members(job) == [] and not _runs(supervisor), "the end of what it left")
    assert server.status(job)["state"] == "succeeded"


@pytest.mark.row(217)
def test_one_that_does_not_end_is_given_up(tmp_path: Path, installed: Path) -> None:
    impatient = tmp_path / "impatient"
    shutil.copytree(installed, impatient)
    limits = impatient / "remote_tool" / "protocol" / "limits.py"
    limits.write_text(limits.read_text().replace("LONGEST_ON_END = 60.0", "LONGEST_ON_END = 0.5"))
    server = PretendServer(tmp_path / "home", impatient)
    job = server.start("exit 2", on_end={"command": "echo begun; sleep 600"})
    assert log_of(server, job) in {
        "begun\nremote-tool: the on_end command did not end within 0 s\n",
        # A machine that is busy for half a second.
        "remote-tool: the on_end command did not end within 0 s\n",
    }
    wait_until(lambda: server.members(job) == [], "its end")
    assert server.status(job)["state"] == "failed"
    server.clean()


def test_a_killed_job_is_reported_as_killed(server: PretendServer) -> None:
    job = server.start("exec sleep 600", on_end={"command": 'echo "$REMOTE_TOOL_JOB_STATE,$REMOTE_TOOL_JOB_EXIT_CODE"'})
    server.stop(job)
    assert log_of(server, job).startswith("killed,\n")


@pytest.mark.parametrize("value", ["true", {"command": 3}, {"command": "true", "secrets": {"REMOTE_TOOL_JOB_ID": "x"}}])
def test_a_malformed_one_starts_nothing(server: PretendServer, value: object) -> None:
    answer = server.call("start", jobs=[server.new_job("true", on_end=value)])
    assert answer["begun"] is False


def _runs(pid: int) -> bool:
    found = read_process(pid)
    return found is not None and found.is_alive
