"""The programs that contenders and their jobs run."""

from __future__ import annotations

# Arguments: how many on each server, the command.
START_JOBS = """
import sys
from remote_tool import StartRequest, Workspace
workspace = Workspace.find()
workspace.start_jobs(*[StartRequest(sys.argv[2], sync=False)] * int(sys.argv[1]))
"""

# Arguments: how many on each server, the command, the servers. Its jobs are no shell: sh is.
LABML_JOBS = """
import sys, shlex
from labml_remote.job import JOBS
for server in sys.argv[3:]:
    for _ in range(int(sys.argv[1])):
        JOBS.create(server, "sh -c " + shlex.quote(sys.argv[2]), {}, ["bench"]).start()
"""

# Arguments: a private key, a user, the addresses.
PARALLEL_SSH = """
import sys
from pssh.clients import ParallelSSHClient
client = ParallelSSHClient(sys.argv[3:], user=sys.argv[2], pkey=sys.argv[1], pool_size=64)
client.join(client.run_command("true"))
"""

# Arguments: how many jobs that have ended.
FILL_REGISTRY = """
import os
import sys
from dataclasses import replace
from remote_tool import JobState, Workspace
from remote_tool.jobs.job import JobSpec, new_job_id
from remote_tool.jobs.registry import Registry
# Nothing is lost if the power is.
os.fsync = lambda _: None
config = Workspace.find().config
registry = Registry(config.local.jobs)
server = next(iter(config.servers))
jobs = registry.create(
    JobSpec(id=new_job_id(), server=server, command=f"python train.py --lr {number}", tags=("sweep",))
    for number in range(int(sys.argv[1]))
)
ended = {"exit_code": 0, "started_at": 1.0, "ended_at": 2.0, "logs_complete": True}
registry.update(replace(job, state=JobState.SUCCEEDED, **ended) for job in jobs)
"""

JOIN = """
import os
import pathlib
import torch.distributed as dist
dist.init_process_group("gloo")
pathlib.Path("joined-" + os.environ["RANK"]).touch()
dist.barrier()
dist.destroy_process_group()
"""

# Argument: how many lines. Each says when it was written, in nanoseconds; the pauses are no multiple of anybody's.
SPEAK = """
import random, sys, time
time.sleep(1)
for _ in range(int(sys.argv[1])):
    time.sleep(random.uniform(0.01, 0.04))
    print(time.time_ns(), flush=True)
print("end", flush=True)
time.sleep(1)
"""

# Argument: how many megabytes, of which it writes a hundred in a second when nobody holds it up.
PRINT = """
import sys, time
megabyte = (b"x" * 99 + b"\\n") * 10000
begin = time.perf_counter()
for number in range(int(sys.argv[1])):
    sys.stdout.buffer.write(megabyte)
    sys.stdout.flush()
    time.sleep(max(0.0, begin + number / 100 - time.perf_counter()))
open("seconds", "w").write(str(time.perf_counter() - begin))
"""

# It says what time it is, in nanoseconds, for two minutes.
CLOCK = """
import time
for _ in range(6000):
    print(time.time_ns(), flush=True)
    time.sleep(0.02)
"""
