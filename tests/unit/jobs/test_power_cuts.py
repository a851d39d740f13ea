"""What a power cut leaves of local records: the order in which they reach the disk, and damage of every kind."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import JobError
from remote_tool.jobs.job import JobSpec, JobState, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.workflows.fan_out.records import FanOutRecord, find_record, write_record
from remote_tool.workflows.fan_out.request import FanOutRequest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.row(155)
@pytest.mark.parametrize("cut", [0, 1, 30, 100])
def test_what_is_left_of_a_fan_out_or_the_counter_or_the_index_is_named_or_made_again(tmp_path: Path, cut: int) -> None:
    record = FanOutRecord(new_job_id(), FanOutRequest("true"), shards=1)
    write_record(tmp_path / "fan-outs", record)
    path = tmp_path / "fan-outs" / f"{record.launch_id}.json"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(JobError, match=re.escape(f"{path}: not the record of a fan-out")):
        find_record(tmp_path / "fan-outs", record.launch_id)
    registry = Registry(tmp_path / "jobs")
    (job,) = registry.create([JobSpec(new_job_id(), "first", "true")])
    (job,) = registry.update([replace(job, state=JobState.FAILED)])
    for name in ("last_key", ".index"):
        (tmp_path / "jobs" / name).write_bytes(b"\0" * cut)
    assert Registry(tmp_path / "jobs").load() == ([job], [])
    assert registry.create([JobSpec(new_job_id(), "first", "true")])[0].key == 2
