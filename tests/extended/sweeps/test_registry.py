"""kill -9, a full disk and a broken one at every system call that matters of the local registry.

After each: it opens, no job is lost, none is half there, no two have one key, the logs hold what was told to be
there, what a dead program left beside is ignored, and the next program goes on.
"""

from __future__ import annotations

import secrets
import subprocess
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import JobError
from remote_tool.jobs.job import JobSpec, JobState, new_job_id
from remote_tool.jobs.logs import LogFolder
from remote_tool.jobs.registry import Registry

from .injection import WRITING, Call, Fault, Fork, Phase, Zygote, faults
from .registry_phase import PIECES, STREAMS
from .sweeping import sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote_tool.jobs.job import Job

ERRORS = {"ENOSPC": "No space left on device", "EIO": "Input/output error", "EROFS": "Read-only file system"}
TEXT = b"".join(PIECES)


@pytest.fixture(scope="module")
def zygote(tracing: None) -> Iterator[Zygote]:
    """A process that has the registry imported."""
    del tracing
    with Zygote("tests.extended.sweeps.registry_phase") as process:
        yield process


class RegistryCase:
    """A registry with some jobs, and a program that works on it."""

    def __init__(self, zygote: Zygote, root: Path) -> None:
        self._zygote = zygote
        self.home = root / secrets.token_hex(4)
        self.folder = self.home / "jobs"
        self.home.mkdir()
        self.registry = Registry(self.folder)
        self.registry.create([JobSpec(new_job_id(), "one", f"sleep {number}") for number in range(3)])
        done = self.registry.load()[0][0]
        self.registry.update([replace(done, state=JobState.SUCCEEDED, exit_code=0)])
        LogFolder(self.folder / done.id).write("out", 0, b"old")
        self.before = self.jobs()
        self.ids = [new_job_id() for _ in range(3)]

    def jobs(self) -> dict[str, Job]:
        jobs, bad = self.registry.load()
        assert not bad
        assert len({job.key for job in jobs}) == len(jobs)
        return {job.id: job for job in jobs}

    def run(self, fault: Fault | None) -> tuple[list[str], list[Call], bool]:
        """Let the program work; returns what it told, its calls, and whether the fault came."""
        phase = Phase(
            "tests.extended.sweeps.registry_phase:run", self.home, arguments=(str(self.folder), *self.ids), fault=fault
        )
        with Fork(self._zygote, phase) as fork:
            fork.go()
            told = fork.wait().decode().splitlines()
            assert not fork.stderr()
            assert fork.tracing is not None
            fork.tracing.wait()
            return told, fork.tracing.calls(), fork.tracing.was_hit()

    def check(self, told: list[str]) -> None:
        """What was told to be done is there, and what was there before is as it was."""
        jobs = self.jobs()
        for job_id, job in self.before.items():
            assert jobs.pop(job_id) == job
        first, second, foreign = self.ids
        for step, job_id in (("created", first), ("created", second), ("adopted", foreign)):
            assert job_id in jobs or step not in told
        assert set(jobs) <= set(self.ids)
        for step, job_id, state in (("running", second, JobState.RUNNING), ("failed", first, JobState.FAILED)):
            assert step not in told or jobs[job_id].state is state
        self._check_logs(first, told)
        self._check_files()

    def _check_logs(self, job_id: str, told: list[str]) -> None:
        for stream in STREAMS:
            here = b"".join(LogFolder(self.folder / job_id).read(stream, 0))
            assert TEXT.startswith(here)
            if "failed" not in told:
                assert len(here) >= max((int(line.split()[2]) for line in told if f"log {stream}" in line), default=0)

    def _check_files(self) -> None:
        for path in self.folder.rglob("*"):
            known = {"lock", "last_key", "job.yaml", "job.out", "ranks", "0", "err", *self.ids, *self.before}
            assert path.name in known or path.name.startswith("."), path

    def check_going_on(self) -> None:
        """The next program finds no lock, gives new keys, and records what it sees."""
        known = self.jobs()
        for job_id in self.ids:
            if job_id in known:
                seen = replace(known[job_id], state=JobState.KILLED)
                updated = self.registry.update([seen])[0]
                assert updated.state in {JobState.KILLED, JobState.FAILED}
        new = self.registry.create([JobSpec(new_job_id(), "one", "true"), JobSpec(new_job_id(), "two", "true")])
        assert not {job.key for job in new} & {job.key for job in known.values()}
        assert len(self.jobs()) == len(known) + 2


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(121)
def test_a_program_that_is_killed_anywhere_loses_no_job(zygote: Zygote, tmp_path: Path) -> None:
    def run(fault: Fault) -> bool:
        case = RegistryCase(zygote, tmp_path)
        told, _, hit = case.run(fault)
        case.check(told)
        case.check_going_on()
        return hit

    sweep("the registry, kill -9", faults(RegistryCase(zygote, tmp_path).run(None)[1], "signal=KILL"), run)


@pytest.mark.slow
@pytest.mark.row(121, 124)
@pytest.mark.parametrize("error", ERRORS)
def test_a_program_that_cannot_write_says_where_and_loses_nothing(zygote: Zygote, tmp_path: Path, error: str) -> None:
    def run(fault: Fault) -> bool:
        case = RegistryCase(zygote, tmp_path)
        told, _, hit = case.run(fault)
        assert told[-1].startswith("error Cannot write")
        assert str(case.folder) in told[-1]
        assert ERRORS[error] in told[-1]
        case.check(told)
        if "created" not in told:
            assert case.jobs() == case.before
        case.check_going_on()
        return hit

    found = faults(RegistryCase(zygote, tmp_path).run(None)[1], f"error={error}", WRITING)
    # A folder that is there already needs no room, and what the program tells goes to the test.
    relevant = [each for each in found if "/stdout-" not in each.call.text and "EEXIST" not in each.call.text]
    sweep(f"the registry, {error}", relevant, run)


@pytest.mark.picked
@pytest.mark.row(124)
def test_a_full_disk_is_named_and_what_was_recorded_stays(small_disk: Path) -> None:
    registry = Registry(small_disk / "jobs")
    known = registry.create([JobSpec(new_job_id(), "one", "true")])
    with (small_disk / "filler").open("ab", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    message = f"Cannot write to {small_disk / 'jobs'}: No space left on device"
    with pytest.raises(JobError) as raised:
        registry.update([replace(known[0], state=JobState.FAILED)])
    assert raised.value.message == message
    with pytest.raises(JobError) as raised:
        registry.create([JobSpec(new_job_id(), "one", "true"), JobSpec(new_job_id(), "one", "true")])
    assert raised.value.message == message
    logs = LogFolder(small_disk / "jobs" / known[0].id)
    with pytest.raises(JobError, match=r"Cannot write .*/job\.out: No space left on device"):
        logs.write("out", 0, b"x" * 100_000)
    assert registry.load() == (known, [])
    (small_disk / "filler").unlink()
    assert registry.update([replace(known[0], state=JobState.FAILED)])[0].state is JobState.FAILED


@pytest.mark.row(124)
def test_a_disk_without_inodes_or_read_only_is_named_and_what_was_recorded_stays(small_disk: Path) -> None:
    registry = Registry(small_disk / "jobs")
    known = registry.create([JobSpec(new_job_id(), "one", "true")])
    logs = LogFolder(small_disk / "jobs" / known[0].id)
    logs.write("out", 0, b"line\n")
    many = [JobSpec(new_job_id(), "one", "true") for _ in range(40)]
    with pytest.raises(JobError, match=r"Cannot write to .*/jobs: No space left on device"):
        registry.create(many)
    assert registry.load() == (known, [])
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for write in (
        lambda: registry.create([JobSpec(new_job_id(), "one", "true")]),
        lambda: registry.update([replace(known[0], state=JobState.FAILED)]),
        lambda: logs.write("out", 5, b"more\n"),
        lambda: logs.reset("out"),
    ):
        with pytest.raises(JobError, match=r"Cannot write .*/jobs.*: Read-only file system"):
            write()
    assert registry.load() == (known, [])
    assert b"".join(logs.read("out", 0)) == b"line\n"
