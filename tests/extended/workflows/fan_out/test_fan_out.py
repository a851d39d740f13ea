"""Work split over two servers: every shard is done once, whatever fails."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import FanOutRequest, JobSelection, JobState, Workspace
from remote_tool.errors import JobError, SomeServersFailedError, UsageError
from remote_tool.jobs.job import Job, JobSpec, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import ignore
from remote_tool.workflows.fan_out import dispatcher, fan_out
from remote_tool.workflows.fan_out.observer import Observer
from remote_tool.workflows.fan_out.plan import Slot, make_shards
from remote_tool.workflows.fan_out.records import find_record
from remote_tool.workflows.fan_out.work_queue import Attempt, WorkQueue
from tests.extended.workflows.jobs.test_follow import kill_control_programs
from tests.extended.workflows.jobs.test_jobs import log_of, remote_folder, until
from tests.processes import processes_of
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.workflows.fan_out.answer import FanOutAnswer
    from remote_tool.workflows.jobs.follow import Chunk
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

VARIABLES = "COUNT START STOP SHARD SHARDS"


class Heard:
    """What an audience was told."""

    def __init__(self) -> None:
        self.name = ""
        self.chunks: list[Chunk] = []
        self.ends: list[tuple[Attempt, bool]] = []
        self.observer = Observer(
            lambda plan: setattr(self, "name", plan.name),
            self.chunks.append,
            lambda attempt, again: self.ends.append((attempt, again)),
        )

    def lines(self) -> dict[str, list[str]]:
        """The lines of each label."""
        found: dict[str, bytes] = {}
        for chunk in self.chunks:
            found[chunk.label] = found.get(chunk.label, b"") + chunk.data
        return {label: text.decode().splitlines() for label, text in found.items()}


def states(answer: FanOutAnswer) -> list[tuple[int | None, str, JobState]]:
    return sorted((job.node_rank, job.server, job.state) for job in answer.jobs)


def test_a_total_is_split_over_all_slots_and_each_job_gets_its_part(workspace: Workspace) -> None:
    heard = Heard()
    say = "echo {count} {start} {stop} {shard} {shards}; echo " + " ".join(
        f"$REMOTE_TOOL_{name}" for name in VARIABLES.split()
    )
    answer = workspace.fan_out(FanOutRequest(say, total=10, per_server=2, tags=("play",)), observer=heard.observer)
    assert heard.lines() == {
        "0 first": ["3 0 3 0 4"] * 2,
        "1 first": ["3 3 6 1 4"] * 2,
        "2 second": ["2 6 8 2 4"] * 2,
        "3 second": ["2 8 10 3 4"] * 2,
    }
    assert (answer.exit_code, answer.done, len(heard.ends)) == (0, frozenset(range(4)), 4)
    assert heard.name == answer.launch_id[-6:]
    tags = {tag for job in answer.jobs for tag in job.tags}
    assert tags == {"play", f"fan-out-{heard.name}", "shard-0", "shard-1", "shard-2", "shard-3", "slot-0", "slot-1"}


@pytest.mark.slow
def test_without_following_all_begin_and_one_tag_selects_them(workspace: Workspace) -> None:
    answer = workspace.fan_out(FanOutRequest("sleep 1000", per_server=2), follow=False)
    assert (answer.exit_code, Counter(job.server for job in answer.jobs)) == (0, {"first": 2, "second": 2})
    selection = JobSelection(tags=(f"fan-out-{answer.launch_id[-6:]}",))
    listed = workspace.list_jobs(selection).jobs
    assert {job.id for job in listed} == {job.id for job in answer.jobs}
    stopped = workspace.stop_jobs(selection, signal="SIGKILL").raise_if_any_failed()
    assert [job.state for job in stopped.jobs] == [JobState.KILLED] * 4


@pytest.mark.slow
def test_a_slot_sees_its_gpu_as_the_server_names_it(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("first", SetEnv="CUDA_VISIBLE_DEVICES=4,GPU-12")
    workspace = Workspace.find(make_project(tmp_path / "project", [server, make_server("second")]))
    workspace.prepare()
    heard = Heard()
    request = FanOutRequest("echo ${{CUDA_VISIBLE_DEVICES:-none}}")
    assert workspace.fan_out(request, observer=heard.observer).exit_code == 0
    assert heard.lines() == {"0 first": ["4"], "1 first": ["GPU-12"], "2 second": ["none"]}
    unseen = Heard()
    workspace.fan_out(replace(request, environment={"CUDA_VISIBLE_DEVICES": ""}), observer=unseen.observer)
    assert unseen.lines() == {"0 first": ["none"], "1 second": ["none"]}


def test_a_shard_that_fails_is_started_again_on_another_server(workspace: Workspace) -> None:
    heard = Heard()
    command = "echo try; test $REMOTE_TOOL_SHARD != 0 || test $REMOTE_TOOL_SERVER = second"
    answer = workspace.fan_out(FanOutRequest(command), observer=heard.observer)
    assert answer.exit_code == 0
    assert states(answer) == [
        (0, "first", JobState.FAILED),
        (0, "second", JobState.SUCCEEDED),
        (1, "second", JobState.SUCCEEDED),
    ]
    assert [(attempt.shard.number, again) for attempt, again in heard.ends if attempt.job.state is JobState.FAILED] == [
        (0, True)
    ]


async def test_a_server_without_work_stays_while_another_one_starts_a_shard_that_fails(workspace: Workspace) -> None:
    """Nobody else can do it: the fan-out would never end."""
    request = FanOutRequest("test $REMOTE_TOOL_SERVER = second", items=("a",))
    async with HostPool(workspace.config) as pool, asyncio.timeout(300):
        context = Context(workspace.config, pool, Registry(workspace.config.local.jobs), ignore)
        answer = await fan_out.follow(context, request)
    assert states(answer) == [(0, "first", JobState.FAILED), (0, "second", JobState.SUCCEEDED)]


@pytest.mark.slow
def test_a_shard_that_fails_too_often_is_named_and_the_others_are_done(workspace: Workspace) -> None:
    request = FanOutRequest("test {shard} != 2", per_server=2, retries=2)
    answer = workspace.fan_out(request, check=False)
    assert (answer.exit_code, sorted(answer.done), list(answer.failed)) == (1, [0, 1, 3], [2])
    assert Counter(job.node_rank for job in answer.jobs) == {0: 1, 1: 1, 2: 3, 3: 1}
    with pytest.raises(JobError, match="1 of 4 shards are not done"):
        answer.raise_if_any_failed()


@pytest.mark.slow
def test_items_are_handed_out_to_whoever_is_free(workspace: Workspace, tmp_path: Path) -> None:
    """The first server is held by its first item until the second has done all others."""
    seen = tmp_path / "seen"
    seen.mkdir()
    items = ("held", *(f"item {number} 'x'" for number in range(5)))
    wait = f"until test $(ls {seen} | wc -l) = 5; do sleep 0.02; done"
    command = f'case {{item}} in held) {wait};; *) touch {seen}/{{shard}};; esac; printf "%s\\n" {{item}}'
    heard = Heard()
    answer = workspace.fan_out(FanOutRequest(command, items=items), observer=heard.observer)
    assert (answer.exit_code, answer.undone) == (0, 0)
    assert heard.lines() == {"0 first": ["held"]} | {f"{n} second": [items[n]] for n in range(1, 6)}


@pytest.mark.slow
def test_a_server_that_fails_everything_does_not_use_up_the_items(workspace: Workspace) -> None:
    command = "test $REMOTE_TOOL_SERVER = second"
    answer = workspace.fan_out(FanOutRequest(command, items=tuple("abcd")), check=False)
    assert (answer.exit_code, answer.undone) == (0, 0)


@pytest.mark.row(151)
@pytest.mark.slow
def test_what_may_run_on_a_server_that_is_given_up_is_named_and_not_started_elsewhere(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who stops it gives it to the others."""
    monkeypatch.setattr(dispatcher, "GONE_AFTER", 0.1)
    first, second = make_server("first"), make_server("second")
    workspace = Workspace.find(make_project(tmp_path / "project", [first, second]))
    workspace.prepare()
    go, seen = tmp_path / "go", tmp_path / "seen"
    command = (
        f"echo {{item}} $REMOTE_TOOL_SERVER >> {seen}; echo on;"
        f" test $REMOTE_TOOL_SERVER = first || until test -e {go}; do sleep 0.05; done"
    )
    heard = Heard()
    request = FanOutRequest(command, items=("a", "b", "c"))
    with ThreadPoolExecutor() as threads:
        following = threads.submit(workspace.fan_out, request, observer=heard.observer, check=False)
        until(lambda: "1 second" in heard.lines())
        (left,) = [chunk.job for chunk in heard.chunks if chunk.label == "1 second"]
        second.stop()
        answer = following.result(60)
    assert (answer.exit_code, answer.undone, list(answer.errors)) == (3, 1, ["second"])
    error = answer.errors["second"]
    assert "shard 1 may still run there, and is not started elsewhere" in str(error)
    assert f"remote-tool job-kill {left.key}" in error.hint
    assert sorted(seen.read_text().splitlines()) == ["a first", "b second", "c first"]
    workspace.stop_jobs(JobSelection(jobs=(left.id,)))
    resumed = workspace.resume_fan_out(heard.name, check=False)
    assert (resumed.undone, sorted(seen.read_text().splitlines())[1]) == (0, "b first")
    second.start()
    Workspace.find(workspace.root).list_jobs()
    until(lambda: not processes_of(left.id))


@pytest.mark.row(151)
@pytest.mark.slow
def test_a_control_program_that_is_killed_costs_a_fan_out_no_server_and_no_shard_runs_twice(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    go, seen = tmp_path / "go", tmp_path / "seen"
    command = f"echo {{item}} $REMOTE_TOOL_SERVER >> {seen}; echo on; until test -e {go}; do sleep 0.05; done; echo off"
    heard = Heard()
    with ThreadPoolExecutor() as threads:
        request = FanOutRequest(command, items=("a", "b", "c"))
        following = threads.submit(workspace.fan_out, request, observer=heard.observer, check=False)
        until(lambda: len(heard.lines()) == 2)
        for _ in range(2):
            until(lambda: kill_control_programs(shared_servers[1]))
        go.touch()
        answer = following.result(60)
    assert (answer.exit_code, answer.undone, dict(answer.errors)) == (0, 0, {})
    assert sorted(line.split()[0] for line in seen.read_text().splitlines()) == ["a", "b", "c"]
    assert all(lines == ["on", "off"] for lines in heard.lines().values())


async def test_an_interruption_is_not_swallowed_while_a_follow_ends(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot has become free, so the follow is left, which takes a moment; Ctrl-C comes in that moment."""
    ending, may_end = asyncio.Event(), asyncio.Event()

    async def follow_slowly(*_: object, **__: object) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ending.set()
            await may_end.wait()

    monkeypatch.setattr(dispatcher, "follow_server", follow_slowly)
    running, waits = make_shards(FanOutRequest("true", items=("a", "b")), 2)
    job = Job(1, new_job_id(), "first", "true", JobState.RUNNING)
    slots = [Slot("first", 0), Slot("first", 1)]
    board = WorkQueue(slots, deque([waits]), retries=1, attempts={job.id: Attempt(running, slots[0], job)})
    async with HostPool(workspace.config) as pool:
        context = Context(workspace.config, pool, Registry(workspace.config.local.jobs), ignore)
        handing = dispatcher.Dispatcher(context, board, lambda _: JobSpec("", "", ""), Observer())
        task = asyncio.create_task(handing._follow("first"))
        await ending.wait()
        task.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.slow
def test_a_server_that_is_away_from_the_beginning_leaves_its_part_to_the_others(
    make_server: MakeServer, tmp_path: Path
) -> None:
    first, second = make_server("first"), make_server("second")
    workspace = Workspace.find(make_project(tmp_path / "project", [first, second]))
    workspace.prepare()
    second.stop()
    answer = workspace.fan_out(FanOutRequest("echo {count}", total=5), check=False)
    assert (answer.exit_code, list(answer.errors), answer.undone) == (3, ["second"], 0)
    assert log_of(workspace, answer.jobs[0].id) == b"5\n"
    with pytest.raises(SomeServersFailedError):
        workspace.plan_fan_out(FanOutRequest("true"))


@pytest.mark.slow
def test_an_interrupted_fan_out_resumes_and_repeats_nothing(workspace: Workspace, tmp_path: Path) -> None:
    """One item fails, one runs on while nobody looks, and the others have not begun."""
    go, seen = tmp_path / "go", tmp_path / "seen"
    seen.mkdir()
    command = (
        f"echo $WHO >> {seen}/{{item}}; case {{item}} in"
        f" bad) test -e {go};; slow) until test -e {go}; do sleep 0.02; done;; esac"
    )
    request = FanOutRequest(command, items=("bad", "slow", "c", "d"), retries=0, environment={"WHO": "me"})
    heard = Heard()
    observer = Observer(heard.observer.on_plan, on_end=lambda _turn, _again: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        workspace.fan_out(request, observer=observer)
    with pytest.raises(UsageError, match="needs WHO again"):
        workspace.resume_fan_out(heard.name)
    go.touch()
    answer = Workspace.find(workspace.root).resume_fan_out(heard.name, {"WHO": "me"})
    assert (answer.exit_code, answer.undone) == (0, 0)
    assert {path.name: path.read_text() for path in seen.iterdir()} == {
        "bad": "me\nme\n",
        "slow": "me\n",
        "c": "me\n",
        "d": "me\n",
    }
    again = workspace.resume_fan_out(f"fan-out-{heard.name}", {"WHO": "me"})
    assert (again.undone, len(again.jobs)) == (0, 5)


def test_a_resumed_fan_out_keeps_the_slots_of_its_host_list(workspace: Workspace) -> None:
    slots: list[list[str]] = []
    observer = Observer(lambda plan: slots.append([slot.server for slot in plan.slots]))
    request = FanOutRequest("exit 1", retries=0)
    answer = workspace.with_hosts("first:2,second:1").fan_out(request, observer=observer, check=False)
    workspace.resume_fan_out(answer.launch_id, observer=observer, check=False)
    assert slots == [["first", "first", "second"]] * 2
    record = workspace.config.local.fan_outs / f"{answer.launch_id}.json"
    values = json.loads(record.read_text())
    del values["listed"]
    record.write_text(json.dumps(values))
    assert find_record(record.parent, answer.launch_id).listed == {}, "as an earlier version wrote it"


def test_a_queue_is_over_when_no_slot_is_left_for_its_work() -> None:
    """A server where a job of earlier runs may have no slots now."""
    running, waits = make_shards(FanOutRequest("true", items=("a", "b")), 2)
    job = Job(1, new_job_id(), "first", "true", JobState.RUNNING)
    attempts = {job.id: Attempt(running, Slot("first", 0), job)}
    board = WorkQueue([Slot("second", 0)], deque([waits]), retries=1, attempts=attempts)
    board.retire("second")
    over = [board.is_over]
    board.end(replace(job, state=JobState.SUCCEEDED))
    assert [*over, board.is_over] == [False, True]
    assert [board.is_settled(shard) for shard in (running, waits)] == [True, False]


def test_a_queue_is_not_over_while_a_shard_is_starting() -> None:
    shards = make_shards(FanOutRequest("true", items=("a", "b", "c")), 3)
    queue = WorkQueue([Slot("first", 0), Slot("first", 1), Slot("second", 0)], deque(shards), retries=1)
    begins, refused = queue.take("first")
    (other,) = queue.take("second")
    job = Job(1, new_job_id(), "first", "true", JobState.RUNNING)
    over = [queue.is_over]
    queue.begin(Attempt(begins.shard, begins.slot, job))
    queue.end(replace(job, state=JobState.SUCCEEDED))
    over.append(queue.is_over)
    queue.give_back([refused])
    assert list(queue.waiting) == [refused.shard]
    queue.retire("first")
    # Its start ended with an error of the server: nobody knows whether it runs there.
    queue.give_up(other.slot.server)
    assert [*over, queue.is_over] == [False, False, True]


@pytest.mark.slow
def test_only_one_program_hands_out(workspace: Workspace) -> None:
    heard = Heard()
    with ThreadPoolExecutor() as threads:
        request = FanOutRequest("echo on; sleep 1000", servers=("first",))
        following = threads.submit(workspace.fan_out, request, observer=heard.observer, check=False)
        until(heard.lines)
        with pytest.raises(JobError, match=f"Another remote-tool is following fan-out {heard.name}"):
            workspace.resume_fan_out(heard.name)
        workspace.stop_jobs(JobSelection(tags=(f"fan-out-{heard.name}",)), signal="SIGKILL")
        assert following.result(60).exit_code == 1


@pytest.mark.slow
def test_a_start_whose_answer_was_lost_is_asked_for_again_by_its_id(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    """As a program leaves it that was killed after it had recorded a job, before or after the server began it."""
    seen = tmp_path / "seen"
    answer = workspace.fan_out(FanOutRequest(f"echo {{shard}} >> {seen}"))
    registry = Registry(workspace.config.local.jobs)
    first, second = answer.jobs
    for job in (first, second):
        (registry.folder / job.id / "job.yaml").unlink()
    begun = replace(second, state=JobState.STARTING, ended_at=None)
    gone = replace(first, id=new_job_id(), state=JobState.STARTING, created_at=time.time(), ended_at=None)
    never = replace(gone, folder_id="", seen_at=None)
    shutil.rmtree(remote_folder(shared_servers[0], first.id))
    registry.adopt([never, begun])
    again = workspace.resume_fan_out(answer.launch_id)
    assert (again.undone, sorted(seen.read_text().split())) == (0, ["0", "0", "1"])
    assert {job.id for job in again.jobs} == {never.id, begun.id}


@pytest.mark.row(151)
@pytest.mark.slow
def test_a_shard_of_which_processes_are_left_is_started_nowhere_else(workspace: Workspace) -> None:
    request = FanOutRequest("kill -9 $PPID; exec sleep 1000", items=("a",), per_server=1, retries=1)
    answer = workspace.fan_out(request, check=False)
    (job,) = answer.jobs
    assert (job.state, job.processes_left, answer.undone) == (JobState.LOST, 1, 1)
    again = workspace.resume_fan_out(answer.launch_id, check=False)
    assert ([each.id for each in again.jobs], again.undone) == ([job.id], 1)
    workspace.stop_jobs(JobSelection(jobs=(job.id,)), signal="SIGKILL")
    assert processes_of(job.id) == []


@pytest.mark.slow
def test_after_a_kill_nothing_more_is_handed_out(workspace: Workspace) -> None:
    heard = Heard()
    request = FanOutRequest("echo {item}; sleep 1000", items=tuple("abcd"))
    with ThreadPoolExecutor() as threads:
        following = threads.submit(workspace.fan_out, request, observer=heard.observer, check=False)
        until(lambda: len(heard.lines()) == 2)
        workspace.stop_jobs(JobSelection(tags=(f"fan-out-{heard.name}",)))
        answer = following.result(60)
    assert (answer.exit_code, answer.undone, len(answer.jobs)) == (1, 4, 2)


def test_an_unknown_fan_out_or_a_damaged_record_is_named(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match=r"No fan-out 'zzzzzz' was started here"):
        workspace.resume_fan_out("zzzzzz")
    path = workspace.config.local.fan_outs / "20261121-053000-0000000000000000000000000000dead.json"
    path.parent.mkdir(exist_ok=True)
    for text in ("", "[]", "null", '{"schema": 2}', '{"schema": 1, "launch_id": 7}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(JobError, match=re.escape(f"{path}: not the record of a fan-out")):
            workspace.resume_fan_out("dead")
    path.unlink()


def test_a_script_that_is_not_in_the_project_is_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match=r"nothing\.py is not in"):
        workspace.fan_out(FanOutRequest("nothing.py {shard}"))
