"""Launches of commands that start their own processes, on two real servers."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, JobState, LaunchRequest, Workspace
from remote_tool.errors import JobError, UsageError
from remote_tool.workflows.jobs.stop import stop_on_servers
from remote_tool.workflows.launch import launch, restart
from remote_tool.workflows.selection import JobsAnswer
from remote_tool.workflows.start.start_specs import start_specs
from tests.processes import processes_of
from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job, JobSpec
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.jobs.follow import Chunk
    from tests.sshd import TestServer

# As imagenet and others do it: one program per machine, which spawns a process per GPU.
SPAWN = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

LOCAL = 2

def work(local):
    rank = int(os.environ["NODE_RANK"]) * LOCAL + local
    world = int(os.environ["NNODES"]) * LOCAL
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world)
    value = torch.tensor([float(rank)])
    dist.all_reduce(value)
    # In one piece: what processes of one node write at the same time would mix.
    os.write(1, f"rank {rank} of {world}: sum {int(value)}\\n".encode())
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, nprocs=LOCAL)
"""
SCRIPT = """#!/bin/sh
# Runs the program that it is told.
exec python "$@"
"""
SHOW = """
import json, os
names = ["MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "WORLD_SIZE"]
print(json.dumps({name: os.environ.get(name) for name in [*names, "RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"]}))
"""
STORE = """
import os, torch.distributed as dist
dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, os.environ["NODE_RANK"] == "0")
"""
ONE_FAILS = '[ "$NODE_RANK" = 0 ] && exec sleep 1000; echo "no data" >&2; exit 3'


@pytest.fixture
def trainer(shared_project: Path) -> Workspace:
    """The prepared workspace with the programs of this file."""
    for name, text in {"spawn.py": SPAWN, "run_train.sh": SCRIPT, "show.py": SHOW, "store.py": STORE}.items():
        (shared_project / name).write_text(text)
    (shared_project / "run_train.sh").chmod(stat.S_IRWXU)
    return Workspace.find(shared_project)


def by_id(jobs: Sequence[Job]) -> JobSelection:
    return JobSelection(jobs=tuple(job.id for job in jobs), stopped=True)


def shell(command: str, **options: object) -> LaunchRequest:
    return LaunchRequest(command, launcher="shell", **options)  # type: ignore[arg-type]


def printed(shown: Sequence[Chunk], stream: str = "out") -> list[str]:
    found: dict[str, bytes] = {}
    for chunk in shown:
        if chunk.stream == stream:
            found[chunk.job.id] = found.get(chunk.job.id, b"") + chunk.data
    return sorted(line for text in found.values() for line in text.decode().splitlines())


@pytest.mark.row(162)
@pytest.mark.slow
def test_a_command_that_ends_before_the_start_is_answered_has_begun(
    two_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    # A disk that is nearly full is told of with the answer, which then takes longer.
    root = make_project(tmp_path / "project", two_servers, min_free="99%")
    assert remote_tool("prepare", cwd=root).returncode == 0
    for _ in range(3):
        told = remote_tool("helper-launch", "--cmd", "true", "--no-sync", cwd=root)
        assert (told.returncode, told.stderr.count("would free")) == (0, 2), told.stderr
        assert "did not start" not in told.stderr


@pytest.mark.slow
def test_a_script_whose_program_spawns_its_ranks_trains_over_both_servers(trainer: Workspace) -> None:
    words = ("helper-launch", "--cmd", "./run_train.sh spawn.py", "--follow")
    done = remote_tool(*words, cwd=trainer.root, timeout=240)
    assert done.returncode == 0, done.stderr
    lines = sorted(line.partition(" | ")[2] for line in done.stdout.splitlines() if "rank" in line)
    assert lines == [f"rank {rank} of 4: sum 6" for rank in range(4)], done.stdout


@pytest.mark.row(162)
def test_each_node_is_told_its_place_and_nothing_that_would_say_which_rank_it_is(trainer: Workspace) -> None:
    orphan = {"GLOO_SOCKET_IFNAME": "mine"}
    answer = trainer.launch(shell("show.py", environment=orphan, devices=()))
    shown: list[Chunk] = []
    followed = trainer.follow_jobs(by_id(answer.jobs), shown.append)
    assert followed.exit_code == 0, shown
    first, second = (
        json.loads(line) for line in sorted(printed(shown), key=lambda line: json.loads(line)["NODE_RANK"])
    )
    assert (first["NODE_RANK"], second["NODE_RANK"], first["NNODES"], second["NNODES"]) == ("0", "1", "2", "2")
    assert first["MASTER_ADDR"] == second["MASTER_ADDR"]
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "0"
    for node in (first, second):
        assert (node["NCCL_SOCKET_IFNAME"], node["GLOO_SOCKET_IFNAME"]) == ("lo", "mine")
        assert (node["WORLD_SIZE"], node["RANK"], node["LOCAL_RANK"]) == (None, None, None)
    assert [(job.node_rank, job.is_master) for job in answer.jobs] == [(0, True), (1, False)]
    assert len({job.launch_id for job in answer.jobs}) == 1


@pytest.mark.row(162)
def test_a_node_that_fails_ends_the_launch_and_is_named(trainer: Workspace) -> None:
    answer = trainer.launch(shell(ONE_FAILS))
    followed = trainer.follow_jobs(by_id(answer.jobs), lambda _chunk: None)
    assert [job.state for job in followed.jobs] == [JobState.FAILED] * 2
    assert followed.first_failure is not None
    assert (followed.first_failure.server, followed.first_failure.exit_code) == ("second", 3)
    assert followed.jobs[0].stopped_with_launch
    assert [processes_of(job.id) for job in answer.jobs] == [[], []]


def test_a_launch_that_failed_is_started_again_as_often_as_it_may_be_while_it_is_followed(trainer: Workspace) -> None:
    command = "n=$(cat ~/tries.$TEST 2>/dev/null || echo 0); echo $((n + 1)) >~/tries.$TEST; [ $n = 2 ] || exit 4"
    for restarts, exit_code, tries in ((2, 0, "3"), (1, 4, "2")):
        request = shell(command, servers=("first",), max_restarts=restarts, environment={"TEST": str(restarts)})
        followed = trainer.follow_launch(request, trainer.launch(request).jobs, lambda _chunk: None)
        assert followed.exit_code == exit_code
        assert trainer.run(f"[ $(cat ~/tries.{restarts}) = {tries} ]", ["first"]).values == {"first": 0}


def test_a_launch_is_not_restarted_before_all_its_nodes_are_stopped(
    trainer: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = shell("exit 4", servers=("first",), max_restarts=1)
    jobs = trainer.launch(request).jobs
    newest: list[int] = []

    async def fail_once(context: Context, ended: Sequence[Job]) -> JobsAnswer:
        newest.append(max(job.key for job in context.registry.load()[0]))
        if len(newest) == 1:
            return JobsAnswer((), {"first": JobError("first: some of its processes cannot be killed: 7")})
        return await stop_on_servers(context, ended)

    monkeypatch.setattr(restart, "stop_on_servers", fail_once)
    monkeypatch.setattr(restart, "PAUSE", 0.1)
    followed = trainer.follow_launch(request, jobs, lambda _chunk: None)
    assert newest == [jobs[0].key] * 2
    assert followed.jobs[0].key == jobs[0].key + 1


def test_a_frozen_launch_restarts_in_its_copy_though_the_project_has_changed(
    trainer: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = trainer.root / "later.txt"

    async def change_project(context: Context, ended: Sequence[Job]) -> JobsAnswer:
        later.touch()
        sent = await asyncio.to_thread(remote_tool, "rsync", "--server", "first", cwd=trainer.root)
        assert sent.returncode == 0, sent.stderr
        return await stop_on_servers(context, ended)

    monkeypatch.setattr(restart, "stop_on_servers", change_project)
    command = "test -e tried || { touch tried; exit 4; }; test ! -e later.txt"
    request = shell(command, servers=("first",), max_restarts=1, frozen=True)
    try:
        jobs = trainer.launch(request).jobs
        followed = trainer.follow_launch(request, jobs, lambda _chunk: None)
    finally:
        later.unlink(missing_ok=True)
    assert followed.exit_code == 0
    assert followed.jobs[0].copy == jobs[0].copy != ""


@pytest.mark.row(93)
@pytest.mark.slow
def test_a_port_that_is_taken_in_the_last_moment_is_named_and_another_one_used(
    trainer: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    with ExitStack() as ports:

        async def take_and_start(context: Context, specs: Sequence[JobSpec]) -> JobsAnswer:
            if not taken:
                taken.append(int(specs[0].environment["MASTER_PORT"]))
                squatter = ports.enter_context(socket.socket())
                # The connections that tested it may still be in TIME_WAIT.
                squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                squatter.bind(("0.0.0.0", taken[0]))
                squatter.listen()
            return await start_specs(context, specs)

        monkeypatch.setattr(launch, "start_specs", take_and_start)
        request = shell("store.py")
        jobs = trainer.launch(request).jobs
        shown: list[Chunk] = []
        followed = trainer.follow_launch(request, jobs, shown.append)
    assert followed.exit_code == 0, shown
    before = trainer.list_jobs(by_id(jobs)).jobs
    assert f"another program took port {taken[0]} before the launch could listen on it" in before[0].reason


def test_a_plan_says_what_each_node_runs(trainer: Workspace) -> None:
    plan = trainer.plan_launch(shell("-m package.train --lr $NODE_RANK"))
    assert [node.command for node in plan.nodes] == ["python -m package.train --lr $NODE_RANK"] * 2
    assert plan.text().startswith("2 nodes, rendezvous ")
    assert "first: node rank 0, lo\n  python -m" in plan.text()
    document = plan.as_json()
    assert (document["world_size"], [node["processes"] for node in document["nodes"]]) == (None, [None, None])


def test_restarts_need_a_follower(trainer: Workspace) -> None:
    done = remote_tool("helper-launch", "--cmd", "true", "--max-restarts", "1", cwd=trainer.root)
    assert (done.returncode, "hint: Add --follow" in done.stderr) == (2, True), done.stderr


def test_an_unknown_launcher_is_refused() -> None:
    with pytest.raises(UsageError, match="launcher must be one of torchrun, shell, mpi, ray, found 'slurm'"):
        LaunchRequest("x.py", launcher="slurm")


def test_a_script_that_is_not_in_the_project_is_refused(trainer: Workspace) -> None:
    with pytest.raises(UsageError, match=r"shw.py is not in .*"):
        trainer.launch(shell("shw.py"))
