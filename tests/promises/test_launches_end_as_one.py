"""A launch ends as one, also when the laptop is off."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import environments, is_running, processes_of, read_of
from tests.promises.conftest import until

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

# The rest has 15 seconds; a busy machine may take longer, but not until a silent server would count as lost.
BOUND = 90.0
NEVER = 86400
COMMAND = "echo $$ > pid-$NODE_RANK; until [ -e end ]; do sleep 0.1; done; exit $(cat end)"


def launched(desk: Desk, lost_after: int) -> int:
    """Start a launch on both servers that nobody follows; return the pid of the first node's command."""
    desk.configure(lost_after=lost_after)
    desk.does("helper-launch", "--cmd", COMMAND)
    until((desk.there("first") / "pid-0").exists, "the first node runs")
    until((desk.there("second") / "pid-1").exists, "the second node runs")
    desk.waits_for(1, "running")
    return int((desk.there("first") / "pid-0").read_text())


def signal_node(desk: Desk, server: str, number: signal.Signals) -> None:
    """Signal all processes of the project's jobs on a server, supervisors too."""
    home, folder = f"HOME={desk.servers[server].home}\0".encode(), f"{desk.there(server)}/"
    for pid in [pid for pid, environment in environments() if home in environment]:
        with suppress(OSError):
            if any(str(each.readlink()).startswith(folder) for each in Path(f"/proc/{pid}/fd").iterdir()):
                os.kill(pid, number)


def ends_within(desk: Desk, pid: int, seconds: float) -> None:
    until(lambda: not is_running(pid), "the other node is stopped", seconds)
    assert desk.waits_for(1, "failed", "killed")["state"] != "succeeded"


@pytest.mark.row(88, 162)
def test_the_rest_is_stopped_when_a_command_fails(desk_of_two: Desk) -> None:
    desk = desk_of_two
    pid = launched(desk, NEVER)
    (desk.there("second") / "end").write_text("7")
    ends_within(desk, pid, BOUND)
    assert desk.waits_for(2, "failed")["exit_code"] == 7
    assert "second" in desk.job(1)["reason"]


@pytest.mark.row(88)
def test_the_rest_is_stopped_when_all_processes_of_a_node_die(desk_of_two: Desk) -> None:
    desk = desk_of_two
    pid = launched(desk, NEVER)
    signal_node(desk, "second", signal.SIGKILL)
    ends_within(desk, pid, BOUND)
    assert "second" in desk.job(1)["reason"]
    assert desk.waits_for(2, "lost")["exit_code"] is None


@pytest.mark.row(158)
@pytest.mark.slow
def test_a_silent_node_is_waited_for_and_the_launch_goes_on_when_it_is_back(desk_of_two: Desk) -> None:
    desk = desk_of_two
    pid = launched(desk, NEVER)
    signal_node(desk, "second", signal.SIGSTOP)
    # Several heartbeats do not come.
    time.sleep(5)
    assert is_running(pid)
    signal_node(desk, "second", signal.SIGCONT)
    for server in ("first", "second"):
        (desk.there(server) / "end").write_text("0")
    assert desk.waits_for(1, "succeeded", "failed")["state"] == "succeeded"
    assert desk.waits_for(2, "succeeded", "failed")["state"] == "succeeded"


@pytest.mark.row(88)
@pytest.mark.slow
def test_the_rest_is_stopped_when_a_node_stays_silent(desk_of_two: Desk) -> None:
    desk = desk_of_two
    pid = launched(desk, 5)
    signal_node(desk, "second", signal.SIGSTOP)
    try:
        ends_within(desk, pid, BOUND)
        assert "has not responded for 5 s" in desk.job(1)["reason"]
    finally:
        signal_node(desk, "second", signal.SIGKILL)


@pytest.mark.row(87)
def test_the_rest_is_stopped_when_one_server_does_not_start_its_part(desk_of_two: Desk) -> None:
    desk = desk_of_two
    # A file in the place of the folder of its jobs.
    (desk.there("second") / ".jobs").touch()
    said = desk.refuses("helper-launch", "--no-sync", "--cmd", "sleep 1000; sleep 1000", status=3)
    assert "second: node 1 did not start; stopping the rest of the launch" in said
    (desk.there("second") / ".jobs").unlink()
    assert {job["server"]: job["state"] for job in desk.jobs()} == {"first": "killed", "second": "failed"}


def workers_of(job_id: str) -> list[int]:
    """Return the processes of a job to which torchrun has given a rank."""
    return [pid for pid in processes_of(job_id) if b"\0LOCAL_RANK=" in read_of(pid, "environ")]


@pytest.mark.row(89)
@pytest.mark.slow
def test_a_torchrun_that_waits_for_the_others_and_ignores_sigterm_is_killed_after_the_grace(desk_of_two: Desk) -> None:
    desk = desk_of_two
    # The first node is done at once, and its torchrun waits for that of the other one, deaf to SIGTERM.
    (desk.root / "train.py").write_text(
        "import os, time\nopen('done', 'w').close() if os.environ['RANK'] == '0' else time.sleep(1000)\n"
    )
    desk.does("helper-torch-launch", "--nproc-per-node", "1", "--cmd", "train.py")
    first, second = (str(job["id"]) for job in desk.jobs())
    until(lambda: workers_of(second), "the second node works")
    until(lambda: (desk.there("first") / "done").exists() and not workers_of(first), "the first node is done")
    assert processes_of(first)
    began = time.monotonic()
    desk.does("job-kill", "1", "--grace", "1")
    assert time.monotonic() - began < BOUND
    job = desk.job(1)
    assert job["state"] == "killed"
    assert "SIGKILL ended the remaining processes" in job["reason"]
    desk.waits_for(2, "failed", "killed")
    assert [processes_of(first), processes_of(second)] == [[], []]
