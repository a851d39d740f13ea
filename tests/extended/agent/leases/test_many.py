"""200 jobs that want 8 GPUs, some of whose supervisors are killed while they wait and while they run."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.extended.agent.conftest import wait_until
from tests.extended.agent.leases.test_jobs import GpuServer
from tests.figures import record_figure
from tests.stand_in_gpus import gpu_line

if TYPE_CHECKING:
    from tests.extended.agent.conftest import PretendServer

COUNT, GPUS, KILLED = 200, 8, 20
COMMAND = 'echo "begin $CUDA_VISIBLE_DEVICES" >> log; sleep 0.1; echo "end $CUDA_VISIBLE_DEVICES" >> log'


@pytest.mark.slow
@pytest.mark.row(261)
def test_200_jobs_share_8_gpus_though_supervisors_are_killed(server: PretendServer) -> None:
    gpus = GpuServer(server)
    gpus.put_gpus(*(gpu_line(index, load=0, used=1) for index in range(GPUS)))
    chance = random.Random(16)
    jobs = [server.new_job(COMMAND, gpu_count=chance.choice([1, 1, 1, 1, 1, 2, 3, 8])) for _ in range(COUNT)]
    login = {"PATH": f"{gpus.programs}:{os.environ['PATH']}"}
    with server.open("start", jobs=jobs, login=login) as call:
        call.rest()
    killed = set()
    for job_id in chance.sample(server.ids, KILLED):
        wait_until(lambda job_id=job_id: (server.jobs / job_id / "queued").exists(), "a supervisor")  # type: ignore[misc]
        with suppress(ProcessLookupError):
            os.kill(gpus.queued_supervisor(job_id), signal.SIGKILL)
            killed.add(job_id)
    rest = [job_id for job_id in server.ids if job_id not in killed]
    wait_until(lambda: all((server.jobs / job_id / "ended.json").exists() for job_id in rest), "the ends", 400)
    held: set[str] = set()
    for line in (server.project / "log").read_text().splitlines():
        word, _, names = line.partition(" ")
        uuids = set(names.split(","))
        if word == "begin":
            assert not held & uuids
            held |= uuids
        else:
            held -= uuids
    assert all(server.record(job_id, "ended")["exit_code"] == 0 for job_id in rest)
    record_figure("jobs that share 8 GPUs: jobs, supervisors killed, GPUs leased twice", f"{COUNT}, {len(killed)}, 0")
