"""The slots of a sweep without GPUs: never more of its jobs run at once on a server, whatever is killed."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.leases import folders
from remote_tool.agent.leases.slots import Slots, SlotWaiter
from remote_tool.agent.leases.waiter import LeaseRequest
from tests.extended.agent.conftest import wait_until
from tests.stand_in_gpus import remove_in_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.extended.agent.conftest import PretendServer

SWEEP = "20261121-053000-0123456789abcdef"
HOLDS = "until [ -e go ]; do sleep 0.05; done"


class SlotServer:
    """A server and the jobs of one sweep there."""

    def __init__(self, server: PretendServer) -> None:
        self.server = server

    def start(self, *commands: str, slots: int = 2, **fields: Any) -> list[str]:
        """Start jobs with one request; return their ids."""
        jobs = [
            self.server.new_job(command, launch_id=SWEEP, node_rank=number, slots=slots, **fields)
            for number, command in enumerate(commands)
        ]
        for answer in self.server.call("start", jobs=jobs)["jobs"]:
            assert "error" not in answer, answer
        return [job["id"] for job in jobs]

    def hold(self, slots: int = 2) -> list[str]:
        """Fill all slots with jobs that run until the test lets them go."""
        ids = self.start(*[HOLDS] * slots, slots=slots)
        self.wait_for_states(ids, *["running"] * slots)
        return ids

    def states(self, ids: Sequence[str]) -> list[str]:
        return [str(self.server.status(job_id)["state"]) for job_id in ids]

    def wait_for_states(self, ids: Sequence[str], *expected: str) -> None:
        wait_until(lambda: self.states(ids) == list(expected), f"{expected}")

    def queued_supervisor(self, job_id: str) -> int:
        """Return the pid of the supervisor of a job that waits."""
        return int(json.loads((self.server.jobs / job_id / "queued").read_text())["supervisor"]["pid"])

    def go(self) -> None:
        (self.server.project / "go").touch()

    def left(self) -> list[str]:
        """Return the names of folders of sweeps, tickets and leases."""
        return [path.name for path in self.server.leases.glob("*/**/*")]


@pytest.fixture
def slots(server: PretendServer) -> Iterator[SlotServer]:
    yield SlotServer(server)
    if server.ids:
        server.call("stop", ids=server.ids, signal="SIGKILL")


@pytest.mark.row(310)
def test_no_more_run_than_there_are_slots_and_they_begin_in_their_order(slots: SlotServer) -> None:
    ids = slots.start(*[f"echo {number} >> order; {HOLDS}" for number in range(12)], slots=1)
    slots.wait_for_states(ids, "running", *["queued"] * 11)
    reason = "waits for the end of another job of its sweep, of which 1 runs at once"
    wait_until(lambda: slots.server.status(ids[3])["reason"] == reason, "the reason")
    slots.go()
    ended = slots.server.wait(*ids)
    assert [ended[job]["exit_code"] for job in ids] == [0] * 12
    assert (slots.server.project / "order").read_text().split() == [str(number) for number in range(12)]
    wait_until(lambda: not slots.left(), "the end of the leases")


@pytest.mark.row(310)
def test_killing_a_job_that_waits_starts_nothing_beside_those_that_run(slots: SlotServer) -> None:
    running = slots.hold()
    ids = slots.start(*["true"] * 4)
    slots.wait_for_states(ids, *["queued"] * 4)
    for job_id in ids[:2]:
        assert slots.server.stop(job_id)["state"] == "killed"
    os.kill(slots.queued_supervisor(ids[2]), signal.SIGKILL)
    slots.wait_for_states([*running, *ids], "running", "running", "killed", "killed", "lost", "queued")
    slots.go()
    assert slots.server.wait(ids[3])[ids[3]]["exit_code"] == 0


@pytest.mark.row(310)
def test_a_job_looks_again_when_others_of_its_request_came_while_it_looked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The list of the queue that it has read does not have them, and they are earlier."""
    monkeypatch.setenv(folders.BASE_VARIABLE, str(tmp_path))
    reading, writing = os.pipe()
    ends = [(os.dup(reading), os.dup(writing)) for _ in range(2)]
    os.close(reading)
    os.close(writing)
    requests = [LeaseRequest(f"{SWEEP}{number:016x}", "", 1, since=number) for number in (1, 2)]
    all_slots = Slots(SWEEP, 1, lambda _: [])
    first, second = (SlotWaiter(*each) for each in zip(requests, [all_slots] * 2, ends, strict=True))
    waits = second._must_wait_for_arrivals

    def comes_meanwhile() -> bool:
        first._enter_queue()
        os.close(first._arrivals.pop())
        return waits()

    monkeypatch.setattr(second, "_must_wait_for_arrivals", comes_meanwhile)
    try:
        assert second.step() is None
        assert second.step() is None
        assert first.step() or first.step()
    finally:
        first.close()
        second.close()


def test_a_slow_job_holds_up_its_own_slot_only(slots: SlotServer) -> None:
    slow, _ = slots.start(HOLDS, "true")
    slots.wait_for_states([slow], "running")
    slots.server.wait(*slots.start(*["true"] * 6))
    assert slots.states([slow]) == ["running"]


@pytest.mark.row(310)
def test_a_job_whose_supervisor_was_killed_keeps_its_slot_until_its_processes_are_gone(slots: SlotServer) -> None:
    ids = slots.start("trap '' TERM; sleep 600 & wait", slots=1)
    slots.wait_for_states(ids, "running")
    ids += slots.start("true", slots=1)
    os.kill(slots.server.supervisor(ids[0]), signal.SIGKILL)
    wait_until(
        lambda: "still has processes" in slots.server.status(ids[1])["reason"], "the job that waits notices the death"
    )
    assert slots.states(ids) == ["lost", "queued"]
    slots.server.stop(ids[0], signal="SIGKILL")
    assert slots.server.wait(ids[1])[ids[1]]["exit_code"] == 0


@pytest.mark.row(310)
def test_jobs_of_another_sweep_have_slots_of_their_own(slots: SlotServer) -> None:
    ids = [*slots.hold(1), *slots.start("true", slots=1)]
    other = slots.server.new_job("true", launch_id=f"{SWEEP}2", node_rank=0, slots=1)
    slots.server.call("start", jobs=[other])
    assert slots.server.wait(other["id"])[other["id"]]["exit_code"] == 0
    assert slots.states(ids) == ["running", "queued"]


@pytest.mark.parametrize("bad", [{"slots": 0}, {"slots": 1, "launch_id": ""}, {"slots": 1, "gpu_count": 1}])
def test_slots_without_a_sweep_or_with_gpus_are_refused(server: PretendServer, bad: dict[str, Any]) -> None:
    answer = server.call("start", jobs=[server.new_job("true", **{"launch_id": SWEEP, "node_rank": 0, **bad})])
    assert "slots" in answer["error"]


@pytest.mark.slow
@pytest.mark.row(310)
def test_nothing_begins_beside_those_that_run_though_the_leases_were_removed(slots: SlotServer) -> None:
    (running,) = slots.hold(1)
    (waiting,) = slots.start(HOLDS, slots=1)
    slots.wait_for_states([waiting], "queued")
    (mine,) = slots.server.leases.iterdir()
    remove_in_use(mine)
    # Both are back before anybody gets a slot, also one that has come meanwhile.
    (late,) = slots.start(HOLDS, slots=1)
    wait_until(lambda: len(slots.left()) == 5, "the lease and both places are there again")
    wait_until(lambda: "was removed" not in slots.server.status(waiting)["reason"], "the wait is over")
    assert slots.states([running, waiting, late]) == ["running", "queued", "queued"]
    slots.go()
    assert [each["exit_code"] for each in slots.server.wait(running, waiting, late).values()] == [0, 0, 0]


COUNT, AT_ONCE, KILLED = 40, 3, 15
# A command outlives its supervisor when that is killed.
COUNTED = "echo begin >> log; sleep 0.3; echo end >> log"


@pytest.mark.slow
@pytest.mark.row(310)
@pytest.mark.timeout(600)
def test_no_more_run_at_once_though_supervisors_are_killed_at_any_moment(slots: SlotServer) -> None:
    chance = random.Random(22)
    ids = slots.start(*[COUNTED] * COUNT, slots=AT_ONCE)
    log = slots.server.project / "log"
    log.touch()
    killed = set()
    for job_id in chance.sample(ids, KILLED):
        wait_until(lambda job_id=job_id: (slots.server.jobs / job_id / "queued").exists(), "a supervisor")  # type: ignore[misc]
        with suppress(ProcessLookupError):
            os.kill(slots.queued_supervisor(job_id), signal.SIGKILL)
            killed.add(job_id)
        seen = len(log.read_text().split())
        if seen < COUNT:
            wait_until(lambda seen=seen: len(log.read_text().split()) > seen, "another begin or end")  # type: ignore[misc]
    rest = [job_id for job_id in ids if job_id not in killed]
    wait_until(lambda: all((slots.server.jobs / job_id / "ended.json").exists() for job_id in rest), "the ends", 300)
    at_once = 0
    for word in log.read_text().split():
        at_once += 1 if word == "begin" else -1
        assert at_once <= AT_ONCE


@pytest.mark.row(310)
def test_slots_are_leased_with_the_oldest_python(oldest: PretendServer) -> None:
    slots = SlotServer(oldest)
    try:
        first, second = slots.hold(1)[0], slots.start("true", slots=1)[0]
        slots.wait_for_states([first, second], "running", "queued")
        slots.go()
        assert oldest.wait(first, second)[second]["exit_code"] == 0
        wait_until(lambda: not list(oldest.leases.glob("*/**/*")), "the end of the leases")
    finally:
        oldest.call("stop", ids=oldest.ids, signal="SIGKILL")


def test_a_job_that_waits_takes_two_pages_of_pipes(slots: SlotServer) -> None:
    slots.hold(1)
    (waiting,) = slots.start("true", slots=1)
    slots.wait_for_states([waiting], "queued")
    folder = Path(f"/proc/{slots.queued_supervisor(waiting)}/fd")
    sizes = {}
    for each in folder.iterdir():
        if each.is_fifo():
            with suppress(OSError):
                descriptor = os.open(each, os.O_RDONLY | os.O_NONBLOCK)
                sizes[os.fstat(descriptor).st_ino] = fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
                os.close(descriptor)
    assert set(sizes.values()) == {4096}
