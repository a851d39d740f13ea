"""Launches inside one allocation: an address that the nodes have found themselves, and an end as one."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.extended.ray.test_ray import TASKS
from tests.extended.sample.test_frameworks import FRAMEWORKS, lacks
from tests.extended.slurm.conftest import put_slurm
from tests.extended.slurm.test_jobs import folder_of, gives_back, running, slurm_id

if TYPE_CHECKING:
    from tests.promises.conftest import Desk
    from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slow
ENVIRONMENT = 'echo "$NODE_RANK of $NNODES on $(hostname): $MASTER_ADDR $MASTER_PORT $GLOO_SOCKET_IFNAME"'
REDUCE = """\
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {os.uname().nodename}: {total.item()}", flush=True)
time.sleep(float(os.environ.get("NAP", "0")))
"""


def start(desk: Desk, *words: str) -> list[int]:
    """Start a launch, and return the keys of its jobs by node rank."""
    jobs = json.loads(desk.does(*words, "--json"))["jobs"]
    return [int(job["key"]) for job in sorted(jobs, key=lambda job: job["node_rank"])]


@pytest.mark.row(334)
def test_torch_on_two_nodes_with_two_ranks_each(cluster: SlurmCluster, desk: Desk) -> None:
    (desk.root / "train.py").write_text(REDUCE)
    ran = desk.tries("helper-torch-launch", "--cmd", "train.py", "--nnodes", "2", "--nproc-per-node", "2", "--follow")
    assert ran.returncode == 0, ran.stderr
    ranks = sorted(line.partition("| ")[2] for line in ran.stdout.splitlines() if "rank" in line)
    assert ranks == [f"rank {rank} of 4 on n{1 + rank // 2}: 6.0" for rank in range(4)]
    assert len({slurm_id(desk, job["key"]) for job in desk.jobs()}) == 1
    assert not running(cluster, "train.py")


@pytest.mark.row(334)
def test_the_nodes_find_their_address_and_the_configuration_their_number(cluster: SlurmCluster, desk: Desk) -> None:
    put_slurm(desk, partition="gpu", nodes=2)
    keys = start(desk, "helper-launch", "--cmd", ENVIRONMENT)
    desk.does("job-wait", *map(str, keys))
    lines = [desk.does("job-tail", str(key), "--no-follow").partition("| ")[2].split() for key in keys]
    first = cluster.nodes[0].address
    assert [line[:4] for line in lines] == [["0", "of", "2", "on"], ["1", "of", "2", "on"]]
    assert [line[5] for line in lines] == [first, first]
    assert lines[0][6] == lines[1][6]
    assert lines[0][6].isdigit()
    assert [line[7] for line in lines] == ["eth0", "eth0"]


@pytest.mark.row(334)
@pytest.mark.skipif(shutil.which("mpiexec.hydra") is None, reason="needs MPICH")
def test_mpi_has_all_ranks_in_one_world(cluster: SlurmCluster, desk: Desk) -> None:
    command = "echo rank $PMI_RANK of $PMI_SIZE on $(hostname)"
    ran = desk.tries("helper-mpi-launch", "--nnodes", "2", "--ppn", "2", "--follow", "--cmd", command)
    assert ran.returncode == 0, ran.stderr
    ranks = sorted(line.partition("| ")[2] for line in ran.stdout.splitlines())
    assert ranks == [f"rank {rank} of 4 on n{1 + rank // 2}" for rank in range(4)]
    gives_back(cluster)


@pytest.mark.row(334)
@pytest.mark.skipif(not (FRAMEWORKS / "bin" / "python").exists() or lacks("ray"), reason="no ray in .cache/frameworks")
def test_ray_has_all_nodes_in_one_cluster(cluster: SlurmCluster, desk: Desk) -> None:
    desk.configure(environment={"existing": str(FRAMEWORKS)})
    desk.does("prepare")
    (desk.root / "tasks.py").write_text(TASKS)
    ran = desk.tries("helper-ray-launch", "--nnodes", "2", "--cmd", "tasks.py 0", "--follow")
    assert ran.returncode == 0, ran.stderr
    assert [line.partition("| ")[2] for line in ran.stdout.splitlines()] == [
        "tasks on n1 n2",
        "an actor counted to 10",
    ]
    assert [job["state"] for job in desk.jobs()] == ["succeeded", "succeeded"]
    gives_back(cluster)
    assert not running(cluster, "ray")


@pytest.mark.row(335)
def test_a_failed_node_ends_the_launch_and_is_named(cluster: SlurmCluster, desk: Desk) -> None:
    command = 'if [ "$NODE_RANK" = 1 ]; then sleep 2; exit 9; else exec sleep 1000; fi'
    keys = start(desk, "helper-launch", "--nnodes", "2", "--cmd", command)
    failed = desk.waits_for(keys[1], "failed")
    stopped = desk.waits_for(keys[0], "failed")
    assert failed["exit_code"] == 9
    assert "n2 (node 1)" in stopped["reason"]
    gives_back(cluster)
    assert not running(cluster, "sleep 1000")


@pytest.mark.row(335)
def test_a_stop_of_one_node_ends_the_launch_and_a_rerun_has_as_many_nodes(cluster: SlurmCluster, desk: Desk) -> None:
    keys = start(desk, "helper-launch", "--nnodes", "2", "--cmd", f"{ENVIRONMENT}; exec sleep 1000")
    for key in keys:
        desk.waits_for(key, "running")
    desk.does("job-kill", str(keys[1]))
    assert [desk.waits_for(key, "killed")["state"] for key in keys] == ["killed", "killed"]
    gives_back(cluster)
    again = json.loads(desk.does("job-rerun", str(keys[0]), "--json"))["jobs"]
    assert sorted(job["node_rank"] for job in again) == [0, 1]
    for job in again:
        desk.waits_for(job["key"], "running")
    desk.does("job-kill", *(str(job["key"]) for job in again))
    assert not running(cluster, "sleep 1000")


@pytest.mark.row(336)
def test_a_launch_whose_nodes_cannot_reach_each_other_says_so(cluster: SlurmCluster, desk: Desk) -> None:
    first, second = cluster.nodes
    # Ours are on both sides of the ephemeral ones, on which Slurm's own programs talk.
    first.block_port("{ 20000-32767, 61000-65535 }")
    try:
        keys = start(desk, "helper-launch", "--nnodes", "2", "--cmd", "echo never")
        jobs = [desk.waits_for(key, "failed") for key in keys]
    finally:
        first.mend()
    assert all(f"n2 cannot reach n1 at {first.address}" in job["reason"] for job in jobs)
    assert second.name == "n2"
    assert not (folder_of(desk, keys[0]) / "started.json").exists()


@pytest.mark.row(332)
def test_what_a_launch_in_slurm_cannot_do_is_refused(cluster: SlurmCluster, desk: Desk) -> None:
    assert "--wait cannot be used" in desk.refuses("helper-launch", "--gpus", "1", "--wait", "--cmd", "true", status=2)
    servers = desk.settings()["servers"]
    servers["other"] = {**servers["login"], "hostname": "10.0.0.9"}
    del servers["other"]["slurm"]
    desk.configure(servers=servers)
    assert "login takes part alone" in desk.refuses("helper-launch", "--cmd", "true", status=2)
    gives_back(cluster)
