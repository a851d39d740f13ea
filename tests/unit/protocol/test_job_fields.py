"""The table of a job's fields and its typed face, Job and JobSpec, say the same."""

from __future__ import annotations

import json
import typing
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.jobs import job as job_module
from remote_tool.jobs.job import Job, JobSpec, JobState, LaunchWatch
from remote_tool.jobs.record_file import as_job, format_record, read_record
from remote_tool.jobs.records import from_record, merge, parse_job
from remote_tool.protocol import job_fields
from remote_tool.protocol.artifact_patterns import ArtifactPattern
from remote_tool.protocol.job_fields import FIELDS, JOB_FIELDS, REQUEST_FIELDS, Field, Kind
from remote_tool.protocol.records import SPEC, check_record

if TYPE_CHECKING:
    from pathlib import Path

ID = "20261121-053000-0123456789abcdef0123456789abcdef"
# They travel with a request and are written nowhere.
NEVER_RECORDED = {"environment", "watch", "on_end", "on_empty", "waits", "changes"}
KINDS: dict[Kind, Any] = {
    job_fields.TEXT: str,
    job_fields.LAUNCH_ID: str,
    job_fields.TEXTS: tuple[str, ...],
    job_fields.COUNT: int,
    job_fields.SECONDS: float,
    job_fields.MOMENT: float,
    job_fields.FLAG: bool,
    job_fields.SIGNAL: str,
    job_fields.PATTERNS: tuple[ArtifactPattern, ...],
    job_fields.STATE: JobState,
    job_fields.TERMINAL: str,
}


def types_of(kind: type[Job | JobSpec]) -> dict[str, Any]:
    names = {"Mapping": typing.Mapping, "ArtifactPattern": ArtifactPattern, "LaunchWatch": LaunchWatch}
    return typing.get_type_hints(kind, {**vars(job_module), **names})


def test_a_job_and_its_spec_have_the_fields_of_the_table() -> None:
    assert len({field.name for field in FIELDS}) == len(FIELDS)
    assert {each.name for each in fields(Job)} == {field.name for field in JOB_FIELDS}
    sent = {field.name for field in REQUEST_FIELDS} - {"created_at"}
    assert {each.name for each in fields(JobSpec)} - NEVER_RECORDED == sent


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_an_attribute_has_the_type_and_the_default_of_its_row(field: Field) -> None:
    for owner in (Job, JobSpec):
        attribute = {each.name: each for each in fields(owner)}.get(field.name)
        if attribute is None:
            continue
        expected = KINDS[field.kind]
        assert types_of(owner)[field.name] == (expected | None if field.default is None else expected)
        if attribute.default is not MISSING and not field.is_required:
            assert attribute.default == from_record(field, field.default)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_default_is_a_value_of_its_field(field: Field) -> None:
    assert field.is_required or field.default is None or (field.accepts(field.default) and field.fits(field.default))


OLD_SPEC = {
    "schema": 1,
    "server": "gpu1",
    "tags": ["sweep"],
    "launch_id": "",
    "node_rank": None,
    "rank_offset": None,
    "grace": 10.0,
    "snapshot": "",
    "id": ID,
    "command": "true",
    "command_length": 4,
    "environment_names": ["LR"],
    "created_at": 5.0,
    "received_at": 6.0,
    "place": {"hostname": "h", "machine_id": "m", "boot_id": "b", "pid_namespace": "pid:[1]"},
}
OLD_RECORD = f"""\
schema: 1
key: 7
id: "{ID}"
server: "gpu1"
command: "python train.py"
state: "failed"
tags: ["sweep"]
launch_id: ""
node_rank: null
exit_code: 3
signal: null
reason: ""
pid: 12
created_at: 5
started_at: 6.5
ended_at: 7.5
seen_at: 8.0
logs_complete: true
"""


def test_records_that_older_versions_wrote_are_read(tmp_path: Path) -> None:
    assert check_record(SPEC, OLD_SPEC, ID) == OLD_SPEC
    job = parse_job({"id": ID, "spec": OLD_SPEC, "state": "running"}, "gpu1", 1.0).job
    assert (job.tags, job.artifacts, job.workdir, job.git_dirty) == (("sweep",), (), "", None)
    path = tmp_path / ID / "job.yaml"
    path.parent.mkdir()
    path.write_text(OLD_RECORD)
    old = read_record(path)
    assert (old.key, old.state, old.exit_code, old.logs_complete, old.cleaned) == (7, JobState.FAILED, 3, True, False)
    path.write_bytes(format_record(old))
    assert read_record(path) == old


def test_fields_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    newer = {**OLD_SPEC, "of_the_future": [1]}
    assert check_record(SPEC, newer, ID) == newer
    assert parse_job({"id": ID, "spec": newer, "state": "running"}, "gpu1", 1.0).job.id == ID
    path = tmp_path / ID / "job.yaml"
    path.parent.mkdir()
    path.write_text(f"{OLD_RECORD}of_the_future: [1]\n")
    assert read_record(path).key == 7


def test_a_value_of_the_wrong_type_is_refused_in_every_field() -> None:
    good = json.loads(json.dumps({each.name: getattr(make_job(), each.name) for each in JOB_FIELDS}))
    assert as_job(good) == make_job()
    for field in JOB_FIELDS:
        with pytest.raises((ValueError, TypeError, KeyError)):
            as_job({**good, field.name: {"an": "object"}})


def make_job() -> Job:
    return Job(3, ID, "gpu1", "true", JobState.RUNNING, ("a",), started_by="ann@laptop", created_at=5.0)


@pytest.mark.parametrize("field", JOB_FIELDS, ids=lambda field: field.name)
def test_a_servers_answer_changes_a_record_by_each_fields_rule(field: Field) -> None:
    examples = {str: "SIGINT", int: 1, float: 9.0, bool: True, JobState: JobState.STARTING, tuple[str, ...]: ("b",)}
    other = examples.get(KINDS[field.kind], (ArtifactPattern("b"),))
    known, seen = make_job(), replace(make_job(), state=JobState.FAILED)
    object.__setattr__(seen, field.name, other)
    keeps = field.changes == job_fields.NEVER or (field.changes == job_fields.ONCE and getattr(known, field.name))
    if field.name != "stop_grace":
        assert getattr(merge(known, seen), field.name) == (getattr(known, field.name) if keeps else other)
