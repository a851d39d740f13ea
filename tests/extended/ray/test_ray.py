"""A Ray cluster as one launch, with Ray itself on two machines."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.extended.network.launch.test_devices import plug_gpus
from tests.network_hosts import HOME
from tests.promises.conftest import until
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from tests.network_hosts import NetworkHost
    from tests.promises.conftest import Desk

    Machines = dict[str, NetworkHost]

pytestmark = pytest.mark.slow
UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-5ac02f11-1111-2222-3333-444455556666")
SAMPLE = Path(__file__).parents[3] / "sample"

TASKS = """\
import os, sys, time
from pathlib import Path
import ray
ray.init(logging_level="ERROR")
Path("~/token").expanduser().write_text(os.environ["RAY_AUTH_TOKEN"])

@ray.remote(scheduling_strategy="SPREAD")
def where():
    time.sleep(0.5)
    return os.uname().nodename

@ray.remote
class Counter:
    count = 0
    def add(self, number):
        self.count += number
        return self.count

counter = Counter.remote()
print("tasks on", *sorted(set(ray.get([where.remote() for _ in range(8)]))))
print("an actor counted to", ray.get([counter.add.remote(n) for n in range(5)])[-1])
sys.exit(int(sys.argv[1]))
"""

# Waits until so many nodes are alive, and so many dead, as its arguments say, one after the other.
COUNTS = """\
import sys, time
import ray
ray.init(logging_level="ERROR")
for wanted in sys.argv[1:]:
    while True:
        alive = [node["Alive"] for node in ray.nodes()]
        if f"{alive.count(True)}/{alive.count(False)}" == wanted:
            break
        time.sleep(0.2)
    print("nodes:", wanted, flush=True)
"""

GPUS = """\
import os, time
import ray
ray.init(logging_level="ERROR")

@ray.remote(num_gpus=1)
def which():
    time.sleep(2)
    return f"{os.uname().nodename} {os.environ['CUDA_VISIBLE_DEVICES']}"

print(*sorted(ray.get([which.remote() for _ in range(4)])), sep="\\n")
"""


def start(desk: Desk, *words: str) -> list[int]:
    """Start a cluster, and return the keys of its jobs by node rank."""
    jobs = json.loads(desk.does("helper-ray-launch", *words, "--json"))["jobs"]
    return [int(job["key"]) for job in sorted(jobs, key=lambda job: job["node_rank"])]


def output(desk: Desk, key: int) -> str:
    """Return what a job has printed so far, errors as well."""
    ran = desk.tries("job-tail", str(key), "--no-follow")
    return ran.stdout + ran.stderr


def nothing_left(machines: Machines) -> None:
    """Wait until no machine has a process, or a file of Ray."""
    for host in machines.values():
        until(lambda host=host: not host.pids(), f"the end of all processes of {host.name}", 60)  # type: ignore[misc]
        assert host.run("sh", "-c", "ls -A /tmp | grep -e ray -e pymp").stdout == ""


def kill_ray(host: NetworkHost) -> None:
    """Kill the program of Ray that a node consists of."""
    (raylet,) = [pid for pid, command in host.pids().items() if "/raylet/raylet " in command]
    host.run("kill", "-KILL", str(raylet))


def signal_as_it_starts(signal: str, program: str, host: NetworkHost) -> None:
    """Send a signal to a program of Ray as soon as it runs."""
    found: list[int] = []

    def starts() -> list[int]:
        found[:] = [pid for pid, command in host.pids().items() if program in command]
        return found

    until(starts, f"{program} starts on {host.name}")
    host.run("kill", signal, *map(str, found))


@pytest.mark.picked
@pytest.mark.row(337)
@pytest.mark.row(340)
def test_tasks_and_an_actor_on_two_machines_and_nothing_left(desk: Desk, machines: Machines) -> None:
    (desk.root / "tasks.py").write_text(TASKS)
    ran = desk.tries("helper-ray-launch", "--cmd", "tasks.py 7", "--follow")
    assert ran.returncode == 7, ran.stderr
    assert [line.partition("| ")[2] for line in ran.stdout.splitlines()] == [
        "tasks on first second",
        "an actor counted to 10",
    ]
    assert "remote-tool: starting a Ray cluster of 2 nodes" in ran.stderr
    assert "remote-tool: the Ray cluster is ready" in ran.stderr
    # The worker ends because the cluster has ended, or because it is told of the failure, whichever comes first.
    assert desk.job(1)["exit_code"] == 7
    assert all(job["state"] in {"failed", "succeeded"} for job in desk.jobs())
    nothing_left(machines)
    token = (machines["first"].home / "token").read_bytes()
    assert len(token) == 64
    (machines["first"].home / "token").unlink()
    places = [desk.root, *(host.home for host in machines.values())]
    assert not [file for place in places for file in place.rglob("*") if file.is_file() and token in file.read_bytes()]


@pytest.mark.row(337)
def test_the_sweep_of_the_sample(desk: Desk, machines: Machines) -> None:
    shutil.copy(SAMPLE / "tune_digits.py", desk.root)
    ran = desk.tries(
        "helper-ray-launch", "--cmd", "tune_digits.py --trials 6", "--artifact", "tuned/best.json", "--follow"
    )
    assert ran.returncode == 0, ran.stderr
    assert "6 trials on 2 nodes, 0 failed" in ran.stdout
    (best,) = (desk.root / ".remote").rglob("best.json")
    assert json.loads(best.read_text())["accuracy"] > 0.5
    assert [job["state"] for job in desk.jobs()] == ["succeeded", "succeeded"]
    assert [job["reason"] for job in desk.jobs()] == [None, None]
    nothing_left(machines)


@pytest.mark.row(338)
@pytest.mark.row(340)
def test_a_cluster_without_a_program_stays_until_it_is_killed(desk: Desk, machines: Machines) -> None:
    for host in machines.values():
        plug_gpus(host, *UUIDS)
        put_nvidia_smi(host.home / "bin", *(gpu_line(n, load=0, used=0) for n in (0, 1)))
        # The folder for leases is one of the machine that makes both.
        host.options["SetEnv"] = f"PATH={HOME}/bin:/usr/local/bin:/usr/bin:/bin REMOTE_TOOL_TEST_LEASES={HOME}"
        host.reload_sshd()
    (desk.root / "which.py").write_text(GPUS)
    desk.configure(env=None)
    keys = start(desk, "--gpus", "2")
    until(lambda: "RAY_AUTH_TOKEN_PATH" in output(desk, keys[0]), "the cluster is ready")
    said = output(desk, keys[0])
    assert re.search(r"its dashboard: remote-tool forward \d+ --server first; it asks for the token in /tmp/", said)
    (setting,) = re.findall(r"export (RAY_ADDRESS=\S+ RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=\S+)", said)
    ran = desk.tries("job-run", "--server", "first", "--cmd", f"export {setting}; python which.py", "--follow")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"{name} GPU-{gpu}" for name in ("first", "second") for gpu in (0, 1)]
    address = setting.partition(" ")[0]
    without = desk.tries("run", "--server", "first", "--cmd", f"{address} python which.py")
    assert without.returncode == 1
    assert "oken" in without.stderr
    token = machines["first"].run("cat", setting.rpartition("=")[2]).stdout
    assert len(token) == 64
    assert not [line for host in machines.values() for line in host.pids().values() if token in line]
    for host in machines.values():
        # It has the state of the cluster and the token.
        assert host.run("sh", "-c", "stat -c %a /tmp/rt-ray-*").stdout == "700\n"
    desk.does("job-kill", str(keys[0]))
    assert [desk.waits_for(key, "killed")["state"] for key in keys] == ["killed", "killed"]
    nothing_left(machines)
    servers = json.loads(desk.does("gpus", "--json"))["servers"]
    assert [gpu["lease"] for server in servers for gpu in server["gpus"]] == [None] * 4


@pytest.mark.row(339)
def test_a_worker_whose_ray_was_killed_comes_back(desk: Desk, machines: Machines) -> None:
    (desk.root / "counts.py").write_text(COUNTS)
    keys = start(desk, "--restart-workers", "--cmd", "counts.py 2/0 2/1; sleep 5")
    until(lambda: "nodes: 2" in output(desk, keys[0]), "both are there")
    kill_ray(machines["second"])
    assert desk.waits_for(keys[0], "succeeded", "failed")["state"] == "succeeded"
    assert desk.waits_for(keys[1], "succeeded", "failed")["state"] == "succeeded"
    assert "nodes: 2/1" in output(desk, keys[0])
    said = output(desk, keys[1])
    assert "this node left the Ray cluster; it joins again in" in said
    assert "this node has joined the Ray cluster again" in said
    nothing_left(machines)


@pytest.mark.row(339)
def test_a_first_node_that_is_too_slow_for_ray_starts_again_and_its_workers_wait(
    desk: Desk, machines: Machines
) -> None:
    (desk.root / "tasks.py").write_text(TASKS)
    keys = start(desk, "--cmd", "tasks.py 0")
    signal_as_it_starts("-STOP", "/raylet/raylet ", machines["first"])
    assert desk.waits_for(keys[0], "succeeded", "failed")["state"] == "succeeded", output(desk, keys[0])
    assert desk.waits_for(keys[1], "succeeded", "failed")["state"] == "succeeded", output(desk, keys[1])
    said = output(desk, keys[0])
    assert "Ray did not start on this node within the 30 s that it allows; it starts again" in said
    assert "tasks on first second" in said
    nothing_left(machines)


@pytest.mark.row(339)
def test_a_worker_whose_ray_ends_while_the_cluster_starts_tries_again(desk: Desk, machines: Machines) -> None:
    (desk.root / "tasks.py").write_text(TASKS)
    keys = start(desk, "--cmd", "tasks.py 0")
    signal_as_it_starts("-KILL", "ray.scripts.scripts", machines["second"])
    assert desk.waits_for(keys[0], "succeeded", "failed")["state"] == "succeeded", output(desk, keys[0])
    assert "this node has not joined the Ray cluster; it tries again in 2 s" in output(desk, keys[1])
    assert "tasks on first second" in output(desk, keys[0])
    nothing_left(machines)


@pytest.mark.row(339)
def test_without_that_its_end_is_reported_and_the_rest_goes_on(desk: Desk, machines: Machines) -> None:
    (desk.root / "counts.py").write_text(COUNTS)
    keys = start(desk, "--cmd", "counts.py 2/0 1/1")
    until(lambda: "nodes: 2" in output(desk, keys[0]), "both are there")
    kill_ray(machines["second"])
    assert desk.waits_for(keys[0], "succeeded", "failed")["state"] == "succeeded"
    worker = desk.waits_for(keys[1], "failed")
    assert worker["exit_code"] == 1
    assert "second (node 1) ended with exit code 1; the others go on without it" in output(desk, keys[0])
    assert "Ray ended on this node" in output(desk, keys[1])
    nothing_left(machines)


@pytest.mark.row(339)
def test_a_worker_that_loses_its_power_is_reported_and_the_rest_goes_on(desk: Desk, machines: Machines) -> None:
    (desk.root / "counts.py").write_text(COUNTS)
    keys = start(desk, "--lost-after", "5", "--cmd", "counts.py 2/0 1/1; sleep 10")
    until(lambda: "nodes: 2" in output(desk, keys[0]), "both are there")
    machines["second"].power_off()
    until(lambda: "second (node 1) has not responded for" in output(desk, keys[0]), "it is missed")
    machines["second"].power_on()
    assert desk.waits_for(keys[0], "succeeded", "failed")["state"] == "succeeded"
    assert desk.waits_for(keys[1], "lost")["state"] == "lost"
    nothing_left(machines)


@pytest.mark.row(338)
def test_no_worker_outlives_the_first_machine(desk: Desk, machines: Machines) -> None:
    keys = start(desk, "--lost-after", "5", "--cmd", "sleep 1000")
    until(lambda: "is ready" in output(desk, keys[0]), "the cluster is ready")
    machines["first"].power_off()
    second = {"second": machines["second"]}
    nothing_left(second)
    machines["first"].power_on()
    worker = desk.waits_for(keys[1], "failed")
    assert "first (node 0)" in worker["reason"]


@pytest.mark.row(338)
def test_an_end_of_ray_on_the_first_machine_ends_the_cluster(desk: Desk, machines: Machines) -> None:
    keys = start(desk, "--cmd", "sleep 1000")
    until(lambda: "is ready" in output(desk, keys[0]), "the cluster is ready")
    kill_ray(machines["first"])
    assert desk.waits_for(keys[0], "failed")["exit_code"] == 1
    desk.waits_for(keys[1], "failed", "succeeded")
    assert "Ray ended on this node with exit code 1" in output(desk, keys[0])
    nothing_left(machines)


@pytest.mark.row(338)
def test_a_program_that_only_sigkill_ends_leaves_nothing_either(desk: Desk, machines: Machines) -> None:
    words = ("--stop-signal", "SIGUSR1", "--cmd", "sleep 1001 & trap '' TERM USR1; while :; do sleep 1; done")
    keys = start(desk, *words)
    until(lambda: "is ready" in output(desk, keys[0]), "the cluster is ready")
    desk.does("job-kill", str(keys[0]))
    for key in keys:
        desk.waits_for(key, "killed")
    nothing_left(machines)


@pytest.mark.row(338)
def test_what_a_program_leaves_in_the_background_may_still_save(desk: Desk, machines: Machines) -> None:
    saves = "trap 'sleep 1; echo saved' TERM; touch begun; while :; do sleep 0.1; done"
    program = f"bash -c {shlex.quote(saves)} & until [ -e begun ]; do sleep 0.1; done"
    ran = desk.tries("helper-ray-launch", "--nnodes", "1", "--cmd", program, "--follow")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("saved\n")
    nothing_left(machines)


@pytest.mark.row(338)
def test_the_folder_of_a_node_that_was_killed_goes_with_the_next_launch(desk: Desk, machines: Machines) -> None:
    first = machines["first"]
    # Another user's pipe would make whoever opens it wait.
    first.run("sh", "-ec", "mkdir -m 755 /tmp/rt-ray-theirs; mkfifo /tmp/rt-ray-theirs/lock")
    first.run("chown", "-R", "nobody", "/tmp/rt-ray-theirs")
    first.run("sh", "-ec", "mkdir /tmp/rt-ray-ours; touch /tmp/rt-ray-ours/lock; touch -d '1 hour ago' /tmp/rt-ray-*")
    try:
        ran = desk.tries("helper-ray-launch", "--nnodes", "1", "--cmd", "true", "--follow")
        assert ran.returncode == 0, ran.stderr
        assert first.run("sh", "-c", "ls -d /tmp/rt-ray-*").stdout == "/tmp/rt-ray-theirs\n"
    finally:
        first.run("rm", "-r", "/tmp/rt-ray-theirs")
    nothing_left(machines)


@pytest.mark.row(337)
def test_a_cluster_of_one(desk: Desk, machines: Machines) -> None:
    (desk.root / "tasks.py").write_text(TASKS)
    ran = desk.tries("helper-ray-launch", "--nnodes", "1", "--cmd", "tasks.py 0", "--follow")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0].endswith("tasks on first")
    (again,) = json.loads(desk.does("job-rerun", "1", "--json"))["jobs"]
    assert desk.waits_for(again["key"], "succeeded", "failed")["state"] == "succeeded"
    nothing_left(machines)


@pytest.mark.row(341)
def test_what_cannot_be_a_cluster_is_refused(desk: Desk, machines: Machines) -> None:
    refused = desk.refuses("helper-ray-launch", "--cmd", " ", status=2)
    assert "--cmd is empty" in refused
    refused = desk.refuses("helper-ray-launch", "--master-port", "10500", "--cmd", "true", status=2)
    assert "--master-port 10500 is in the range of Ray's workers, 10002 to 19999" in refused
    desk.configure(environment={"existing": sys.prefix})
    desk.does("prepare")
    refused = desk.refuses("helper-ray-launch", "--cmd", "true")
    assert "first, second do not have ray in their environment" in refused
    assert "Add ray[default] to requirements.txt" in refused
    nothing_left(machines)
