"""Jobs that wait for GPUs and for other jobs, on a server of their own with a stand-in for nvidia-smi."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.conftest import wait_until
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.conftest import PretendServer

WAITS = "until [ -e go ]; do sleep 0.05; done; echo $CUDA_VISIBLE_DEVICES"


class GpuServer:
    """A server with GPUs, of which tests choose who uses them."""

    def __init__(self, server: PretendServer) -> None:
        self.server = server
        self.programs = server.home / "programs"

    def put_gpus(self, *lines: str, **how: str) -> None:
        put_nvidia_smi(self.programs, *lines, **how)

    def start(self, command: str, gpus: int | None = 1, **fields: Any) -> tuple[str, str]:
        """Start a job that waits; return its id and the state in the answer."""
        job = self.server.new_job(command, gpu_count=gpus, **fields)
        login = {"PATH": f"{self.programs}:{os.environ['PATH']}"}
        with self.server.open("start", jobs=[job], login=login) as call:
            (frame,) = call.rest()
        (answer,) = frame.header["jobs"]
        assert "error" not in answer, answer
        return job["id"], str(answer.get("state"))

    def state(self, job_id: str) -> str:
        return str(self.server.status(job_id)["state"])

    def wait_for_state(self, job_id: str, state: str) -> None:
        wait_until(lambda: self.state(job_id) == state, f"{state} of {job_id}")

    def leases(self) -> list[Path]:
        return list(self.server.leases.glob("*/*.lease"))


@pytest.fixture
def gpus(server: PretendServer) -> GpuServer:
    found = GpuServer(server)
    found.put_gpus(gpu_line(0, load=0, used=1))
    return found


def test_of_two_jobs_for_one_gpu_the_second_waits_for_the_end_of_the_first(gpus: GpuServer) -> None:
    first, state = gpus.start(WAITS)
    assert state == "None"
    assert gpus.server.record(first, "started")["leased_gpus"] == ["GPU-0"]
    second, state = gpus.start("echo $CUDA_VISIBLE_DEVICES")
    assert state == "queued"
    status = gpus.server.status(second)
    assert status["state"] == "queued"
    assert "1st of 1 for 1 GPU; 1 is leased by" in status["reason"]
    (gpus.server.project / "go").touch()
    ended = gpus.server.wait(first, second)
    assert [ended[job]["exit_code"] for job in (first, second)] == [0, 0]
    assert gpus.server.output(first) == gpus.server.output(second) == "GPU-0\n"
    wait_until(lambda: not gpus.leases(), "the end of the leases")
