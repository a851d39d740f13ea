"""The records of fan-outs and sweeps, and the rule of what ``--resume`` starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args, get_origin

import pytest

from remote_tool import FanOutRequest, SweepRequest
from remote_tool.jobs.job import Job, JobState, new_job_id
from remote_tool.protocol.artifact_patterns import ArtifactPattern
from remote_tool.workflows.fan_out.records import FanOutRecord, find_record, write_record
from remote_tool.workflows.sweep.records import SweepRecord, find_sweep, listing, write_sweep
from remote_tool.workflows.work.records import WorkStanding, fan_out_files, read_field, recorded_fields

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.launchers.job_request import JobRequest

# A value of each type that an option has, as JSON.
SAMPLES: dict[object, object] = {str: "a", int: 2, bool: True, float: 60.5, type(None): None}


def samples(of_type: Any) -> list[object]:
    """Return a value for each part of a type."""
    if get_origin(of_type) is tuple:
        return [[value] for value in samples(get_args(of_type)[0])]
    kinds = get_args(of_type) or (of_type,)
    return [SAMPLES[kind] for kind in kinds if kind is not ArtifactPattern]


@pytest.mark.parametrize("kind", [FanOutRequest, SweepRequest])
def test_every_recorded_option_is_read_again_and_only_as_what_it_is(kind: type[JobRequest]) -> None:
    types = recorded_fields(kind)
    assert {"command", "servers", "gpus", "nice", "max_duration", "frozen", "name"} < types.keys()
    assert not {"environment", "sync", "overwrite"} & types.keys()
    for name, of_type in types.items():
        for sample in samples(of_type):
            found = read_field({name: sample}, name, of_type)
            assert found == (tuple(sample) if isinstance(sample, list) else sample)
        with pytest.raises(TypeError, match=f"{name} has a wrong type"):
            read_field({name: {}}, name, of_type)
    assert types["gpus"] is int
    with pytest.raises(TypeError):
        read_field({"gpus": True}, "gpus", types["gpus"])


def test_a_fan_out_is_read_as_it_was_recorded_without_its_variables(tmp_path: Path) -> None:
    request = FanOutRequest(
        "play {item} {shard}",
        ("a", "b"),
        items=("x y", "z"),
        per_server=3,
        tags=("t",),
        retries=0,
        artifacts=("out/{shard}/*",),
        gather="data",
        workdir="sub",
        nice=7,
        max_duration="12h",
        stop_if_idle=90,
        name="n",
        devices=("0", "1"),
        frozen=True,
    )
    record = FanOutRecord(new_job_id(), request, ("TOKEN",), {"a": 2, "b": None}, shards=2)
    write_record(tmp_path, record)
    assert find_record(tmp_path, record.launch_id) == record
    fan_out_files(tmp_path).note_done(record.launch_id, {1})
    assert find_record(tmp_path, record.launch_id).done == {1}


def test_a_sweep_is_read_with_all_its_combinations(tmp_path: Path) -> None:
    request = SweepRequest("train {lr} {n}", grid={"n": "1..3", "lr": [0.1]}, gpus=2, priority=5, backfill=True)
    record = SweepRecord(new_job_id(), listing(request), ("TOKEN",), {"a": 1}, frozenset({2}))
    write_sweep(tmp_path, record)
    found = find_sweep(tmp_path)
    assert (found.request.made, found.request.random.seed) == (request.made, request.random.seed)
    assert (found.request.gpus, found.request.priority, found.request.backfill) == (2, 5, True)
    assert (found.launch_id, found.variables, found.listed) == (record.launch_id, record.variables, record.listed)
    assert found.done == {2}


def test_options_that_an_earlier_version_did_not_record_have_their_defaults(tmp_path: Path) -> None:
    record = FanOutRecord(new_job_id(), FanOutRequest("play", workdir="sub", nice=3, name="n"), shards=1)
    write_record(tmp_path, record)
    path = fan_out_files(tmp_path).path(record.launch_id)
    values = json.loads(path.read_text())
    newer = {name: value for name, value in values.items() if name not in {"workdir", "nice", "name", "listed", "done"}}
    path.write_text(json.dumps({**newer, "of_a_later_version": [1]}))
    assert find_record(tmp_path, record.launch_id).request == FanOutRequest("play", workdir="")


def test_a_part_is_started_again_unless_it_is_done_or_running() -> None:
    def job(number: int, state: JobState, stop_signal: str = "") -> Job:
        return Job(number, f"{number}-{state}", "a", "true", state, node_rank=number, stop_signal=stop_signal)

    jobs = [
        job(0, JobState.FAILED),
        job(0, JobState.SUCCEEDED),
        job(1, JobState.RUNNING),
        job(2, JobState.RUNNING, "SIGTERM"),
        job(3, JobState.KILLED),
        job(5, JobState.LOST),
        job(5, JobState.STARTING),
        job(7, JobState.RUNNING),
    ]
    found = WorkStanding.of(7, frozenset({4}), jobs)
    assert ([*found.succeeded], [*found.missing]) == ([0], [2, 3, 6])
    assert found.done == {0, 4}
    assert [each.node_rank for each in found.running] == [1, 5]
