"""Launches with the real torchrun on two servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobState, Workspace
from remote_tool.errors import JobError, UsageError
from remote_tool.jobs.job import Job
from remote_tool.launchers.request import LaunchRequest
from remote_tool.workflows.jobs.failures import first_failure
from remote_tool.workflows.jobs.follow import Chunk, FollowOptions
from remote_tool.workflows.launch import launch
from remote_tool.workflows.selection import JobSelection
from remote_tool.workflows.start.start_specs import start_specs
from tests.extended.workflows.jobs.test_jobs import until
from tests.processes import processes_of, read_of
from tests.sshd import free_low_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.jobs.job import JobSpec
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.selection import JobsAnswer
    from tests.sshd import TestServer

# On a busy machine, importing torch takes a minute in every torchrun and every rank.
# Importing torch.distributed takes seconds on two cores; a worker that needs no tensors does without.
RANKS = """
import json, os
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RUN_UUID"]
names.append("OMP_NUM_THREADS")
print(json.dumps({name: os.environ.get(name) for name in names}))
"""
TOGETHER = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("sum", int(value))
dist.destroy_process_group()
"""
FAILS = """
import os, sys, time
if os.environ["RANK"] == "2":
    raise ValueError("rank two had enough")
time.sleep(1000)
"""
# Rank 0 fails as well, but only because it is stopped.
FAILS_LATER = """
import os, pathlib, signal, tempfile, time
up = pathlib.Path(tempfile.gettempdir(), os.environ["RUN_UUID"])
def stop(*_):
    raise RuntimeError("rank zero does not like to be stopped")
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, stop)
    up.touch()
    time.sleep(1000)
while not up.exists():
    time.sleep(0.02)
up.unlink()
raise ValueError("rank one had enough")
"""
# Rank 3 fails once all have met, so that the others fail as well, for want of it.
BAD_BATCH = """
import os, signal, sys, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

def train():
    dist.init_process_group("gloo")
    for step in range(10_000):
        dist.all_reduce(torch.ones(1))
        if step == 7 and dist.get_rank() == 3:
            if sys.argv[1] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                {}["batch"]
            except KeyError as error:
                text = "bad batch at step 7\\nTraceback of \\x1b[2J the batch\\n\\n  its third line"
                raise ValueError(text) from error

(record(train) if sys.argv[1] == "recorded" else train)()
"""
# A restarted node counts its own failures only, so files say that both ran and that the first try is over.
ONCE = """
import os, pathlib, sys, tempfile, time
folder = pathlib.Path(tempfile.gettempdir(), os.environ["RUN_UUID"])
folder.mkdir(exist_ok=True)
if (folder / "tried").exists():
    print("again as one of", os.environ["WORLD_SIZE"], flush=True)
    sys.exit(0)
if os.environ["RANK"] == "1":
    (folder / "up").touch()
    time.sleep(1000)
while not (folder / "up").exists():
    time.sleep(0.05)
(folder / "tried").touch()
sys.exit(1)
"""
WRITES = """
import os
open(f"written-{os.environ['RANK']}-{os.environ['MASTER_PORT']}", "w").close()
"""
STUBBORN = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("up", flush=True)
time.sleep(1000)
"""
# The first rank is done at once, so its torchrun waits for the other one's, deaf to SIGTERM.
UNEQUAL = """
import os, time
print("up", flush=True)
if os.environ["RANK"] == "1":
    time.sleep(1000)
"""


@pytest.fixture
def trainer(shared_project: Path) -> Workspace:
    """The prepared workspace with the scripts of this file."""
    scripts = {
        "later": FAILS_LATER,
        "ranks": RANKS,
        "together": TOGETHER,
        "fails": FAILS,
        "bad_batch": BAD_BATCH,
        "stubborn": STUBBORN,
        "unequal": UNEQUAL,
        "writes": WRITES,
    }
    for name, text in scripts.items():
        (shared_project / f"{name}.py").write_text(text)
    return Workspace.find(shared_project)


def selection(jobs: list[str]) -> JobSelection:
    return JobSelection(jobs=tuple(jobs), stopped=True)


def joined(shown: list[Chunk]) -> dict[tuple[str, str], bytes]:
    """Return what came of each label and stream: a chunk may end anywhere."""
    found: dict[tuple[str, str], bytes] = {}
    for chunk in shown:
        key = (chunk.label, chunk.stream)
        found[key] = found.get(key, b"") + chunk.data
    return found


def lines_of(shown: list[Chunk], beginning: bytes) -> list[bytes]:
    """Return all lines with a beginning."""
    return [line for text in joined(shown).values() for line in text.splitlines() if line.startswith(beginning)]


@pytest.mark.row(99, 101, 102)
@pytest.mark.slow
def test_every_rank_gets_its_place_and_its_own_log(trainer: Workspace) -> None:
    request = LaunchRequest("ranks.py", processes=2, environment={"GLOO_SOCKET_IFNAME": "mine", "OMP_NUM_THREADS": "5"})
    answer = trainer.launch(request)
    shown: list[Chunk] = []
    followed = trainer.follow_jobs(selection([job.id for job in answer.jobs]), shown.append)
    assert followed.exit_code == 0, shown
    said = {label: json.loads(text) for (label, stream), text in joined(shown).items() if stream.endswith("/out")}
    assert sorted(said) == ["first:0", "first:1", "second:2", "second:3"]
    assert {values["WORLD_SIZE"] for values in said.values()} == {"4"}
    assert {values["GLOO_SOCKET_IFNAME"] for values in said.values()} == {"mine"}
    assert {values["NCCL_SOCKET_IFNAME"] for values in said.values()} == {"lo"}
    assert {values["OMP_NUM_THREADS"] for values in said.values()} == {"5"}
    assert len({values["RUN_UUID"] for values in said.values()}) == 1
    assert [job.tags for job in answer.jobs] == [("master",), ()]
    one_rank: list[Chunk] = []
    trainer.follow_jobs(selection([answer.jobs[0].id]), one_rank.append, FollowOptions(rank=3, wait=False))
    assert {chunk.rank for chunk in one_rank} == {3}


@pytest.mark.slow
def test_a_launch_in_python_takes_artifacts_a_port_and_no_sync(trainer: Workspace) -> None:
    trainer.rsync()
    late = trainer.root / "late.py"
    late.write_text("raise SystemExit(9)\n")
    port = free_low_port()
    jobs = trainer.launch_torch("writes.py", master_port=port, sync=False, artifacts=["written-*"], tags=["python-api"])
    late.unlink()
    try:
        assert [job.wait(timeout=180) for job in jobs] == [JobState.SUCCEEDED] * 2
        written = [path.name for job in jobs for path in job.pull()]
    finally:
        trainer.run("rm -f written-*")
    assert written == [f"written-0-{port}", f"written-1-{port}"]
    assert trainer.run("test ! -e late.py").values == {"first": 0, "second": 0}


@pytest.mark.row(93)
@pytest.mark.slow
def test_two_launches_at_once_never_become_one(trainer: Workspace) -> None:
    answers = [trainer.launch(LaunchRequest("together.py", processes=1)) for _ in range(2)]
    jobs = [job.id for answer in answers for job in answer.jobs]
    shown: list[Chunk] = []
    followed = trainer.follow_jobs(selection(jobs), shown.append)
    assert followed.exit_code == 0, shown
    assert lines_of(shown, b"sum") == [b"sum 2"] * 4


@pytest.mark.row(88, 100)
@pytest.mark.slow
def test_a_failing_rank_stops_the_launch_and_is_named(trainer: Workspace) -> None:
    answer = trainer.launch(LaunchRequest("fails.py", processes=2))
    jobs = [job.id for job in answer.jobs]
    followed = trainer.follow_jobs(selection(jobs), lambda _chunk: None, FollowOptions())
    failure = followed.first_failure
    assert failure is not None
    assert (failure.server, failure.rank, failure.exit_code) == ("second", 2, 1)
    assert failure.message == "ValueError: rank two had enough"
    assert "raise ValueError" in failure.traceback
    stopped, failed = followed.jobs
    assert [stopped.state, failed.state] == [JobState.FAILED] * 2
    assert "stopped because second (node 1) rank 2: ValueError: rank two had enough" in stopped.reason
    assert followed.exit_code == 1
    # Alone, a node that was stopped knows the cause by its reason only; its own ranks broke off because of it.
    assert trainer.follow_jobs(selection([stopped.id]), lambda _chunk: None).first_failure is None
    assert [processes_of(job) for job in jobs] == [[], []]


@pytest.mark.row(101, 159)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("plain", "ValueError: bad batch at step 7"),
        ("recorded", "ValueError: bad batch at step 7"),
        ("killed", "ended by SIGKILL"),
    ],
)
def test_the_first_of_many_ranks_to_fail_is_named_with_what_it_said(trainer: Workspace, how: str, message: str) -> None:
    answer = trainer.launch(LaunchRequest(f"bad_batch.py {how}", processes=2))
    followed = trainer.follow_jobs(selection([job.id for job in answer.jobs]), lambda _chunk: None, FollowOptions())
    failure = followed.first_failure
    assert failure is not None
    assert (failure.server, failure.rank, failure.message) == ("second", 3, message)
    assert "[rank" not in failure.traceback
    assert "Root Cause" not in failure.traceback
    if how != "killed":
        lines = [line.strip() for line in failure.traceback.splitlines()]
        assert "KeyError: 'batch'" in lines
        said = lines.index(message)
        assert lines[said + 1 : said + 4] == ["Traceback of \x1b[2J the batch", "", "its third line"]
    first, second = sorted(followed.jobs, key=lambda job: job.node_rank or 0)
    assert second.reason == f"rank 3: {message}"
    assert f"second (node 1) rank 3: {message}" in first.reason


@pytest.mark.row(159)
@pytest.mark.slow
def test_the_reason_of_a_job_on_one_server_is_what_its_rank_said(trainer: Workspace) -> None:
    (job,) = trainer.launch(LaunchRequest("fails.py", servers=("second",), processes=3)).jobs
    followed = trainer.follow_jobs(selection([job.id]), lambda _chunk: None, FollowOptions())
    assert followed.jobs[0].reason == "rank 2: ValueError: rank two had enough"


def test_the_first_failure_is_that_of_a_rank_whose_node_has_not_ended_yet(tmp_path: Path) -> None:
    nodes = [
        Job(1, "20261122-000000-" + "0" * 32, "gpu1", "", JobState.FAILED, launch_id="l", reason="stopped by gpu2"),
        Job(2, "20261122-000000-" + "1" * 32, "gpu2", "", JobState.RUNNING, launch_id="l", node_rank=1, rank_offset=1),
    ]
    logs = tmp_path / nodes[1].id / "ranks" / "0" / "0"
    logs.mkdir(parents=True)
    (logs / "err").write_text("[rank1]: Traceback (most recent call last):\n[rank1]: RuntimeError: boom\n")
    failure = first_failure(nodes, tmp_path)
    assert failure is not None
    assert (failure.server, failure.rank, failure.message) == ("gpu2", 1, "RuntimeError: boom")


def test_a_lost_server_failed_first_for_its_own_reason_and_errors_have_no_colors(tmp_path: Path) -> None:
    first = Job(1, "20261122-000000-" + "0" * 32, "gpu1", "", JobState.LOST, launch_id="l", node_rank=0)
    lost = replace(first, reason="the server rebooted")
    id_of_second = "20261122-000000-" + "1" * 32
    second = Job(
        2, id_of_second, "gpu2", "", JobState.FAILED, launch_id="l", node_rank=1, reason="stopped", lost_node=0
    )
    for known, message in ((lost, "the server rebooted"), (first, "stopped")):
        failure = first_failure([known, second], tmp_path)
        assert failure is not None
        assert (failure.server, failure.message) == ("gpu1", message)
    (tmp_path / id_of_second).mkdir()
    (tmp_path / id_of_second / "job.err").write_text("\x1b[1;31mboom\x1b[0m \x1b[2J\n")
    failure = first_failure([replace(second, reason="", lost_node=None)], tmp_path)
    assert failure is not None
    assert failure.message == "boom \x1b[2J"


@pytest.mark.row(101)
def test_the_first_failure_is_read_from_a_traceback_with_ranks_before_its_lines(tmp_path: Path) -> None:
    job = Job(1, "20261122-000000-" + "0" * 32, "gpu2", "", JobState.FAILED, launch_id="l", node_rank=1, rank_offset=2)
    logs = tmp_path / job.id
    (logs / "ranks" / "0" / "1").mkdir(parents=True)
    (logs / "ranks" / "0" / "1" / "err").write_text(
        "loading\n"
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "train.py", line 8, in <module>\n'
        "[rank3]:     step()\n"
        "[rank3]: ValueError: bad batch at step 7\n"
        "[rank3]:[W1122 12:00:00] Warning: destroy_process_group() was not called\n"
    )
    (logs / "job.err").write_text(
        "Root Cause (first observed failure):\n[0]:\n  time : x\n  host      : node-b\n"
        "  rank      : 3 (local_rank: 1)\n  exitcode  : 1 (pid: 77)\n"
    )
    failure = first_failure([job], tmp_path)
    assert failure is not None
    assert (failure.server, failure.rank, failure.message) == ("gpu2", 3, "ValueError: bad batch at step 7")
    assert failure.traceback.splitlines() == [
        "Traceback (most recent call last):",
        '  File "train.py", line 8, in <module>',
        "    step()",
        "ValueError: bad batch at step 7",
    ]


@pytest.mark.row(100)
@pytest.mark.slow
def test_a_rank_that_fails_because_it_is_stopped_is_not_the_first(trainer: Workspace) -> None:
    request = LaunchRequest("later.py", servers=("first",), processes=2)
    (job,) = trainer.launch(request).jobs
    followed = trainer.follow_jobs(selection([job.id]), lambda _chunk: None, FollowOptions())
    failure = followed.first_failure
    assert failure is not None
    assert (failure.server, failure.rank, failure.exit_code) == ("first", 1, 1)
    assert failure.message == "ValueError: rank one had enough"
    assert "raise ValueError" in failure.traceback
    assert b"rank zero does not like" in (trainer.config.local.job(job.id) / "ranks" / "0" / "0" / "err").read_bytes()


@pytest.mark.row(1, 2, 89)
@pytest.mark.slow
def test_workers_that_ignore_the_end_and_their_children_die(trainer: Workspace) -> None:
    answer = trainer.launch(LaunchRequest("stubborn.py", processes=2))
    jobs = [job.id for job in answer.jobs]
    until(lambda: all(len(processes_of(job)) >= 6 for job in jobs), 180)
    stopped = trainer.stop_jobs(selection(jobs), grace=2)
    assert stopped.errors == {}
    assert [job.state for job in stopped.jobs] == [JobState.KILLED] * 2
    assert [processes_of(job) for job in jobs] == [[], []]


def workers_of(job_id: str) -> list[int]:
    """Those processes of a job to which torchrun has given a rank."""
    return [pid for pid in processes_of(job_id) if b"\0LOCAL_RANK=" in read_of(pid, "environ")]


@pytest.mark.row(89)
@pytest.mark.slow
def test_a_torchrun_that_waits_for_the_others_and_ignores_sigterm_is_killed_after_the_grace(
    trainer: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    answer = trainer.launch(LaunchRequest("unequal.py"))
    first, second = (job.id for job in answer.jobs)
    ranks = shared_servers[0].home / "project" / ".jobs" / first / "ranks"
    until(lambda: any(path.read_text() == "up\n" for path in ranks.rglob("stdout.log")) and not workers_of(first), 180)
    assert processes_of(first)
    assert workers_of(second)
    begin = time.monotonic()
    stopped = trainer.stop_jobs(selection([first]), grace=1)
    # Else the grace of a launch, 45 seconds.
    assert time.monotonic() - begin < 40
    (job,) = stopped.jobs
    assert job.state is JobState.KILLED
    assert "SIGKILL ended the remaining processes" in job.reason
    trainer.wait_jobs(selection([second]), timeout=120)
    assert [processes_of(first), processes_of(second)] == [[], []]


@contextmanager
def no_jobs_folder(server: TestServer) -> Iterator[None]:
    """Let nothing start on a server, which does everything else."""
    folder = server.home / "project" / ".jobs"
    folder.mkdir(exist_ok=True)
    away = folder.rename(folder.with_name("jobs-away"))
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        away.rename(folder)


@pytest.mark.row(87)
@pytest.mark.slow
@pytest.mark.parametrize("broken", [0, 1])
def test_when_one_server_cannot_start_its_part_the_others_are_stopped_and_it_is_named(
    trainer: Workspace, shared_servers: tuple[TestServer, TestServer], broken: int
) -> None:
    with no_jobs_folder(shared_servers[broken]):
        answer = trainer.launch(LaunchRequest("stubborn.py"), check=False)
    bad, good = answer.jobs[broken], answer.jobs[1 - broken]
    assert list(answer.errors) == [bad.server]
    assert "no folder; jobs are kept in a plain folder" in str(answer.errors[bad.server])
    assert answer.exit_code != 0
    assert (bad.state, good.state) == (JobState.FAILED, JobState.KILLED)
    assert [processes_of(bad.id), processes_of(good.id)] == [[], []]


def take_ports(monkeypatch: pytest.MonkeyPatch, ports: ExitStack, option: str, times: int) -> list[int]:
    """Have other programs take the ports of the next launches, after they were tested and before they are used."""
    taken: list[int] = []

    async def take_and_start(context: Context, specs: Sequence[JobSpec]) -> JobsAnswer:
        if len(taken) < times:
            squatter = ports.enter_context(socket.socket())
            watch = specs[0].watch
            assert watch is not None
            match = re.search(r"--master-port (\d+)", specs[0].command)
            assert match is not None
            taken.append(int(watch.port) if option == "watch" else int(match[1]))
            # The connections that tested it may still be in TIME_WAIT.
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            squatter.bind(("0.0.0.0", taken[-1]))
            squatter.listen()
        return await start_specs(context, specs)

    monkeypatch.setattr(launch, "start_specs", take_and_start)
    return taken


@pytest.mark.row(93)
@pytest.mark.slow
def test_a_launch_whose_port_is_taken_in_the_last_moment_goes_on_with_another(
    trainer: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Chunk] = []
    request = LaunchRequest("ranks.py")
    with ExitStack() as ports:
        taken = take_ports(monkeypatch, ports, "master", 1)
        jobs = trainer.launch(request).jobs
        followed = trainer.follow_launch(request, jobs, shown.append)
    assert followed.exit_code == 0, shown
    assert not {job.id for job in jobs} & {job.id for job in followed.jobs}
    before = trainer.list_jobs(selection([job.id for job in jobs])).jobs
    assert [job.state for job in before] == [JobState.FAILED] * 2
    assert before[0].taken_port == taken[0]
    assert f"another program took port {taken[0]} before torchrun could listen on it" in before[0].reason
    assert f"first (node 0) another program took port {taken[0]}" in before[1].reason
    assert [json.loads(line)["WORLD_SIZE"] for line in lines_of(shown, b"{")] == ["2", "2"]


@pytest.mark.row(93)
@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "launches"), [(False, 3), (True, 1)])
def test_a_port_that_is_taken_again_and_again_is_given_up_and_one_that_the_user_chose_at_once(
    trainer: Workspace, monkeypatch: pytest.MonkeyPatch, *, chosen: bool, launches: int
) -> None:
    port = trainer.plan_torch(LaunchRequest("ranks.py")).rendezvous.port
    request = LaunchRequest("ranks.py", master_port=int(port) if chosen else None)
    with ExitStack() as ports:
        taken = take_ports(monkeypatch, ports, "master", 9)
        followed = trainer.follow_launch(request, trainer.launch(request).jobs, lambda _chunk: None)
    assert len(taken) == launches
    assert followed.exit_code == 1
    assert followed.first_failure is not None
    assert followed.first_failure.server == "first"
    assert f"another program took port {taken[-1]}" in followed.first_failure.message


@pytest.fixture
def slow_to_end(trainer: Workspace) -> Iterator[None]:
    """Have the control program of the first server hear of its client's end only after a while."""
    said: list[bytes] = []
    trainer.run("readlink -f .remote-scripts", ["first"], on_output=lambda _server, _stream, data: said.append(data))
    python = Path(b"".join(said).decode().strip()) / "python"
    real = python.readlink()
    wrapper = python.with_name("slow-python")
    wrapper.write_text(f'#!/bin/sh\n(cat; sleep 0.4) | {real} "$@"\n')
    wrapper.chmod(0o700)
    wrapper.replace(python)
    yield
    wrapper.symlink_to(real)
    wrapper.replace(python)


@pytest.mark.row(93)
@pytest.mark.usefixtures("slow_to_end")
def test_the_ports_of_a_plan_are_free_when_it_is_made(trainer: Workspace) -> None:
    """Else the launch would find them taken by the test of them."""
    for _ in range(2):
        rendezvous = trainer.plan_torch(LaunchRequest("ranks.py")).rendezvous
        for port in (rendezvous.port, rendezvous.watch_port):
            with socket.socket() as listener:
                # As torchrun does: the connections that tested it may still be in TIME_WAIT.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("0.0.0.0", port))


@pytest.mark.row(87, 93)
def test_a_first_node_that_cannot_be_watched_for_want_of_its_port_stops_the_launch(
    trainer: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as ports:
        (port,) = [take_ports(monkeypatch, ports, "watch", 1)]
        answer = trainer.launch(LaunchRequest("stubborn.py"), check=False)
    assert list(answer.errors) == ["first"]
    assert re.search(rf"could not be started: \S+ port {port[0]}: Address already in use", str(answer.errors["first"]))
    assert [job.state for job in answer.jobs] == [JobState.FAILED, JobState.KILLED]
    assert [processes_of(job.id) for job in answer.jobs] == [[], []]


@pytest.mark.row(17)
@pytest.mark.slow
def test_a_dead_agent_does_not_leave_its_workers(trainer: Workspace) -> None:
    answer = trainer.launch(LaunchRequest("stubborn.py", servers=("first",), processes=2))
    (job,) = answer.jobs
    until(lambda: len(processes_of(job.id)) >= 5, 180)
    for pid in processes_of(job.id):
        if b"torch.distributed.run" in read_of(pid, "cmdline"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    ended = trainer.wait_jobs(selection([job.id]), timeout=120)
    assert ended.jobs[0].state is JobState.FAILED
    assert processes_of(job.id) == []


def test_a_missing_script_is_named_before_anything_starts(trainer: Workspace) -> None:
    with pytest.raises(UsageError, match=r"nothing\.py is not in"):
        trainer.launch(LaunchRequest("nothing.py"))


def test_a_dry_run_shows_the_plan_and_starts_nothing(trainer: Workspace) -> None:
    before = len(trainer.list_jobs(JobSelection(stopped=True)).jobs)
    plan = trainer.plan_torch(LaunchRequest("ranks.py", processes=3))
    assert plan.world_size == 6
    assert plan.rendezvous.address == "127.0.0.1"
    assert len(trainer.list_jobs(JobSelection(stopped=True)).jobs) == before


@pytest.mark.row(91, 94)
def test_an_address_that_nobody_reaches_is_named(trainer: Workspace, tmp_path: Path) -> None:
    text = trainer.config.local.config_file.read_text()
    text = text.replace("  first:\n", "  first:\n    address: nowhere.invalid\n", 1)
    other = tmp_path / "project"
    (other / ".remote").mkdir(parents=True)
    (other / ".remote" / "configs.yaml").write_text(text)
    (other / "ranks.py").write_text(RANKS)
    with pytest.raises(JobError, match=r"cannot reach first at nowhere\.invalid:\d+"):
        Workspace.find(other).plan_torch(LaunchRequest("ranks.py"))


@pytest.mark.row(97)
def test_the_torch_that_the_setup_script_loads_is_the_one_that_counts(trainer: Workspace, tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    (loaded / "torch-9.9.9.dist-info").mkdir(parents=True)
    (loaded / "torch-9.9.9.dist-info" / "METADATA").write_text("Name: torch\nVersion: 9.9.9\n")
    text = trainer.config.local.config_file.read_text()
    text = text.replace("  second:\n", "  second:\n    setup: export PYTHONPATH=$LOADED\n", 1)
    other = tmp_path / "project"
    (other / ".remote").mkdir(parents=True)
    (other / ".remote" / "configs.yaml").write_text(f"{text}env: {{LOADED: {loaded}}}\n")
    (other / "ranks.py").write_text(RANKS)
    with pytest.raises(JobError, match=r"^torch differs between the servers: first \S+, second 9\.9\.9$"):
        Workspace.find(other).plan_torch(LaunchRequest("ranks.py"))


@pytest.mark.row(103)
@pytest.mark.slow
def test_restarts_use_torchruns_elastic_rendezvous_and_keep_every_attempt(trainer: Workspace) -> None:
    (trainer.root / "once.py").write_text(ONCE)
    answer = trainer.launch(LaunchRequest("once.py", processes=1, max_restarts=1))
    shown: list[Chunk] = []
    followed = trainer.follow_jobs(selection([job.id for job in answer.jobs]), shown.append)
    assert followed.exit_code == 0, shown
    assert lines_of(shown, b"again") == [b"again as one of 2"] * 2
    assert any(chunk.stream == "ranks/1/0/out" for chunk in shown)
    # In the server's folder for temporary files: its programs do not have the variables of the tests.
    shutil.rmtree(Path("/tmp", answer.jobs[0].launch_id))


@pytest.mark.row(93)
def test_a_port_that_is_taken_is_refused_before_anything_starts(trainer: Workspace) -> None:
    with socket.socket() as squatter:
        squatter.bind(("0.0.0.0", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        with pytest.raises(JobError, match=rf"Port {port} is in use"):
            trainer.plan_torch(LaunchRequest("ranks.py", master_port=port))
