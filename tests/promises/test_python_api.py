"""Scripts of users, with the Python API as README and the guide show it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.promises.conftest import PATIENCE

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

WORKSPACE = """
from itertools import islice

from remote_tool import (
    FanOutRequest, FollowOptions, Hooks, Job, JobSelection, JobState, LaunchRequest, RemoteToolError, RunningJob,
    ShellRequest, StartRequest, SweepRequest, Workspace, __version__,
)

workspace = Workspace.find()
workspace.rsync()
job = workspace.start("first", 'echo "rate $LR"; mkdir -p out; echo weights > out/final.pt', env={"LR": "0.1"},
                      tags=["python"], artifacts=["out/final.pt"])
assert list(job.tail()) == ["rate 0.1"]
assert job.wait() == "succeeded" and job.exit_code == 0
assert [path.read_text() for path in job.pull()] == ["weights\\n"]
(repeat,) = workspace.rerun(job.id, env={"LR": "0.2"}, servers=["second"]).jobs
assert repeat.rerun_of == job.id
assert "server" in [each.field for each in workspace.diff(job.id, repeat.id).differences]

job = workspace.start("first", "seq 1000000; sleep 1000", sync=False)
assert list(islice(job.tail(), 3)) == ["1", "2", "3"]
assert job.state is JobState.RUNNING
assert job.kill() is JobState.KILLED

requests = [StartRequest("echo $LR", environment={"LR": rate}, tags=("sweep",)) for rate in ("0.1", "0.01")]
answer = workspace.start_jobs(*requests)
assert [job.server for job in answer.jobs] == ["first", "second"] * 2
answer = workspace.fan_out(FanOutRequest("echo {count}", total=100))
assert ([job.server for job in answer.jobs], answer.undone) == (["first", "second"], 0)
answer = workspace.sweep(SweepRequest("echo loss: {lr}", grid={"lr": [0.1, 0.01]}, per_server=1))
workspace.wait_jobs(JobSelection(tags=(f"sweep-{answer.name}",)))
results = workspace.sweep_results(answer.name, metric="loss", logs=True)
assert [(row.parameters["lr"], row.best) for row in results.rows] == [("0.01", 0.01), ("0.1", 0.1)]
answer = workspace.launch(LaunchRequest("echo node $NODE_RANK of $NNODES", launcher="shell"))
ended = workspace.wait_jobs(JobSelection(jobs=tuple(job.id for job in answer.jobs)))
assert [job.exit_code for job in ended.jobs] == [0, 0]

result = workspace.run("echo $LR; exit 3", env={"LR": "0.1"}, check=False)
assert result.values == {"first": 3, "second": 3} and not result.errors
assert (result.values["first"].stdout, result.values["first"].stderr) == ("0.1\\n", "")
try:
    workspace.run("exit 3", ["first"])
except RemoteToolError as error:
    assert error.message == "first: the command ended with exit code 3"
    assert error.exit_status == 3
else:
    raise AssertionError
try:
    workspace.start("third", "true")
except RemoteToolError as error:
    assert error.message == "Unknown server 'third'; the configuration has first, second"
else:
    raise AssertionError
print("all of it")
"""
OF_LABML = """
from remote_tool.job import JOBS
from remote_tool.server import SERVERS

assert list(SERVERS) == ["first", "second"]
assert SERVERS["first"].conf.hostname == "127.0.0.1"
SERVERS["first"].setup()
SERVERS["first"].rsync()
SERVERS["first"].update_packages()
job = JOBS.create("first", "echo $NAME; until [ -e go ]; do sleep 0.1; done", {"NAME": "digits"}, ["tag"]).start()
for line in job.tail():
    assert line == "digits"
    break
assert job.command.startswith("echo $NAME; until") and job.tags == {"tag"} and job.pid and job.started
assert job.running and str(job.server) == "first" and job.job_id in [each.job_id for each in JOBS.filter_running()]
assert JOBS.by_key(job.job_key).job_id == job.job_id == JOBS[job.job_id].job_id
assert job.job_id in list(JOBS)
(SERVERS["first"].conf, open("go", "w").close())
SERVERS["first"].rsync()
import time
# The job ends without this program being told; all() asks its server.
deadline = time.monotonic() + 300
while not next(each for each in JOBS.all() if each.job_id == job.job_id).stopped:
    assert time.monotonic() < deadline
    time.sleep(0.1)
assert job.job_id not in [each.job_id for each in JOBS.filter_running()]
assert job.job_id in [each.job_id for each in JOBS.filter_by_tags(["tag"])]
assert job.job_id not in [each.job_id for each in JOBS.filter_out_by_tags(["tag"])]
assert job.wait() == "succeeded"
SERVERS["first"].rsync_jobs()
print("all of it")
"""


def runs(desk: Desk, script: str) -> None:
    """Run a script as a user does, which prints what it says itself and nothing else."""
    (desk.root / "script.py").write_text(script)
    words = [sys.executable, "script.py"]
    ran = subprocess.run(words, cwd=desk.root, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.returncode, ran.stdout) == (0, "all of it\n"), ran.stderr


def test_a_script_does_with_a_workspace_what_the_guide_shows(desk_of_all: Desk) -> None:
    runs(desk_of_all, WORKSPACE)


def test_a_script_of_labml_remote_does_what_it_did(desk_of_all: Desk) -> None:
    runs(desk_of_all, OF_LABML)
