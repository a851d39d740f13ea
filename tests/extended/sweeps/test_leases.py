"""kill -9 at every system call that matters in the life of a job that waits for a GPU.

After each: the GPU is not lost, and nobody shares it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.leases.folders import BASE_VARIABLE
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

from .injection import SWEPT, Call, Fault, Zygote, faults
from .job_case import SUPERVISOR, JobCase
from .sweeping import sweep

if TYPE_CHECKING:
    from pathlib import Path

ENDS = "exit 3"
KILL = "signal=KILL"
STAYS = "exec sleep 60"
# How often a process looks at the queue, and whether it has to end nvidia-smi, depends on how quickly that answers.
_NAMES = [name for name in SWEPT if name not in {"open", "openat", "close", "kill", "pidfd_send_signal"}]


class GpuCase(JobCase):
    """A job for the one GPU of a machine, which it may share with another case."""

    def __init__(self, zygote: Zygote, root: Path, command: str, machine: JobCase | None = None) -> None:
        super().__init__(zygote, root, command, gpu_count=1)
        self.machine = (machine or self).home
        self.leases = self.machine / "leases"
        programs = self.machine / "programs"
        if machine is None:
            self.leases.mkdir()
            put_nvidia_smi(programs, gpu_line(0, load=0, used=1))
        self.environment |= {BASE_VARIABLE: str(self.leases), "PATH": f"{programs}:/usr/bin:/bin"}

    def leased_by(self) -> list[str]:
        """The jobs whose leases are published."""
        return [path.stem for path in self.leases.glob("*/*.lease")]


def calls_of_life(zygote: Zygote, folder: Path) -> list[Call]:
    """Return the calls of a supervisor from when its job's folder is there, without a fault."""
    case = GpuCase(zygote, folder, ENDS)
    try:
        with case.open("start", generation=SUPERVISOR) as fork:
            fork.go()
            fork.wait()
            assert case.settled(stays=False).runs == 1
            assert fork.tracing is not None
            fork.tracing.wait()
            calls = fork.tracing.calls()
    finally:
        case.clean()
    assert case.leased_by() == []
    return calls[next(number for number, call in enumerate(calls) if call.name.startswith("rename")) + 1 :]


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(262)
def test_a_supervisor_that_is_killed_anywhere_leaves_its_gpu_to_the_next_job(zygote: Zygote, tmp_path: Path) -> None:
    def run(fault: Fault) -> bool:
        case = GpuCase(zygote, tmp_path, ENDS)
        after = GpuCase(zygote, tmp_path, STAYS, case)
        try:
            with case.open("start", generation=SUPERVISOR, fault=fault) as fork:
                fork.go()
                fork.wait()
                case.settled(stays=False)
                assert fork.tracing is not None
                fork.tracing.wait()
                hit = fork.tracing.was_hit()
            standing = case.check_standing(case.settled(stays=False))
            assert standing is not None
            assert standing.state in {"lost", "failed"}
            after.call("start")
            assert after.settled(stays=True).runs == 1
            assert after.leased_by() == [after.id]
            assert list(after.leases.glob("*/*.ticket")) == []
        finally:
            case.clean()
            after.clean()
        return hit

    sweep("a job that waits for a GPU, kill -9", faults(calls_of_life(zygote, tmp_path), KILL, _NAMES), run)
