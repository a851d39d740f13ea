"""The supervisor is killed, as by the kernel for want of memory, at any time of a job's life."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.figures import record_figure

from .injection import Zygote, wait_until
from .job_case import COMMAND, JobCase
from .sweeping import run_all

if TYPE_CHECKING:
    from remote_tool.agent.states import JobStatus

SEED = int(os.environ.get("TESTS_SEED", "3"))
RUNS = int(os.environ.get("TESTS_EXAMPLES", "100"))
# Forks until it is stopped; a child of it leaves everything but its output.
BUSY = "while :; do (setsid sleep 0.1 &); sleep 0.05; done"


def standing_of(case: JobCase) -> JobStatus:
    standing = case.standing()
    assert standing is not None
    return standing


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(3)
def test_a_supervisor_that_is_killed_at_any_time_leaves_a_lost_job_that_can_be_stopped(
    zygote: Zygote, tmp_path: Path
) -> None:
    chance = random.Random(SEED)

    def run(delay: float) -> None:
        case = JobCase(zygote, tmp_path, BUSY)
        try:
            assert "error" not in case.call("start")
            # What begins the supervisor may end a moment after the answer.
            wait_until(lambda: len(case.reality().ours) == 1, "one supervisor")
            time.sleep(delay)
            case.kill(case.reality().ours)
            # What began it may be ending still, out of sight, and have its lock.
            wait_until(lambda: standing_of(case).state != "running", "its end is seen", 5)
            standing = standing_of(case)
            assert standing.state == "lost"
            if not standing.members:
                # It was killed before it let the command go, which then never ran.
                wait_until(lambda: not case.processes(), "the end of the command's process")
                assert not (case.project / "ran").exists()
                return
            stopped = case.call("stop")
            assert (stopped["state"], stopped["left"]) == ("killed", [])
            wait_until(lambda: not case.processes(), "the end of the job")
        finally:
            case.clean()

    delays = [chance.uniform(0.0, 0.1) for _ in range(RUNS)]
    wrong = run_all(delays, run)
    record_figure("supervisor killed at random times: cases", RUNS)
    record_figure("supervisor killed at random times: failures", len(wrong))
    assert not wrong, "\n".join(wrong[:3])


@pytest.mark.row(3, 12)
def test_a_command_that_has_just_been_let_go_is_found_without_its_supervisor(zygote: Zygote, tmp_path: Path) -> None:
    case = JobCase(zygote, tmp_path, "exec sleep 60")
    try:
        with case.open("start", generation=COMMAND, traced=False) as fork:
            # The command stands before its first call; its supervisor has let it go, and waits to hear from it.
            supervisor = _parent(fork.target)
            wait_until(lambda: "pipe_read" in Path(f"/proc/{supervisor}/wchan").read_text(), "the supervisor's wait")
            case.kill((supervisor,))
            standing = case.standing()
            assert standing is not None
            assert [process.pid for process in standing.members] == [fork.target]
            stopped = case.call("stop")
            assert (stopped["state"], stopped["left"]) == ("killed", [])
            fork.go()
            fork.wait()
        assert not case.processes()
        assert not case.lines()
    finally:
        case.clean()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
