"""Sweeps over two servers: every combination is done once, whatever fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import JobSelection, JobState, SweepRequest, Workspace
from remote_tool.errors import JobError, SomeServersFailedError, UsageError
from remote_tool.workflows.sweep.plan import plan_sweep
from remote_tool.workflows.sweep.records import find_sweep
from remote_tool.workflows.sweep.values import Random, SweepSpec
from remote_tool.workflows.work.records import sweep_files
from tests.extended.workflows.jobs.test_jobs import until
from tests.processes import environments, is_running
from tests.project import make_project
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.sweep.answer import SweepAnswer
    from remote_tool.workflows.sweep.plan import SweepPlan
    from tests.sshd import TestServer

# Each starts supervisors, and waits for them.
pytestmark = pytest.mark.slow

SECONDS = 300.0


class Sweeps:
    """Two servers, and the sweeps that a test started there."""

    def __init__(self, root: Path, servers: tuple[TestServer, TestServer], go: Path) -> None:
        self.workspace = Workspace.find(root)
        self.servers = servers
        self.go = go
        # Jobs that run until the test lets them go.
        self.holds = f"until test -e {go}; do sleep 0.05; done"

    def start(self, command: str, **options: object) -> SweepAnswer:
        """Start a sweep that needs nothing of the project."""
        return self.workspace.sweep(SweepRequest(command, sync=False, **options))  # type: ignore[arg-type]

    def jobs(self, answer: SweepAnswer) -> list[Job]:
        """Return the jobs of a sweep as their servers have them."""
        return list(self.workspace.list_jobs(self.selection(answer)).jobs)

    def selection(self, answer: SweepAnswer) -> JobSelection:
        return JobSelection(tags=(f"sweep-{answer.name}",), stopped=True)

    def wait(self, answer: SweepAnswer) -> Counter[JobState]:
        """Wait for the end of a sweep's jobs; return how they ended."""
        jobs = self.workspace.wait_jobs(self.selection(answer), timeout=SECONDS).jobs
        assert {job.launch_id for job in jobs} == {answer.launch_id}
        return Counter(job.state for job in jobs)

    def states(self, answer: SweepAnswer) -> dict[int, str]:
        """Return the state of each combination, as shown."""
        rows = self.workspace.sweep_results(answer.name).rows
        return {row.number: row.job.state.value if row.job else "missing" for row in rows}


@pytest.fixture
def sweeps(shared_project: Path, shared_servers: tuple[TestServer, TestServer], tmp_path: Path) -> Iterator[Sweeps]:
    """The shared servers; afterwards nothing of the test is there."""
    found = Sweeps(shared_project, shared_servers, tmp_path / "go")
    before = {job.id for job in found.workspace.list_jobs().jobs}
    yield found
    found.go.touch()
    left = [job.id for job in found.workspace.list_jobs().jobs if job.id not in before]
    if left:
        found.workspace.stop_jobs(JobSelection(jobs=tuple(left)), signal="SIGKILL")
    for server in shared_servers:
        (server.programs / "nvidia-smi").unlink(missing_ok=True)


def put_gpus(server: TestServer, count: int) -> None:
    """Give a server idle GPUs."""
    put_nvidia_smi(server.programs, *(gpu_line(index, load=0, used=1) for index in range(count)))


@pytest.mark.row(311)
def test_combinations_wait_for_gpus_and_are_placed_by_how_many_are_free(sweeps: Sweeps) -> None:
    first, second = sweeps.servers
    put_gpus(first, 1)
    put_gpus(second, 3)
    answer = sweeps.start(f'{sweeps.holds}; echo "{{n}} $CUDA_VISIBLE_DEVICES"', grid={"n": "1..8"})
    assert Counter(job.server for job in answer.jobs) == {"first": 2, "second": 6}
    assert {job.gpu_count for job in answer.jobs} == {1}

    def running() -> Counter[str]:
        return Counter(job.server for job in sweeps.jobs(answer) if job.state is JobState.RUNNING)

    until(lambda: running() == {"first": 1, "second": 3}, SECONDS)
    assert Counter(sweeps.states(answer).values()) == {"running": 4, "queued": 4}
    # What is queued counts for the next one.
    later = sweeps.start("echo {n}", grid={"n": "1..4"}, gpus=1)
    assert Counter(job.server for job in later.jobs) == {"first": 1, "second": 3}
    sweeps.go.touch()
    assert sweeps.wait(answer) == {JobState.SUCCEEDED: 8}
    assert sweeps.wait(later) == {JobState.SUCCEEDED: 4}


@pytest.mark.row(310)
def test_without_gpus_no_more_than_the_given_number_run_at_once_on_a_server(sweeps: Sweeps, tmp_path: Path) -> None:
    running = tmp_path / "running"
    running.mkdir()
    count = f"mkdir {running}/{{n}}; ls {running} | wc -l; {sweeps.holds}; rmdir {running}/{{n}}; test {{n}} != 1"
    answer = sweeps.start(count, grid={"n": "0..6"}, per_server=2, servers=("first",))
    until(lambda: len(list(running.iterdir())) == 2, SECONDS)
    assert Counter(sweeps.states(answer).values()) == {"running": 2, "queued": 5}
    sweeps.go.touch()
    # One that fails holds up no other.
    assert sweeps.wait(answer) == {JobState.SUCCEEDED: 6, JobState.FAILED: 1}
    sweeps.workspace.pull_logs(sweeps.selection(answer))
    for job in answer.jobs:
        assert int((sweeps.workspace.config.local.job(job.id) / "job.out").read_text()) <= 2


@pytest.mark.row(308)
def test_resuming_does_what_failed_and_what_is_new_and_nothing_twice(sweeps: Sweeps, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    command = f"echo {{n}}{{x}} >> {ran}; test {{n}} != 2 || test -e {sweeps.go}"
    answer = sweeps.start(command, grid={"n": "1..3", "x": "a"}, env={"TOKEN": "secret"})
    assert sweeps.wait(answer) == {JobState.SUCCEEDED: 2, JobState.FAILED: 1}
    resume, name = sweeps.workspace.resume_sweep, answer.name
    with pytest.raises(UsageError, match=f"sweep {name} needs TOKEN again"):
        resume(name)
    with pytest.raises(UsageError, match=f"Sweep {name} has another command"):
        resume(name, SweepSpec(command="echo {n}{x}"), env={"TOKEN": "secret"})
    with pytest.raises(UsageError, match=f"Sweep {name} has the parameters n, x; the new combinations have n"):
        resume(name, SweepSpec(grid={"n": [4]}), env={"TOKEN": "secret"})
    with pytest.raises(UsageError, match="No sweep 'nothing' was started here; the last are"):
        resume("nothing")
    sweeps.go.touch()
    again = resume(name, SweepSpec(grid={"x": ["a"], "n": "3..4"}), env={"TOKEN": "secret"}, sync=False)
    assert (again.combinations, sorted(again.done), again.missing) == (4, [0, 2], 0)
    assert sorted(job.node_rank or 0 for job in again.jobs) == [1, 3]
    assert sweeps.wait(answer) == {JobState.SUCCEEDED: 4, JobState.FAILED: 1}
    assert Counter(ran.read_text().split()) == {"1a": 1, "2a": 2, "3a": 1, "4a": 1}
    third = resume(name, env={"TOKEN": "secret"}, sync=False)
    assert (third.jobs, sorted(third.done)) == ((), [0, 1, 2, 3])
    assert b"secret" not in (sweeps.workspace.config.local.sweeps / f"{answer.launch_id}.json").read_bytes()


@pytest.mark.row(308)
def test_resuming_leaves_what_waits_or_runs(sweeps: Sweeps) -> None:
    answer = sweeps.start(f"{sweeps.holds}; echo {{n}}", grid={"n": "1..3"}, servers=("first",), per_server=1)
    again = sweeps.workspace.resume_sweep(answer.name, SweepSpec(grid={"n": "1..4"}), sync=False)
    assert sorted(again.waiting) == [0, 1, 2]
    assert [job.node_rank for job in again.jobs] == [3]
    assert (again.jobs[0].slots, again.jobs[0].after) == (1, ())
    assert Counter(sweeps.states(answer).values()) == {"running": 1, "queued": 3}
    sweeps.go.touch()
    assert sweeps.wait(answer) == {JobState.SUCCEEDED: 4}


@pytest.mark.row(308)
def test_what_an_older_version_started_in_a_chain_runs_to_its_end_before_what_is_new(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def in_a_chain(*given: Any, **named: Any) -> SweepPlan:
            found = plan_sweep(*given, **named)
            ids = [(), *((job.id,) for job in found.jobs)]
            jobs = (replace(job, slots=None, after=after) for job, after in zip(found.jobs, ids, strict=False))
            return replace(found, jobs=tuple(jobs))

        patch.setattr("remote_tool.workflows.sweep.sweep.plan_sweep", in_a_chain)
        answer = sweeps.start(f"{sweeps.holds}; echo {{n}}", grid={"n": "1..3"}, servers=("first",), per_server=1)
    again = sweeps.workspace.resume_sweep(answer.name, SweepSpec(grid={"n": "1..4"}), sync=False)
    assert (again.jobs[0].slots, again.jobs[0].after) == (1, tuple(job.id for job in answer.jobs))
    sweeps.go.touch()
    assert sweeps.wait(answer) == {JobState.SUCCEEDED: 4}


@pytest.mark.row(313)
def test_a_seed_draws_the_same_and_more_draws_are_new_combinations(sweeps: Sweeps) -> None:
    ways = {"lr": "log:1e-5..1e-1"}
    answer = sweeps.start("echo {lr}", random=Random(2, ways))
    same = sweeps.workspace.resume_sweep(answer.name, SweepSpec(random=Random(2, ways)), sync=False)
    assert (same.combinations, same.jobs) == (2, ())
    more = sweeps.workspace.resume_sweep(answer.name, SweepSpec(random=Random(3, ways)), sync=False)
    assert (more.combinations, len(more.jobs)) == (3, 1)


@pytest.mark.row(314)
def test_only_one_program_starts_jobs_of_a_sweep_at_a_time(sweeps: Sweeps) -> None:
    answer = sweeps.start("exit {n}", grid={"n": [1]})
    files = sweep_files(sweeps.workspace.config.local.sweeps)
    message = f"Another remote-tool is starting sweep {answer.name}"
    with files.locked(answer.launch_id, "starting"), pytest.raises(JobError, match=message):
        sweeps.workspace.resume_sweep(answer.name, sync=False)


@pytest.mark.row(314)
def test_a_record_that_was_changed_by_hand_is_named(sweeps: Sweeps) -> None:
    answer = sweeps.start("exit {n}", grid={"n": [1, 2]})
    folder = sweeps.workspace.config.local.sweeps
    path = folder / f"{answer.launch_id}.json"
    good = json.loads(path.read_text())
    changes: tuple[dict[str, object], ...] = (
        {"schema": 2},
        {"launch_id": "other"},
        {"combinations": []},
        {"combinations": [["1", "2"]]},
        {"combinations": [[1]]},
        {"parameters": "n"},
        {"gpus": "1"},
        {"backfill": 1},
        {"random_seed": "1"},
    )
    for change in changes:
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(JobError, match="not the record of a sweep"):
            find_sweep(folder, answer.name)
    path.write_text(json.dumps({**good, "command": "echo {other}"}))
    with pytest.raises(UsageError, match="is not a parameter of the sweep"):
        find_sweep(folder, answer.name)
    path.unlink()
    with pytest.raises(UsageError, match=f"No sweep '{answer.name}' was started here"):
        find_sweep(folder, answer.name)


@pytest.mark.row(308)
def test_a_program_that_is_killed_while_it_starts_a_sweep_leaves_one_that_can_be_resumed(
    sweeps: Sweeps, tmp_path: Path
) -> None:
    ran, folder = tmp_path / "ran", sweeps.workspace.config.local.sweeps
    before = set(sweep_files(folder).names())
    words = ["helper-sweep", "--cmd", f"echo {{n}} >> {ran}", "--grid", "n=1..20", "--no-sync", "--per-server", "5"]
    program = subprocess.Popen([sys.executable, "-m", "remote_tool", *words], cwd=sweeps.workspace.root)
    until(lambda: program.poll() is not None or set(sweep_files(folder).names()) - before, SECONDS)
    program.kill()
    program.wait()
    (launch_id,) = set(sweep_files(folder).names()) - before
    answer = sweeps.workspace.resume_sweep(launch_id, sync=False)
    assert answer.missing == 0
    assert sweeps.wait(answer)[JobState.SUCCEEDED] == 20
    assert Counter(ran.read_text().split()) == {str(number): 1 for number in range(1, 21)}


def switch_off(server: TestServer) -> None:
    """End everything that runs on a server, at once, and its sshd."""
    server.stop()

    def left() -> list[int]:
        mark = f"HOME={server.home}\0".encode()
        return [pid for pid, environment in environments() if mark in environment and is_running(pid)]

    def kill() -> bool:
        for pid in left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left()

    until(kill, SECONDS)


@pytest.mark.row(309)
def test_a_server_that_goes_away_and_comes_back_is_waited_for_and_its_combinations_are_resumed(
    two_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    second = two_servers[1]
    for server in two_servers:
        put_gpus(server, 2)
    root = make_project(tmp_path / "project", two_servers)
    Workspace.find(root).prepare()
    sweeps, done = Sweeps(root, two_servers, tmp_path / "go"), tmp_path / "done"
    # The first to begin on each server ends at once; which one that is, nobody promises.
    is_first = f"mkdir {tmp_path}/of-$REMOTE_TOOL_SERVER"
    answer = sweeps.start(f"{is_first} || {{ {sweeps.holds}; }}; echo {{n}} >> {done}", grid={"n": "1..20"})
    assert Counter(job.server for job in answer.jobs) == {"first": 10, "second": 10}
    until(lambda: done.exists() and len(done.read_text().split()) == 2, SECONDS)
    until(lambda: any((second.home / "project" / ".jobs").glob("*/ended.json")), SECONDS)
    switch_off(second)

    with pytest.raises(SomeServersFailedError) as failed:
        sweeps.workspace.resume_sweep(answer.name, sync=False)
    away = failed.value.failures["second"]
    # One of them was done before it went away, which nobody has heard yet, or has.
    assert "combinations may still run there, and will not be started elsewhere" in str(away)
    assert f"remote-tool job-kill --tag sweep-{answer.name} --server second" in away.hint
    assert {job.server for job in sweeps.workspace.select_local(sweeps.selection(answer))} == {"first", "second"}
    assert len(sweeps.workspace.select_local(sweeps.selection(answer))) == 20

    second.start()
    again = sweeps.workspace.resume_sweep(answer.name, sync=False)
    assert len(again.jobs) == 9
    assert again.missing == 0
    sweeps.go.touch()
    assert sweeps.wait(answer) == {JobState.SUCCEEDED: 20, JobState.LOST: 9}
    assert Counter(done.read_text().split()) == {str(number): 1 for number in range(1, 21)}
    assert set(sweeps.states(answer).values()) == {"succeeded"}


@pytest.mark.row(311)
def test_a_server_that_is_away_at_the_start_is_named_and_the_others_get_its_part(
    two_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    root = make_project(tmp_path / "project", two_servers)
    Workspace.find(root).prepare()
    two_servers[1].stop()
    sweeps = Sweeps(root, two_servers, tmp_path / "go")
    answer = sweeps.workspace.sweep(SweepRequest("echo {n}", grid={"n": "1..4"}), check=False)
    assert (answer.exit_code, set(answer.errors), answer.missing) == (3, {"second"}, 0)
    assert {job.server for job in answer.jobs} == {"first"}
    two_servers[0].stop()
    with pytest.raises(SomeServersFailedError):
        sweeps.workspace.sweep(SweepRequest("echo {n}", grid={"n": "1..4"}))
    assert len(sweep_files(sweeps.workspace.config.local.sweeps).names()) == 1
