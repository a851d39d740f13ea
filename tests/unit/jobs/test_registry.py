"""The registry keeps every job, whoever writes at the same time and whatever lies beside."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from remote_tool.errors import JobError
from remote_tool.jobs import logs
from remote_tool.jobs.job import Job, JobSpec, JobState, new_job_id
from remote_tool.jobs.logs import LogFolder
from remote_tool.jobs.record_file import DamagedRecordError, format_record, read_record
from remote_tool.jobs.records import merge, parse_job
from remote_tool.jobs.registry import Registry
from remote_tool.protocol.artifact_patterns import ArtifactPattern

if TYPE_CHECKING:
    from pathlib import Path
from unittest import mock


def spec(server: str = "gpu1", **values: object) -> JobSpec:
    return replace(JobSpec(new_job_id(), server, "python train.py", {"TOKEN": "canary-7"}), **values)  # type: ignore[arg-type]


def test_keys_count_up_and_survive_reopening(tmp_path: Path) -> None:
    first = Registry(tmp_path / "jobs").create([spec(), spec()])
    second = Registry(tmp_path / "jobs").create([spec()])
    assert [job.key for job in first + second] == [1, 2, 3]


@pytest.mark.row(111)
def test_a_record_is_yaml_without_secrets(tmp_path: Path) -> None:
    job = Registry(tmp_path).create([spec(tags=("a: b", "é\x1b"))])[0]
    path = tmp_path / job.id / "job.yaml"
    assert yaml.safe_load(path.read_text())["command"] == "python train.py"
    assert "canary-7" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_record(path) == job


def test_a_record_keeps_which_files_come_home(tmp_path: Path) -> None:
    patterns = (ArtifactPattern("checkpoints/*.pt", 2), ArtifactPattern("out/"))
    job = Registry(tmp_path).create([spec(artifacts=patterns)])[0]
    assert Registry(tmp_path).load()[0][0].artifacts == patterns
    record = tmp_path / job.id / "job.yaml"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(line for line in lines if not line.startswith(("artifacts", "started_by"))))
    assert read_record(record) == replace(job, artifacts=(), started_by="")


@pytest.mark.row(22)
def test_a_finished_job_never_changes_again(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    job = registry.create([spec()])[0]
    registry.update([replace(job, state=JobState.FAILED, exit_code=3)])
    registry.update([replace(job, state=JobState.RUNNING)])
    assert registry.load()[0][0].state is JobState.FAILED
    assert registry.load()[0][0].exit_code == 3


LOST = {"state": JobState.LOST, "reason": "gone", "seen_at": 5.0, "logs_complete": True, "artifacts_complete": True}
UPDATES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "it runs": ({"state": JobState.RUNNING, "seen_at": 6.0}, {"state": JobState.RUNNING, "seen_at": 6.0}),
    "it has ended": ({"state": JobState.FAILED, "exit_code": 3}, {"state": JobState.FAILED, "exit_code": 3}),
    "it ended, and all is here": (
        {"state": JobState.FAILED, "logs_complete": True},
        {"state": JobState.FAILED, "logs_complete": True},
    ),
    "it ran, said late": ({"state": JobState.RUNNING, "seen_at": 4.0}, LOST),
    "nobody can tell": ({"state": JobState.UNREACHABLE, "seen_at": 6.0}, LOST),
    "it is lost, as before": ({"state": JobState.LOST, "reason": "gone", "seen_at": 6.0}, LOST),
    "processes of it are left": (
        {**LOST, "processes_left": 2, "seen_at": 6.0},
        {**LOST, "processes_left": 2, "seen_at": 6.0},
    ),
}


@pytest.mark.row(131)
@pytest.mark.parametrize("update", UPDATES)
def test_a_loss_is_corrected_by_a_later_look_that_finds_the_job(tmp_path: Path, update: str) -> None:
    seen, known = UPDATES[update]
    registry = Registry(tmp_path)
    job = registry.create([spec()])[0]
    registry.update([replace(job, **LOST)])  # type: ignore[arg-type]
    (updated,) = registry.update([replace(job, **seen)])  # type: ignore[arg-type]
    assert updated == replace(job, **known)  # type: ignore[arg-type]
    assert Registry(tmp_path).load()[0] == [updated]


@pytest.mark.row(131)
def test_a_late_report_of_a_loss_does_not_mark_the_logs_of_an_ended_job_complete(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    job = registry.create([spec()])[0]
    registry.update([replace(job, state=JobState.SUCCEEDED, exit_code=0)])
    (known,) = registry.update([replace(job, **LOST)])  # type: ignore[arg-type]
    assert (known.state, known.logs_complete, known.artifacts_complete) == (JobState.SUCCEEDED, False, False)


@pytest.mark.row(123)
@pytest.mark.parametrize("cut", [0, 1, 10, 40, 200])
def test_a_damaged_record_is_named_and_hides_no_other(tmp_path: Path, cut: int) -> None:
    registry = Registry(tmp_path)
    good, damaged = registry.create([spec(), spec()])
    path = tmp_path / damaged.id / "job.yaml"
    path.write_bytes(path.read_bytes()[:cut])
    (tmp_path / ".DS_Store").write_bytes(b"x")
    jobs, bad = registry.load()
    assert [job.id for job in jobs] == [good.id]
    assert len(bad) == 1
    assert str(path) in bad[0]


@pytest.mark.row(156)
@pytest.mark.parametrize("cut", [0, 1, 10, 12, 18, 40, 200])
def test_a_damaged_record_is_written_again_and_keeps_its_logs_and_its_key(tmp_path: Path, cut: int) -> None:
    registry = Registry(tmp_path)
    good, damaged = registry.create([spec(), spec()])
    LogFolder(tmp_path / damaged.id).write("out", 0, b"the only copy")
    path = tmp_path / damaged.id / "job.yaml"
    text = path.read_bytes()
    path.write_bytes(text[:cut])
    seen = replace(damaged, key=0, state=JobState.RUNNING)
    (mended,) = Registry(tmp_path).adopt([seen])
    assert Registry(tmp_path).load() == ([good, mended], [])
    assert mended == replace(seen, key=2 if b"key: 2\n" in text[:cut] else 3)
    assert b"".join(LogFolder(tmp_path / damaged.id).read("out", 0)) == b"the only copy"
    assert registry.create([spec()])[0].key == (4 if mended.key == 3 else 3)


@pytest.mark.row(156)
def test_a_key_in_a_damaged_record_is_not_given_twice_when_the_counter_is_gone(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    _, damaged = registry.create([spec(), spec()])
    path = tmp_path / damaged.id / "job.yaml"
    path.write_bytes(path.read_bytes()[:40])
    (tmp_path / "last_key").write_text("")
    assert registry.create([spec()])[0].key == 3


@pytest.mark.row(156)
def test_a_record_that_cannot_be_read_now_is_not_damaged_and_stays(tmp_path: Path) -> None:
    """Too many open files say nothing of it."""
    registry = Registry(tmp_path)
    (job,) = registry.create([spec()])
    path = tmp_path / job.id / "job.yaml"
    text = path.read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (tmp_path / "lock").open() as lowest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno(), limit[1]))
        try:
            with pytest.raises(JobError, match="Too many open files") as raised:
                read_record(path)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert not isinstance(raised.value, DamagedRecordError)
    assert path.read_bytes() == text


@pytest.mark.row(156)
def test_no_message_about_a_record_suggests_removing_logs(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    (job,) = registry.create([spec()])
    path = tmp_path / job.id / "job.yaml"
    for wrong in (b"", b"key: 1\n", path.read_bytes().replace(job.id.encode(), new_job_id().encode())):
        path.write_bytes(wrong)
        with pytest.raises(DamagedRecordError) as raised:
            read_record(path)
        assert "rm " not in f"{raised.value.message} {raised.value.hint}"
        assert "remote-tool job-list writes it again" in raised.value.hint


def test_damage_to_the_key_counter_is_repaired_from_the_records(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.create([spec(), spec()])
    (tmp_path / "last_key").write_text("x")
    assert registry.create([spec()])[0].key == 3


@pytest.mark.row(130)
def test_a_record_of_a_newer_version_is_refused_and_never_rewritten(tmp_path: Path) -> None:
    one = spec()
    job = Registry(tmp_path).create([one])[0]
    path = tmp_path / job.id / "job.yaml"
    path.write_text(path.read_text().replace("schema: 1", "schema: 2") + "from_the_future: true\n")
    newer = path.read_bytes()
    registry = Registry(tmp_path)
    with pytest.raises(JobError, match="newer version"):
        read_record(path)
    jobs, bad = registry.load()
    assert (jobs, ["newer version" in sentence for sentence in bad]) == ([], [True])
    assert registry.update([replace(job, state=JobState.SUCCEEDED, exit_code=0)]) == []
    with pytest.raises(JobError, match="newer version"):
        registry.create([one])
    with pytest.raises(JobError, match="newer version"):
        registry.adopt([job])
    assert path.read_bytes() == newer


@pytest.mark.row(109)
def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    registry, one = Registry(tmp_path / "jobs"), spec()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / one.id).symlink_to(elsewhere)
    with pytest.raises(JobError, match="is a link"):
        registry.create([one])
    with pytest.raises(JobError, match="links are not followed"):
        LogFolder(tmp_path / "jobs" / one.id).write("out", 0, b"x")
    assert not list(elsewhere.iterdir())


@pytest.mark.row(74, 75)
def test_a_log_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "job.out").symlink_to(tmp_path / "victim")
    with pytest.raises(JobError, match="links are not followed"):
        LogFolder(tmp_path).write("out", 0, b"x")
    assert not (tmp_path / "victim").exists()


@pytest.mark.row(74, 75, 109)
@pytest.mark.parametrize(
    "stream", ["job.yaml", "../out", "ranks/0/../../x", "/etc/passwd", "ranks/0/0/out/..", "", "out\n"]
)
def test_names_of_logs_cannot_leave_the_folder(tmp_path: Path, stream: str) -> None:
    with pytest.raises(JobError):
        LogFolder(tmp_path).write(stream, 0, b"x")


def test_logs_written_twice_at_the_same_place_are_there_once(tmp_path: Path) -> None:
    folder = LogFolder(tmp_path)
    for offset, data in [(0, b"one\n"), (4, b"two\n"), (0, b"one\n")]:
        folder.write("ranks/0/1/out", offset, data)
    assert b"".join(folder.read("ranks/0/1/out", 0)) == b"one\ntwo\n"


@given(data=st.binary(max_size=200).map(lambda raw: raw.replace(b"x", b"\n")), lines=st.integers(0, 8))
def test_the_last_lines_are_those_that_splitlines_gives(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, lines: int
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "job.out").write_bytes(data)
    pieces = data.split(b"\n")
    whole = [piece + b"\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])
    with mock.patch.object(logs, "READ_SIZE", 7):  # so that lines cross the pieces
        start = LogFolder(folder).start_of_last_lines("out", lines)
    assert data[start:] == b"".join(whole[max(0, len(whole) - lines) :] if lines else [])


SPEC: dict[str, object] = {"id": new_job_id(), "server": "a", "command": "x", "tags": [], "created_at": 1.0}


def answer(**values: object) -> dict[str, object]:
    job_id = new_job_id()
    whole: dict[str, object] = {
        "id": job_id,
        "state": "running",
        "spec": {"id": job_id, "server": "a", "command": "x", "tags": [], "created_at": 1.0},
        "started": {"pid": 5, "started_at": 2.0},
    }
    return whole | values


def test_a_servers_answer_becomes_a_job() -> None:
    spec = {**SPEC, "artifacts": [["a/*.pt", 2]], "started_by": "ann@laptop"}
    job = parse_job(
        answer(id=SPEC["id"], spec=spec, state="failed", ended={"exit_code": 3, "ended_at": 4.0}), "a", 9.0
    ).job
    assert job.artifacts == (ArtifactPattern("a/*.pt", 2),)
    assert job.started_by == "ann@laptop"
    assert parse_job(answer(), "a", 9.0).job.started_by == ""
    assert (job.state, job.exit_code, job.pid, job.seen_at) == (JobState.FAILED, 3, 5, 9.0)


@pytest.mark.row(324)
def test_attempts_that_slurm_put_back_are_known_also_when_no_other_one_has_begun() -> None:
    held = {"by": "slurm", "reference": "7", "attempts": ["requeued by Slurm"]}
    for ended in (None, {"killed": True, "ended_at": 4.0}):
        job = parse_job(
            answer(state="killed" if ended else "queued", started=None, ended=ended, held=held), "a", 9.0
        ).job
        assert job.failed_attempts == ("requeued by Slurm",)
    begun = {"pid": 5, "started_at": 2.0, "failed_attempts": ["exit code 3"]}
    assert parse_job(answer(started=begun, held=held), "a", 9.0).job.failed_attempts == ("exit code 3",)


def test_the_batch_job_and_the_node_stay_in_the_record_of_a_job_that_slurm_starts() -> None:
    held = {"by": "slurm", "reference": "7_2"}
    begun = {"pid": 5, "started_at": 2.0, "place": {"hostname": "n1"}}
    job = parse_job(answer(started=begun, held=held), "a", 9.0).job
    assert (job.slurm_job, job.slurm_node) == ("7_2", "n1")
    again = merge(job, parse_job(answer(state="queued", started=None, ended=None, held=held), "a", 9.0).job)
    assert (again.slurm_job, again.slurm_node) == ("7_2", "n1")
    assert not parse_job(answer(started=begun), "a", 9.0).job.slurm_node
    with pytest.raises(JobError, match="slurm_job: must be a text"):
        parse_job(answer(started=begun, held={"reference": 7}), "a", 9.0)


@pytest.mark.row(171)
@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING, JobState.UNREACHABLE])
def test_a_job_that_has_not_ended_has_no_end(state: JobState) -> None:
    job = replace(parse_job(answer(ended={"exit_code": 3, "ended_at": 4.0}), "a", 9.0).job, state=state)
    assert (job.state, job.exit_code, job.signal, job.ended_at) == (state, None, None, None)
    again = replace(job, state=JobState.FAILED, exit_code=3, ended_at=4.0)
    assert replace(again, state=state).exit_code is None


@pytest.mark.row(106)
@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "unreachable"},
        {"state": 5},
        {"id": "../../etc"},
        {"id": new_job_id()},
        {"spec": []},
        {"ended": {"exit_code": 256}},
        {"ended": {"exit_code": True}},
        {"ended": {"ended_at": float("nan")}},
        {"ended": {"ended_at": 10**400}},
        {"ended": {"signal": "SIG; rm"}},
        {"sizes": {"../x": 1}},
        {"sizes": {"out": -1}},
        {"reason": "x" * 5000},
        {"started": {"pid": 2**40}},
        {"id": SPEC["id"], "spec": {**SPEC, "artifacts": [["../x", None]]}},
        {"id": SPEC["id"], "spec": {**SPEC, "artifacts": 5}},
        {"id": SPEC["id"], "spec": {**SPEC, "started_by": 5}},
        {"id": SPEC["id"], "spec": {**SPEC, "started_by": "x" * 300}},
    ],
)
def test_a_crafted_answer_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(JobError):
        parse_job(answer(**wrong), "a", 0.0)


FIELDS = st.sampled_from(["id", "spec", "state", "ended", "started", "sizes", "tags", "command"])
VALUES = st.none() | st.booleans() | st.floats() | st.text() | st.integers()


@pytest.mark.row(106)
@given(st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner)))
def test_any_answer_is_a_job_or_a_job_error(data: object) -> None:
    try:
        parse_job(data, "a", 0.0)
    except JobError:
        return


@pytest.mark.row(75)
def test_a_servers_answer_cannot_rename_a_job() -> None:
    known = Job(1, new_job_id(), "a", "python x.py", JobState.RUNNING, tags=("mine",))
    seen = Job(0, known.id, "b", "rm -rf /", JobState.FAILED, tags=("theirs",), exit_code=1)
    merged = merge(known, seen)
    assert (merged.key, merged.server, merged.command, merged.tags) == (1, "a", "python x.py", ("mine",))
    assert merged.exit_code == 1


def test_a_folder_that_cannot_be_written_is_an_error_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("a file stands where the folder should be")
    with pytest.raises(JobError, match=str(tmp_path)):
        Registry(tmp_path / "jobs").create([spec()])


def test_every_line_of_a_record_is_json_after_its_name(tmp_path: Path) -> None:
    job = Registry(tmp_path).create([spec()])[0]
    for line in format_record(job).decode().splitlines():
        json.loads(line.partition(": ")[2])
