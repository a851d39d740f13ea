"""The queue for GPUs: waiters with real pipes in one process, of which a test decides who goes on when."""

from __future__ import annotations

import os
import select
import shutil
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from remote_tool.agent.leases import fifo, folders, foreign, waiter
from remote_tool.agent.leases.claim import Claim
from remote_tool.agent.leases.folders import BASE_VARIABLE, LeaseError
from remote_tool.agent.leases.foreign import NvidiaSmiAnswer
from remote_tool.agent.leases.listing import Lease, LeaseListing, Ticket, name_ticket, parse_ticket
from remote_tool.agent.leases.waiter import LeaseRequest, LeaseWaiter
from remote_tool.agent.machine.gpu_use import ProcessOnGpu

if TYPE_CHECKING:
    from collections.abc import Iterator

IDLE_AFTER = 60.0
_numbers = count(1)


class Machine:
    """GPUs, their use without a lease, the processes that dead jobs have left, and a clock."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.used: set[int] = set()
        self.left: set[str] = set()
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def answer(self) -> NvidiaSmiAnswer:
        gpus = [{"index": index, "uuid": f"GPU-{index}", "load": 0.0, "used": 0.0} for index in range(self.gpus)]
        return NvidiaSmiAnswer(gpus, [ProcessOnGpu(f"GPU-{index}", 71, 1.0, "bob", "") for index in sorted(self.used)])


def replace_surroundings(patch: pytest.MonkeyPatch, machine: Machine, base: Path) -> None:
    """Let waiters ask this machine in place of nvidia-smi, /proc and the clock; pipes and files are real."""

    class Question:
        """Answers the step after it was asked."""

        is_open = False
        descriptors = ()
        seconds = 0.0

        def ask(self, _folder: int, leased: frozenset[str], *, anew: bool = False) -> str:
            assert not anew
            self.is_open = True
            self.leased = leased
            return ""

        def take(self) -> NvidiaSmiAnswer:
            self.is_open = False
            return machine.answer()._replace(leased=self.leased)

        def close(self) -> None:
            self.is_open = False

    class Processes:
        """The processes that jobs have left."""

        def members(self, job_id: str, _folder: str) -> list[str]:
            return [job_id] if job_id in machine.left else []

    patch.setenv(BASE_VARIABLE, str(base))
    patch.setattr(waiter, "SharedQuestion", Question)
    patch.setattr(waiter, "ProcessSnapshot", Processes)
    patch.setattr(foreign, "time", machine)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(2)
    replace_surroundings(monkeypatch, found, tmp_path)
    return found


class Job:
    """A job that waits, has its GPUs, or has ended."""

    def __init__(self, gpus: int, priority: int = 0, *, backfill: bool = False, **fields: Any) -> None:
        self.id = f"job-{next(_numbers)}"
        request = LeaseRequest(self.id, "", gpus, priority, backfill=backfill, idle_after=IDLE_AFTER, **fields)
        self.waiter: LeaseWaiter | None = LeaseWaiter(request)
        self.request = request
        self.claim: Claim | None = None
        self.ticket: Ticket | None = None

    @property
    def why(self) -> str:
        assert self.waiter is not None
        return self.waiter.why

    def step(self) -> bool:
        """Do one step; return whether the GPUs are this job's now."""
        if self.waiter is None or self.claim is not None:
            return False
        self.claim = self.waiter.step()
        self.ticket = self.waiter.ticket or self.ticket
        if self.claim is not None:
            self.waiter.close()
            self.waiter = None
        return self.claim is not None

    def is_due(self) -> bool:
        """Return whether something wakes it soon: an event, or a time of seconds."""
        assert self.waiter is not None
        poll = select.poll()
        self.waiter.register(poll)
        return self.waiter.seconds <= IDLE_AFTER or bool(poll.poll(0))

    def settle(self) -> bool:
        """Do the steps that need no event; return whether the GPUs are this job's."""
        return sum(self.step() for _ in range(4)) > 0

    def end(self) -> None:
        assert self.claim is not None
        self.claim.release()
        self.claim = None

    def die(self) -> None:
        """Let go of all descriptors, as the kernel does for a process that is killed."""
        if self.claim is not None:
            self.claim.let_die()
            self.claim = None
        if self.waiter is not None:
            taken = self.waiter._ticket
            self.waiter._stop_watching()
            self.waiter._close_folder()
            if taken is not None:
                fifo.let_go(taken._pipe)
            if self.waiter._claim is not None:
                self.waiter._claim.let_die()
            self.waiter = None

    def close(self) -> None:
        if self.claim is not None:
            self.end()
        if self.waiter is not None:
            self.waiter.close()
            self.waiter = None


@pytest.fixture
def jobs(machine: Machine) -> Iterator[list[Job]]:
    del machine
    found: list[Job] = []
    yield found
    for job in found:
        job.close()


@pytest.mark.row(259)
@pytest.mark.usefixtures("machine")
def test_a_job_gets_all_its_gpus_or_none(jobs: list[Job]) -> None:
    jobs += [Job(1), Job(2)]
    assert jobs[0].settle()
    assert not jobs[1].settle()
    with LeaseListing() as listing:
        assert [lease.job_id for lease in listing.leases] == [jobs[0].id]
    jobs[0].end()
    assert jobs[1].settle()
    assert jobs[1].claim is not None
    assert jobs[1].claim.lease.gpus == ("GPU-0", "GPU-1")


@pytest.mark.row(260)
@pytest.mark.usefixtures("machine")
def test_a_large_job_is_not_passed_by_small_ones_unless_they_may(jobs: list[Job]) -> None:
    jobs += [Job(1), Job(2), Job(1), Job(1, backfill=True)]
    assert [job.settle() for job in jobs] == [True, False, False, True]
    jobs[3].end()
    jobs[0].end()
    assert [job.settle() for job in jobs] == [False, True, False, False]


@pytest.mark.row(260)
@pytest.mark.usefixtures("machine")
def test_a_job_that_may_pass_does_not_take_what_the_first_is_about_to_take(jobs: list[Job]) -> None:
    jobs += [Job(2), Job(2), Job(1, backfill=True)]
    assert jobs[0].settle()
    assert not any(job.settle() for job in jobs[1:])
    jobs[0].end()
    assert not jobs[2].settle()
    assert jobs[1].settle()


@pytest.mark.row(260)
@pytest.mark.usefixtures("machine")
def test_a_higher_priority_goes_first_also_before_one_that_is_already_first(jobs: list[Job]) -> None:
    jobs += [Job(2), Job(1), Job(2, 5), Job(2, 7)]
    assert [job.settle() for job in jobs] == [True, False, False, False]
    jobs[0].end()
    assert [job.settle() for job in jobs] == [False, False, False, True]


@pytest.mark.row(260)
@pytest.mark.usefixtures("machine")
def test_who_waits_for_days_keeps_a_place_that_looks_new_and_removes_what_killed_ones_left(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs += [Job(2), Job(1)]
    assert [job.settle() for job in jobs] == [True, False]
    assert jobs[1].ticket is not None
    (folder,) = tmp_path.iterdir()
    place, left, arriving = folder / jobs[1].ticket.name, folder / f"{fifo.TEMPORARY}0", folder / f"{fifo.TEMPORARY}1"
    left.touch()
    for path in (place, left):
        os.utime(path, (1e9, 1e9))
    arriving.touch()
    monkeypatch.setattr(folders, "REFRESH_SECONDS", 0.0)
    assert not jobs[1].step()
    assert place.stat().st_mtime > time.time() - 3600
    assert (left.exists(), arriving.exists()) == (False, True)


@pytest.mark.row(264)
def test_gpus_that_somebody_uses_are_taken_until_they_were_idle_for_long_enough(
    machine: Machine, jobs: list[Job]
) -> None:
    machine.used = {0}
    jobs.append(Job(2))
    assert not jobs[0].settle()
    assert jobs[0].why == "GPU 0 is used by bob (pid 71)"
    machine.used = set()
    assert not jobs[0].settle()
    assert "must be idle for 60 s" in jobs[0].why
    machine.now += IDLE_AFTER - 1
    assert not jobs[0].settle()
    machine.used = {0}
    assert not jobs[0].settle()
    machine.used = set()
    assert not jobs[0].settle()
    machine.now += IDLE_AFTER - 1
    assert not jobs[0].settle()
    machine.now += 1
    assert jobs[0].settle()


@pytest.mark.row(265)
@pytest.mark.usefixtures("machine")
def test_a_job_that_wants_more_gpus_than_there_are_fails_at_once(jobs: list[Job]) -> None:
    jobs += [Job(2, devices=("0", "GPU-")), Job(3), Job(2, devices=("1",))]
    assert jobs[0].settle()
    with pytest.raises(LeaseError, match="it needs 3 GPUs, and this server has 2"):
        jobs[1].settle()
    with pytest.raises(LeaseError, match="it needs 2 GPUs, and only 1 of its GPUs are configured for jobs"):
        jobs[2].settle()


@pytest.mark.row(263)
def test_the_gpus_of_a_job_that_was_killed_are_free_once_its_processes_are_gone(
    machine: Machine, jobs: list[Job]
) -> None:
    jobs += [Job(2), Job(2)]
    assert jobs[0].settle()
    machine.left = {jobs[0].id}
    jobs[0].die()
    assert not jobs[1].settle()
    machine.left = set()
    assert jobs[1].settle()
    with LeaseListing() as listing:
        assert [lease.job_id for lease in listing.leases] == [jobs[1].id]


@pytest.mark.row(263)
def test_the_gpus_of_a_job_that_was_killed_are_free_after_they_were_idle(machine: Machine, jobs: list[Job]) -> None:
    jobs += [Job(2), Job(2)]
    assert jobs[0].settle()
    machine.left = {jobs[0].id}
    jobs[0].die()
    assert not jobs[1].settle()
    machine.now += IDLE_AFTER
    assert jobs[1].settle()


@pytest.mark.row(268)
@pytest.mark.usefixtures("machine")
def test_the_ticket_of_a_job_that_was_killed_holds_nobody_up_and_is_removed(jobs: list[Job]) -> None:
    jobs += [Job(2), Job(1), Job(1)]
    assert [job.settle() for job in jobs] == [True, False, False]
    jobs[1].die()
    jobs[0].end()
    assert jobs[2].settle()
    with LeaseListing() as listing:
        assert listing.tickets == []


@pytest.mark.picked
@pytest.mark.row(259)
@pytest.mark.usefixtures("machine")
def test_of_two_leases_of_a_gpu_the_older_is_kept_and_an_undecided_one_is_waited_for(jobs: list[Job]) -> None:
    folder = folders.open_own()
    older = Claim(folder, "older", "", ("GPU-0", "GPU-1"))
    younger = Claim(folder, "younger", "", ("GPU-1",))
    with LeaseListing() as listing:
        assert older.find_rivals(listing) == []
        assert [lease.job_id for lease in younger.find_rivals(listing)] == ["older"]
    younger.release()
    older.release()
    pipe = fifo.hold(folder, "undecided.held")
    jobs.append(Job(1))
    assert not jobs[0].settle()
    fifo.let_go(pipe)
    assert jobs[0].settle()
    os.close(folder)


@pytest.mark.row(259)
@pytest.mark.usefixtures("machine")
def test_a_lease_that_ends_while_it_is_looked_at_ends_the_wait_for_it(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs += [Job(2), Job(2)]
    assert jobs[0].settle()
    assert not jobs[1].settle()
    assert not jobs[1].is_due()
    listed = LeaseListing.live_leases

    def end_after_listing(listing: LeaseListing) -> list[Lease]:
        found = listed(listing)
        jobs[0].close()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(LeaseListing, "live_leases", end_after_listing)
        assert not jobs[1].step()
    assert jobs[1].is_due()
    assert jobs[1].settle()


@pytest.mark.usefixtures("machine")
def test_a_lease_that_took_long_to_publish_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folders.open_own()
    moments = iter([0, 1, 6 * 10**9])
    monkeypatch.setattr("remote_tool.agent.leases.claim.now_stamp", lambda: next(moments))
    late = Claim(folder, "late", "", ("GPU-0",))
    with LeaseListing() as listing:
        assert [lease.job_id for lease in late.find_rivals(listing)] == ["late"]
    late.release()
    os.close(folder)


@pytest.mark.row(259, 260)
def test_jobs_whose_places_were_removed_return_to_them_before_anybody_goes_on(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Machine(0)
    monkeypatch.setattr(waiter, "time", clock)
    jobs += [Job(2), Job(2), Job(2, 5), Job(1)]
    assert [job.settle() for job in jobs] == [True, False, False, False]
    shutil.rmtree(tmp_path / f"remote-tool-{os.geteuid()}")
    # The last one notices first, with the GPUs free as far as anybody can see.
    assert not jobs[3].settle()
    assert jobs[3].why.endswith("was removed, and those who waited take their places again")
    assert not jobs[1].settle()
    assert not jobs[2].settle()
    assert jobs[0].claim is not None
    jobs[0].claim.publish_again_if_removed()
    with LeaseListing() as listing:
        assert [ticket.job_id for ticket in listing.tickets] == [jobs[2].id, jobs[1].id, jobs[3].id]
        assert [lease.job_id for lease in listing.live_leases()] == [jobs[0].id]
    clock.now += 20
    assert not any(job.settle() for job in jobs)
    jobs[0].end()
    assert [job.settle() for job in jobs] == [False, False, True, False]


@pytest.mark.usefixtures("machine")
def test_a_lease_of_which_one_file_was_removed_is_whole_again(jobs: list[Job], tmp_path: Path) -> None:
    jobs.append(Job(1))
    assert jobs[0].settle()
    assert jobs[0].claim is not None
    for kind in ("held", "lease"):
        (tmp_path / f"remote-tool-{os.geteuid()}" / f"{jobs[0].id}.{kind}").unlink()
        jobs[0].claim.publish_again_if_removed()
        with LeaseListing() as listing:
            assert [lease.job_id for lease in listing.live_leases()] == [jobs[0].id]
    jobs[0].end()
    assert not [*(tmp_path / f"remote-tool-{os.geteuid()}").iterdir()]


def test_tickets_sort_by_priority_and_then_by_time() -> None:
    keys = [(0, 5), (100, 7), (0, 10**12), (100, 9 * 10**15), (7, 1)]
    tickets = [Ticket("", 1, priority, since, 2, "a.b-c") for priority, since in keys]
    names = sorted(name_ticket(ticket) for ticket in tickets)
    parsed = [parse_ticket(name, 1) for name in names]
    assert [(found.priority, found.since) for found in parsed if found] == sorted(
        keys, key=lambda key: (-key[0], key[1])
    )


@pytest.mark.parametrize(
    "name",
    [
        "999.1.1.job.ticket",
        "1099.00000000000000000005.1.job.ticket",
        "898.00000000000000000005.1.job.ticket",
        "999.00000000000000000005.0.job.ticket",
        "999.00000000000000000005.1025.job.ticket",
        "999.00000000000000000005.01.job.ticket",
        "999.-0000000000000000005.1.job.ticket",
        "999.00000000000000000005.1..ticket",
        "999.00000000000000000005.1.a b.ticket",
        "999.٠0000000000000000005.1.job.ticket",
        ".ticket",
    ],
)
def test_names_that_are_not_tickets_are_ignored(name: str) -> None:
    assert parse_ticket(name, 1) is None


class Queue(RuleBasedStateMachine):
    """Arrivals, ends, deaths and use without a lease, in any order and with any steps between them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.folder = tempfile.TemporaryDirectory(prefix="remote-tool-queue-")
        self.jobs: list[Job] = []

    @initialize(gpus=st.integers(1, 4))
    def begin(self, gpus: int) -> None:
        self.machine = Machine(gpus)
        replace_surroundings(self.patch, self.machine, Path(self.folder.name))

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self.jobs if job.waiter is not None]

    @property
    def holding(self) -> list[Job]:
        return [job for job in self.jobs if job.claim is not None]

    @rule(gpus=st.integers(1, 4), priority=st.integers(0, 1), backfill=st.booleans())
    def arrive(self, gpus: int, priority: int, *, backfill: bool) -> None:
        if len(self.waiting) < 8:
            self.jobs.append(Job(min(gpus, self.machine.gpus), priority, backfill=backfill))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), steps=st.integers(1, 3))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        job = data.draw(st.sampled_from(self.waiting))
        for _ in range(steps):
            self.step(job)

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.holding)).end()

    @precondition(lambda self: self.holding or self.waiting)
    @rule(data=st.data(), leaves=st.booleans())
    def die(self, data: st.DataObject, *, leaves: bool) -> None:
        job = data.draw(st.sampled_from(self.holding + self.waiting))
        if leaves and job.claim is not None:
            self.machine.left.add(job.id)
        job.die()

    @rule(index=st.integers(0, 3))
    def use(self, index: int) -> None:
        if all(f"GPU-{index}" not in job.claim.lease.gpus for job in self.holding if job.claim):
            self.machine.used ^= {index}

    @rule(seconds=st.sampled_from([1.0, IDLE_AFTER]))
    def wait(self, seconds: float) -> None:
        self.machine.now += seconds

    @rule()
    def leftovers_end(self) -> None:
        self.machine.left.clear()

    def step(self, job: Job) -> None:
        """Let a job go on; what it gets must be free, and nobody before it is passed."""
        held = {uuid for other in self.holding if other.claim for uuid in other.claim.lease.gpus}
        if not job.step():
            return
        assert job.claim is not None
        got = job.claim.lease.gpus
        assert len(got) == len(set(got)) == job.request.gpus
        assert not held.intersection(got)
        assert not {f"GPU-{index}" for index in self.machine.used}.intersection(got)
        assert job.ticket is not None
        before = [other for other in self.waiting if other.ticket and other.ticket.key < job.ticket.key]
        assert job.request.backfill or not before

    @invariant()
    def leases_are_those_of_the_living(self) -> None:
        if not self.jobs:
            return
        with LeaseListing() as listing:
            alive = {lease.job_id: lease.gpus for lease in listing.live_leases()}
        assert alive == {job.id: job.claim.lease.gpus for job in self.holding if job.claim}

    def teardown(self) -> None:
        """Once nobody else uses GPUs and nobody arrives, every job gets its turn."""
        try:
            if hasattr(self, "machine"):
                self.machine.used.clear()
                for _ in range(4 * len(self.jobs)):
                    for job in self.waiting:
                        for _ in range(3):
                            if job.waiter is not None and job.is_due():
                                self.step(job)
                    self.machine.now += IDLE_AFTER
                    for job in self.holding:
                        job.end()
                assert not self.waiting
        finally:
            for job in self.jobs:
                job.close()
            self.patch.undo()
            self.folder.cleanup()


@pytest.mark.row(259, 260, 263, 264)
class TestQueue(Queue.TestCase):  # type: ignore[misc, valid-type]
    """Every sequence keeps the promises."""


TestQueue.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
