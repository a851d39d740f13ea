"""Twenty programs that use one registry at once, one of which is killed while it holds the lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from remote_tool.errors import JobError
from remote_tool.jobs import registry
from remote_tool.jobs.job import Job, JobSpec, JobState, new_job_id
from remote_tool.jobs.registry import Registry
from tests.figures import record_figure

from .registry_worker import OPERATIONS

PROGRAMS = 20
REPOSITORY = Path(__file__).parents[3]


class Program:
    """One of them; what it tells goes to a file, so that it never waits for a reader."""

    def __init__(self, folder: Path, told: Path, number: int, *words: str) -> None:
        self.told = told / str(number)
        with self.told.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.extended.sweeps.registry_worker", str(folder), str(number), *words],
                stdout=file,
                cwd=REPOSITORY,
            )

    def deeds(self) -> list[list[Any]]:
        """Return what it has told, but for a line that it was killed in."""
        return [json.loads(line) for line in self.told.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def is_holding(self) -> bool:
        assert self.process.poll() is None
        return ["holding"] in self.deeds()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Where the programs tell what they have done."""
    folder = tmp_path / "told"
    folder.mkdir()
    return folder


def wait_for_holder(program: Program) -> None:
    deadline = time.monotonic() + 300
    while not program.is_holding():
        assert time.monotonic() < deadline, "it did not come to hold the lock"
        time.sleep(0.01)


@pytest.mark.picked
@pytest.mark.row(122)
@pytest.mark.slow
def test_twenty_programs_lose_nothing_of_each_other_and_no_lock_survives_its_holder(tmp_path: Path, told: Path) -> None:
    registry = Registry(tmp_path / "jobs")
    before = registry.create([JobSpec(new_job_id(), "gpu1", "before") for _ in range(3)])
    with ExitStack() as stack:
        holder = stack.enter_context(Program(registry.folder, told, 0, "holds"))
        others = [stack.enter_context(Program(registry.folder, told, number)) for number in range(1, PROGRAMS)]
        wait_for_holder(holder)
        holder.process.kill()
        assert [program.process.wait(240) for program in others] == [0] * (PROGRAMS - 1)
        deeds = [deed for program in (holder, *others) for deed in program.deeds()]
    began = time.monotonic()
    jobs, bad = registry.load()
    assert registry.create([JobSpec(new_job_id(), "gpu1", "after")])[0].key > max(job.key for job in jobs)
    assert time.monotonic() - began < 30
    assert not bad
    check(jobs, [["new", *((job.id, job.key) for job in before)], *deeds])
    record_figure("programs at one registry at once, operations each, jobs", f"{PROGRAMS}, {OPERATIONS}, {len(jobs)}")


def check(jobs: list[Job], deeds: list[list[Any]]) -> None:
    """Compare the records with what the programs were told when they made them."""
    assert len({job.key for job in jobs}) == len({job.id for job in jobs}) == len(jobs)
    known = {job.id: job for job in jobs}
    ends: dict[str, set[int | None]] = defaultdict(set)
    for what, *values in deeds:
        for job_id, value in values if what in {"new", "ended", "complete"} else []:
            if what == "new":
                assert known[job_id].key == value
            elif what == "complete":
                assert known[job_id].logs_complete
            else:
                ends[job_id].add(value)
    assert ends
    # Several wanted to record an end: all were told the same one, which is the one that is there.
    assert ends == {job_id: {known[job_id].exit_code} for job_id in ends}
    assert all(known[job_id].state is JobState.FAILED for job_id in ends)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Wait a second for a lock."""
    monkeypatch.setattr(registry, "LOCK_TIMEOUT", 1.0)
    return 1.0


@pytest.mark.row(122)
@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="the kernel does not tell who holds a lock")  # noqa: PTH110
def test_a_lock_that_is_held_too_long_is_named_with_its_holder_and_free_when_that_is_killed(
    tmp_path: Path, told: Path, impatient: float
) -> None:
    registry = Registry(tmp_path / "jobs")
    known = registry.create([JobSpec(new_job_id(), "gpu1", "true")])
    with Program(registry.folder, told, 0, "holds") as holder:
        wait_for_holder(holder)
        began = time.monotonic()
        with pytest.raises(JobError) as raised:
            registry.update(known)
        assert impatient <= time.monotonic() - began < impatient + 30
        pid = holder.process.pid
        assert raised.value.message == (
            f"Another remote-tool (process {pid}) has held {registry.folder / 'lock'} for more than 1 s"
        )
        assert raised.value.hint == f"ps -fp {pid}"
        assert registry.load()[0], "reading needs no lock"
        holder.process.kill()
        holder.process.wait()
        assert registry.update(known) == [job for job in registry.load()[0] if job.id == known[0].id]
