"""The index of finished jobs spares reading their records, and never says anything else than they do."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from remote_tool.jobs import index
from remote_tool.jobs.job import Job, JobSpec, JobState, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.system.files import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ENDED = 5


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Write the index for one job already, and for records that were written just now."""
    with mock.patch.object(index, "LEAST_NEW", 1), mock.patch.object(index, "SETTLED_SECONDS", -60.0):
        yield


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    """Five jobs that ended and one that runs; the index of them is written."""
    records = Registry(tmp_path)
    made = records.create([JobSpec(new_job_id(), "gpu1", f"echo {number}\té\n") for number in range(ENDED + 1)])
    records.update(replace(job, state=JobState.FAILED, exit_code=3, ended_at=7.5) for job in made[:ENDED])
    records.update([replace(made[-1], state=JobState.RUNNING, pid=7)])
    found, bad = Registry(tmp_path).load()
    assert not bad
    assert (tmp_path / index.NAME).exists()
    return found


def records_read(work: Callable[[], object]) -> int:
    """How many records are opened meanwhile."""
    with mock.patch("remote_tool.jobs.record_file.read_bounded", wraps=read_bounded) as read:
        work()
    return read.call_count


def test_records_of_finished_jobs_are_read_once(tmp_path: Path, jobs: list[Job]) -> None:
    fresh = Registry(tmp_path)
    assert records_read(fresh.load_unfinished) == 1
    assert records_read(fresh.load) == 1
    assert fresh.load() == (jobs, [])
    assert Registry(tmp_path).load_unfinished() == (jobs[ENDED:], [])
    assert fresh.ended == {job.id: "gpu1" for job in jobs[:ENDED]}


def test_a_newest_job_is_found_without_reading_the_others(tmp_path: Path, jobs: list[Job]) -> None:
    fresh = Registry(tmp_path)
    newest = max(jobs, key=lambda job: job.id)
    assert records_read(lambda: fresh.load_newest(1)) == 1
    assert fresh.load_newest(1) == [newest]
    assert records_read(lambda: fresh.find([newest.id])) == 1
    assert fresh.find([newest.id]) == {newest.id: newest}


def test_the_index_and_the_records_agree(tmp_path: Path, jobs: list[Job]) -> None:
    (tmp_path / index.NAME).unlink()
    assert Registry(tmp_path).load() == (jobs, [])
    assert Registry(tmp_path).load() == (jobs, [])


@pytest.mark.row(123)
def test_a_record_that_was_changed_or_damaged_is_read_in_spite_of_the_index(tmp_path: Path, jobs: list[Job]) -> None:
    changed, damaged, gone = (tmp_path / job.id / "job.yaml" for job in jobs[:3])
    state = changed.stat()
    changed.write_text(changed.read_text().replace("exit_code: 3", "exit_code: 4"))
    os.utime(changed, ns=(state.st_atime_ns, state.st_mtime_ns))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    gone.unlink()
    found, bad = Registry(tmp_path).load()
    assert [job.id for job in found] == [job.id for job in jobs if job not in jobs[1:3]]
    assert found[0].exit_code == 4
    assert len(bad) == 1
    assert str(damaged) in bad[0]


@pytest.mark.row(123)
@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda text: text[:-40],
        lambda text: text.replace(b'"failed"', b'"killed"', 1),
        lambda text: text.replace(b"remote-tool 1", b"remote-tool 2", 1),
        lambda _: os.urandom(1000),
    ],
)
def test_a_damaged_index_is_as_none(tmp_path: Path, jobs: list[Job], damage: Callable[[bytes], bytes]) -> None:
    file = tmp_path / index.NAME
    file.write_bytes(damage(file.read_bytes()))
    assert Registry(tmp_path).load_unfinished() == (jobs[ENDED:], [])
    assert Registry(tmp_path).load() == (jobs, [])


@pytest.mark.row(123)
@pytest.mark.parametrize(
    "values",
    ["[]", "{}", "7", "[1e999]", '["x"]', "[[", "[" * 100_000, f"[{', '.join(['null'] * len(index.FIELDS))}]"],
    ids=len,
)
def test_an_index_that_somebody_made_up_is_as_none(tmp_path: Path, jobs: list[Job], values: str) -> None:
    lines = Registry(tmp_path)._index.lines([job.id for job in jobs])
    made_up = {name: line._replace(values=values) for name, line in lines.items()}
    (tmp_path / index.NAME).write_bytes(index._format(made_up))
    assert Registry(tmp_path).load() == (jobs, [])


def test_an_index_that_is_a_link_is_neither_read_nor_written_through(tmp_path: Path, jobs: list[Job]) -> None:
    file, elsewhere = tmp_path / index.NAME, tmp_path / "elsewhere"
    file.rename(elsewhere)
    before = elsewhere.read_bytes()
    file.symlink_to(elsewhere)
    assert records_read(Registry(tmp_path).load) == len(jobs)
    assert elsewhere.read_bytes() == before
    assert not file.is_symlink()


def test_a_record_that_may_still_change_within_a_tick_of_the_clock_is_not_in_the_index(tmp_path: Path) -> None:
    with mock.patch.object(index, "SETTLED_SECONDS", 60.0):
        made = Registry(tmp_path).create([JobSpec(new_job_id(), "gpu1", "true")])
        Registry(tmp_path).update([replace(made[0], state=JobState.LOST)])
        Registry(tmp_path).load()
        assert records_read(Registry(tmp_path).load) == 1


def test_an_index_that_cannot_be_written_does_not_prevent_reading(tmp_path: Path, jobs: list[Job]) -> None:
    (tmp_path / index.NAME).unlink()
    (tmp_path / index.NAME).mkdir()
    assert Registry(tmp_path).load() == (jobs, [])


def test_a_job_that_was_removed_is_no_longer_among_those_that_ended(tmp_path: Path, jobs: list[Job]) -> None:
    records = Registry(tmp_path)
    records.load_unfinished()
    (tmp_path / jobs[0].id / "job.yaml").unlink()
    (tmp_path / jobs[0].id).rmdir()
    assert records.load_unfinished() == (jobs[ENDED:], [])
    assert jobs[0].id not in records.ended
    assert Registry(tmp_path).load() == (jobs[1:], [])


def test_a_job_that_ends_is_unfinished_no_more(tmp_path: Path, jobs: list[Job]) -> None:
    records = Registry(tmp_path)
    records.load_unfinished()
    records.update([replace(jobs[-1], state=JobState.SUCCEEDED, exit_code=0)])
    assert records.load_unfinished() == ([], [])
    assert set(records.ended) == {job.id for job in jobs}


def test_a_lost_job_is_neither_in_the_index_nor_among_those_that_ended(tmp_path: Path, jobs: list[Job]) -> None:
    records = Registry(tmp_path)
    records.update([replace(jobs[-1], state=JobState.LOST)])
    lost = [replace(jobs[-1], state=JobState.LOST)]
    for fresh in (records, Registry(tmp_path), Registry(tmp_path)):
        assert fresh.load() == ([*jobs[:ENDED], *lost], [])
        assert fresh.load_unfinished() == (lost, [])
        assert lost[0].id not in fresh.ended
