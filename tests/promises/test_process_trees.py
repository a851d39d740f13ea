"""When a command ends, every process that it started ends too."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running
from tests.promises.conftest import until
from tests.stand_in_gpus import gpu_line, put_nvidia_smi, remove_in_use, set_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.promises.conftest import Desk

# A plain child, one in a session of its own without output here, one whose parent has ended, and one with all of this
# and nothing of the job's environment.
LEAVES = """
cd {folder}
sleep 1000 & echo $! >> pids
setsid sleep 1000 >/dev/null 2>&1 & echo $! >> pids
(nohup sleep 1000 >/dev/null 2>&1 & echo $! >> pids)
(env -i setsid sleep 1000 >/dev/null 2>&1 & echo $! >> pids)
exit 3
"""


@pytest.mark.row(16)
@pytest.mark.parametrize("words", [("run",), ("job-run", "--follow"), ("job-run", "--frozen", "--follow")])
def test_what_a_command_left_running_ends_with_it(desk: Desk, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert desk.tries(*words, "--cmd", LEAVES.format(folder=tmp_path)).returncode == 3
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 4
    until(lambda: not any(is_running(pid) for pid in pids), "all processes have ended", 30)


@pytest.mark.row(283)
def test_before_a_command_runs_again_nothing_of_its_last_attempt_is_left(desk: Desk) -> None:
    left = "trap '' TERM HUP; setsid sh -c 'echo $$ > left; exec sleep 1000' & until [ -s left ]; do sleep 0.05; done"
    again = "kill -0 $(cat left) 2>/dev/null && echo left; exit 0"
    command = f'if [ "$REMOTE_TOOL_ATTEMPT" = 1 ]; then {left}; exit 75; else {again}; fi'
    desk.does("job-run", "--retries", "1", "--follow", "--cmd", command)
    assert [line for line in desk.does("job-tail", "1").splitlines() if "remote-tool: " not in line] == []


@pytest.fixture
def loader(desk: Desk, tmp_path: Path) -> Iterator[Path]:
    """A file for the pid of a data loader, which uses the only GPU of the server for as long as it runs."""
    pid, folder = tmp_path / "loader", desk.servers["first"].programs
    pid.touch()
    (tmp_path / "in-use").mkdir()
    set_gpus(tmp_path / "in-use", gpu_line(0))
    uses = f'kill -0 "$(cat {pid})" 2>/dev/null && here={tmp_path}/in-use'
    put_nvidia_smi(folder, gpu_line(0, load=0, used=1), otherwise=uses)
    # Questions follow each other in a sixth of this.
    desk.configure(idle_after=1)
    yield pid
    # The server is shared.
    remove_in_use(folder)


@pytest.mark.row(17)
def test_a_data_loader_that_a_crash_has_left_ends_with_its_job_and_keeps_no_gpu(desk: Desk, loader: Path) -> None:
    leaves = f"setsid sh -c 'echo $$ > {loader}; exec sleep 1000' >/dev/null 2>&1 &"
    crash = f"{leaves} until [ -s {loader} ]; do sleep 0.05; done; kill -KILL $$"
    assert desk.tries("job-run", "--gpus", "1", "--follow", "--cmd", crash).returncode == 128 + 9
    assert not is_running(int(loader.read_text()))
    assert "1 process left behind by the command had to be ended" in desk.job(1)["reason"]
    desk.does("job-run", "--gpus", "1", "--follow", "--cmd", "true")


@pytest.mark.row(4)
def test_a_process_that_has_got_the_pid_of_a_lost_job_is_left_alone(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "exec sleep 1000")
    desk.end_all("first")
    (record,) = (desk.there() / ".jobs").glob("*/started.json")
    started = json.loads(record.read_text())
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            for name in ("command", "supervisor"):
                started[name]["pid"] = other.pid
            record.write_text(json.dumps(started))
            assert "lost" in desk.does("job-kill", "1", "--signal", "SIGKILL", "--yes")
            assert desk.job(1)["state"] == "lost"
            assert other.poll() is None
        finally:
            other.kill()


def test_a_stop_that_lasts_says_what_it_waits_for(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "trap '' TERM; while :; do touch deaf; sleep 0.1; done")
    until((desk.there() / "deaf").exists, "it ignores SIGTERM")
    assert "first: still waiting for job 1 to end" in desk.tries("job-kill", "1", "--grace", "6").stderr
    assert desk.job(1)["state"] == "killed"
