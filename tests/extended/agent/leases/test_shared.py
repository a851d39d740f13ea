"""One question to nvidia-smi for all jobs of a user that wait on a machine."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.leases import fifo, folders
from remote_tool.agent.leases.folders import BASE_VARIABLE
from remote_tool.agent.leases.listing import now_stamp
from remote_tool.agent.leases.shared import ANSWER, ASKED, KEPT_NANOSECONDS, SharedQuestion
from tests.extended.agent.conftest import wait_until
from tests.extended.agent.leases.test_jobs import GpuServer
from tests.figures import record_figure
from tests.stand_in_gpus import gpu_line, process_line, put_nvidia_smi, set_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool.agent.leases.foreign import NvidiaSmiAnswer
    from tests.extended.agent.conftest import PretendServer

COUNT = 20
NONE: frozenset[str] = frozenset()


def questions(programs: Path) -> int:
    """Return how often nvidia-smi was asked: each question is two calls."""
    asked = programs / "asked"
    return len(asked.read_text().splitlines()) // 2 if asked.exists() else 0


@pytest.fixture
def gpus(server: PretendServer) -> Iterator[GpuServer]:
    found = GpuServer(server)
    found.put_gpus(gpu_line(0, load=0, used=900))
    yield found
    found.clean()


def start_all(gpus: GpuServer, **fields: Any) -> list[str]:
    """Start jobs in one request, and wait until all wait for a GPU that somebody uses."""
    server = gpus.server
    jobs = [server.new_job("true", gpu_count=1, backfill=True, **fields) for _ in range(COUNT)]
    with server.open("start", jobs=jobs, login={"PATH": f"{gpus.programs}:{os.environ['PATH']}"}) as call:
        call.rest()
    ids = [job["id"] for job in jobs]
    for job_id in ids:
        queued = server.jobs / job_id / "queued"
        wait_until(lambda queued=queued: queued.exists() and "is used by" in queued.read_text(), "the reason")  # type: ignore[misc]
    return ids


@pytest.mark.row(260, 264)
def test_20_jobs_that_may_pass_others_ask_as_often_as_one(gpus: GpuServer) -> None:
    begin = time.monotonic()
    # They look every second.
    ids = start_all(gpus, idle_after=6)
    at_start, begun = questions(gpus.programs), time.monotonic()
    wait_until(lambda: questions(gpus.programs) >= at_start + 5, "five questions")
    apart = (time.monotonic() - begun) / 5
    record_figure(
        "20 jobs that may pass others and look every second: questions to nvidia-smi at their start", at_start
    )
    record_figure("20 jobs that may pass others and look every second: seconds between questions", round(apart, 2))
    # When each asked for itself, there were 20 at the start, and then one every 0.05 seconds.
    assert at_start < COUNT / 2 + (begun - begin)
    assert apart > 0.3
    gpus.set_gpus(gpu_line(0, load=0, used=1))
    assert {end["exit_code"] for end in gpus.server.wait(*ids).values()} == {0}


@pytest.mark.row(264)
def test_no_job_gets_a_gpu_by_an_answer_that_was_there_before_it_came(gpus: GpuServer) -> None:
    gpus.put_gpus(gpu_line(0, load=0, used=1), gpu_line(1, load=0, used=1))
    gpus.hold()
    gpus.set_gpus(gpu_line(0, load=0, used=1), gpu_line(1, load=0, used=900))
    job, state = gpus.start("true", idle_after=0.5)
    assert state == "queued"
    wait_until(lambda: "GPU 1 is used by a process" in gpus.server.status(job)["reason"], "the reason")
    (gpus.server.project / "go").touch()
    assert gpus.server.wait(job)[job]["exit_code"] == 0


class Asker:
    """A process that wants to know; all of a test are in one process."""

    def __init__(self, folder: int) -> None:
        self.question = SharedQuestion()
        self._folder = folder

    def ask(self, *leased: str, anew: bool = False) -> str:
        return self.question.ask(self._folder, frozenset(leased), anew=anew)

    def answer(self) -> NvidiaSmiAnswer:
        """Wait for the answer."""
        while True:
            poll = select.poll()
            for descriptor in self.question.descriptors:
                poll.register(descriptor, select.POLLIN)
            poll.poll(self.question.seconds * 1000)
            found = self.question.take()
            if found is not None:
                return found

    def asks(self, *leased: str, anew: bool = False) -> NvidiaSmiAnswer:
        assert self.ask(*leased, anew=anew) == ""
        return self.answer()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "programs"
    put_nvidia_smi(found, gpu_line(0, load=0, used=1), gpu_line(1, load=0, used=1))
    monkeypatch.setenv("PATH", f"{found}:{os.environ['PATH']}")
    (tmp_path / "leases").mkdir()
    monkeypatch.setenv(BASE_VARIABLE, str(tmp_path / "leases"))
    return found


@pytest.fixture
def askers(programs: Path) -> Iterator[tuple[Asker, Asker]]:
    del programs
    folder = folders.open_own()
    found = Asker(folder), Asker(folder)
    yield found
    for asker in found:
        asker.question.close()
    os.close(folder)


def change(**fields: Any) -> None:
    """Change the answer that is kept."""
    kept = Path(folders.path_of(os.geteuid())) / ANSWER
    kept.write_text(json.dumps({**json.loads(kept.read_text()), **fields}))


def test_who_comes_while_another_one_asks_gets_its_answer(programs: Path, askers: tuple[Asker, Asker]) -> None:
    first, second = askers
    put_nvidia_smi(programs, gpu_line(0), processes=process_line(0, os.getpid()), otherwise="sleep 0.3")
    assert first.ask("GPU-7") == second.ask("GPU-7", anew=True) == ""
    assert second.question.take() is None
    said = first.answer()
    assert second.answer() == said
    assert [each.pid for each in said.processes] == [os.getpid()]
    assert ({*said.leased}, said.is_kept, questions(programs)) == ({"GPU-7"}, False, 1)
    third = Asker(first._folder).asks("GPU-7", "GPU-8")
    assert (third, questions(programs)) == (said._replace(is_kept=True), 1)


@pytest.mark.parametrize("why", ["given back", "anew", "old", "of later", "elsewhere", "of another boot", "not whole"])
def test_an_answer_that_does_not_count_is_not_taken(programs: Path, askers: tuple[Asker, Asker], why: str) -> None:
    first, second = askers
    kept = first.asks("GPU-1")
    old = kept.asked - KEPT_NANOSECONDS - 10**9
    changes: dict[str, dict[str, Any]] = {
        "old": {"asked": old, "answered": old},
        "of later": {"asked": now_stamp() + 10**12, "answered": now_stamp() + 10**12},
        "elsewhere": {"place": "elsewhere"},
        "of another boot": {"place": "0000-" + "mnt:[1] pid:[1]"},
        "not whole": {"gpus": None},
    }
    change(**changes.get(why, {}))
    set_gpus(programs, gpu_line(0, load=0, used=900))
    leased = [] if why == "given back" else ["GPU-1"]
    said = second.asks(*leased, anew=why == "anew")
    assert ([gpu["used"] for gpu in said.gpus], said.is_kept, questions(programs)) == ([900], False, 2)


def test_the_same_answer_is_not_taken_twice(programs: Path, askers: tuple[Asker, Asker]) -> None:
    first, second = askers
    first.asks()
    assert second.asks().is_kept
    assert not second.asks().is_kept
    assert questions(programs) == 2


def test_another_control_group_counts_only_with_the_same_gpus(programs: Path, askers: tuple[Asker, Asker]) -> None:
    first, second = askers
    first.asks()
    change(group="0::/system.slice/slurmstepd.scope/job_7")
    # It does not know which GPUs it has.
    assert not second.asks().is_kept
    change(group="0::/system.slice/slurmstepd.scope/job_7")
    assert first.asks().is_kept
    set_gpus(programs, gpu_line(0, load=0, used=1))
    second.asks(anew=True)
    change(group="0::/system.slice/slurmstepd.scope/job_7")
    assert not first.asks().is_kept


def test_if_who_asks_for_all_is_killed_the_others_ask(programs: Path, askers: tuple[Asker, Asker]) -> None:
    first, second = askers
    first.asks()
    change(asked=1, answered=2)
    killed = fifo.hold(first._folder, ASKED)
    assert second.ask() == ""
    assert second.question.take() is None
    fifo.let_go(killed)
    assert (second.answer().is_kept, questions(programs)) == (False, 2)
    # Its pipe is still there.
    change(asked=1, answered=2)
    assert (first.asks().is_kept, questions(programs)) == (False, 3)
    with pytest.raises(FileNotFoundError):
        os.stat(ASKED, dir_fd=first._folder)


def test_a_failure_is_the_same_for_all(programs: Path, askers: tuple[Asker, Asker]) -> None:
    first, second = askers
    put_nvidia_smi(programs, "NVIDIA-SMI has failed")
    assert first.asks().problem == second.asks().problem == "nvidia-smi: NVIDIA-SMI has failed"
    assert questions(programs) == 1


def test_where_nothing_can_be_kept_each_asks_for_itself(programs: Path, askers: tuple[Asker, Asker]) -> None:
    first, second = askers
    for asker in askers:
        asker._folder = os.open("/proc", os.O_RDONLY)
    assert len(first.asks().gpus) == len(second.asks().gpus) == 2
    for asker in askers:
        os.close(asker._folder)
    first._folder = second._folder = folders.open_own()
    assert questions(programs) == 2
