"""Samples of real servers: once, and over one channel per server that is made again when it is cut."""

from __future__ import annotations

import json
import math
import queue
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import JobSelection, SweepRequest, Workspace
from remote_tool.errors import UsageError
from remote_tool.workflows.servers.samples import parse_sample
from remote_tool.workflows.servers.top import MOST_ENDED, JobsChanged, Missed, Progressed, Sampled
from tests.project import make_project
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.workflows.servers.top import TopEvent
    from tests.conftest import MakeServer

PATIENCE = 300.0


class Events:
    """The events of a watch, in their order."""

    def __init__(self) -> None:
        self.take: queue.Queue[TopEvent] = queue.Queue()

    def until(self, holds: Callable[[Any], object]) -> Any:
        """Return the first event that holds, and drop those before it."""
        while True:
            event = self.take.get(timeout=PATIENCE)
            if holds(event):
                return event


def prepared(make_server: MakeServer, root: Path, *names: str) -> tuple[Workspace, list[Any]]:
    """Make servers that are prepared."""
    servers = [make_server(name) for name in names]
    workspace = Workspace.find(make_project(root, servers))
    workspace.prepare()
    return workspace, servers


def test_a_sample_has_gpus_and_running_jobs_and_who_could_not_be_asked(make_server: MakeServer, tmp_path: Path) -> None:
    workspace, (first, second) = prepared(make_server, tmp_path / "project", "first", "second")
    put_nvidia_smi(first.programs, gpu_line(0), gpu_line(1, load=13))
    job = workspace.start("first", "echo step 3/10; echo loss 0.5; exec sleep 600")
    second.stop()
    answer = workspace.take_samples()
    job.kill("SIGKILL")
    assert (sorted(answer.samples), sorted(answer.errors), answer.exit_code) == (["first"], ["second"], 3)
    sample = answer.samples["first"]
    assert [gpu.load for gpu in sample.gpus] == [97.0, 13.0]
    assert sample.gpus[0].memory_used == 40000 * 1024**2
    assert sample.gpu_load == 55.0
    assert [each.id for each in answer.jobs] == [job.id]


@pytest.mark.slow
@pytest.mark.row(232)
def test_a_watch_reports_jobs_values_and_a_cut_connection_and_goes_on(make_server: MakeServer, tmp_path: Path) -> None:
    """A server that cannot be asked is named; it is not shown as one without jobs or GPUs."""
    workspace, (first, second) = prepared(make_server, tmp_path / "project", "first", "second")
    put_nvidia_smi(second.programs, otherwise="exec sleep 300")
    events = Events()
    running = workspace.watch(events.take.put, interval=0.5)
    try:
        seen = {events.until(lambda event: isinstance(event, Sampled)).server}
        seen.add(events.until(lambda event: isinstance(event, Sampled) and event.server not in seen).server)
        assert seen == {"first", "second"}
        job = workspace.start("first", "while :; do echo step 3/10 loss 0.25; sleep 0.2; done")
        changed = events.until(lambda event: isinstance(event, JobsChanged) and event.jobs and event.jobs[0].pid)
        assert [each.id for each in changed.jobs] == [job.id]
        values = events.until(lambda event: isinstance(event, Progressed))
        assert (values.job, values.values["step"], values.values["loss"]) == (job.id, "3/10", "0.25")
        first.drop_connections()
        missed = events.until(lambda event: isinstance(event, Missed))
        assert missed.server == "first"
        events.until(lambda event: isinstance(event, Sampled) and event.server == "first")
        job.kill("SIGKILL")
        ended = events.until(lambda event: isinstance(event, JobsChanged) and not event.jobs[0].may_run)
        assert [each.state.value for each in ended.jobs] == ["killed"]
    finally:
        running.stop()
    assert not workspace.list_jobs(JobSelection()).jobs


@pytest.mark.slow
def test_a_watch_forgets_jobs_that_ended_but_for_the_last_ones(make_server: MakeServer, tmp_path: Path) -> None:
    workspace, _ = prepared(make_server, tmp_path / "project", "first")
    numbers = range(MOST_ENDED + 5)
    events = Events()
    running = workspace.watch(events.take.put, interval=0.5)
    try:
        go = tmp_path / "go"
        command = f"until test -e {go}; do sleep 0.1; done"
        grid = {"n": f"{numbers.start}..{numbers[-1]}"}
        workspace.sweep(SweepRequest(f"{command}; echo {{n}}", grid=grid, sync=False, per_server=len(numbers)))

        def count(event: TopEvent, *, may_run: bool) -> int:
            return sum(job.may_run is may_run for job in event.jobs) if isinstance(event, JobsChanged) else 0

        events.until(lambda event: count(event, may_run=True) == len(numbers))
        go.touch()
        changes = [events.until(lambda event: isinstance(event, JobsChanged))]
        while count(changes[-1], may_run=True):
            changes.append(events.until(lambda event: isinstance(event, JobsChanged)))
        assert len(changes[-1].jobs) == MOST_ENDED
        assert max(count(each, may_run=False) for each in changes) == MOST_ENDED
    finally:
        running.stop()


@pytest.mark.parametrize(("servers", "interval"), [(["nowhere"], 2.0), ([], 0.0), ([], math.inf)])
def test_an_unknown_server_and_an_interval_out_of_bounds_are_refused(
    workspace: Workspace, servers: list[str], interval: float
) -> None:
    with pytest.raises(UsageError):
        workspace.watch(print, servers, interval=interval).result()


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"machine": [], "gpus": {}},
        {"machine": {"cpu": "high", "cores": -1, "load": math.nan, "disk_free": 10**400, "memory_total": True}},
        {"gpus": [3, {"index": None, "load": [], "processes": 7}, {"processes": [None, {"pid": "x", "job": 4}]}]},
        {"gpus": [{}] * 100_000, "gpu_problem": 5},
        {"ranks": [{"job": 5, "alive": [True, -1, "3", math.nan, {}], "ended": {}}, 7] * 1000, "disk_problem": []},
    ],
)
def test_an_answer_of_any_shape_is_read(answer: dict[str, Any]) -> None:
    sample = parse_sample(json.loads(json.dumps(answer)))
    assert sample.cpu is None
    assert len(sample.gpus) <= 256
    assert (sample.memory_used, sample.disk_free, sample.gpu_load) == (None, None, None)
    assert len(sample.ranks) <= 256
    assert not any(each.alive or each.ended for each in sample.ranks)
