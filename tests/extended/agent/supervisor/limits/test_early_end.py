"""A job ends by its own limits: after its max_duration, or when its GPUs are idle for long."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.supervisor.limits.early_end import IdleGpus
from remote_tool.agent.supervisor.plan import Plan, RequestedJob
from tests.extended.agent.conftest import PretendServer, changed_copy, wait_until
from tests.stand_in_gpus import put_nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Seconds. The supervisor looks at least once per second.
IDLE = 2.0


def line(index: int, load: int | str) -> str:
    return f"{index}, GPU-{index}, {load}"


def start_on_gpus(server: PretendServer, folder: Path, command: str = "exec sleep 600", **fields: Any) -> str:
    """Start a job whose server finds the nvidia-smi in a folder."""
    login = {"PATH": f"{folder}:{os.environ['PATH']}"}
    job = server.new_job(command, **fields)
    with server.open("start", login=login, jobs=[job]) as call:
        (frame,) = call.rest()
    assert "error" not in frame.header["jobs"][0], frame.header
    wait_until((server.jobs / job["id"] / "started.json").exists, "the start")
    return str(job["id"])


def looks(folder: Path) -> int:
    """Return how often nvidia-smi was asked."""
    asked = folder / "asked"
    return len(asked.read_text().splitlines()) if asked.exists() else 0


@pytest.mark.row(285)
def test_a_job_is_stopped_after_its_max_duration(server: PretendServer) -> None:
    job = server.start("exec sleep 600", max_duration=0.2)
    ended = server.wait(job)[job]
    assert (ended["killed"], ended["signal"]) == (True, "SIGTERM")
    assert ended["reason"] == "stopped because it ran for 0.2s, its max_duration"
    assert server.status(job)["state"] == "killed"


@pytest.mark.row(285)
def test_all_attempts_together_have_one_max_duration(server: PretendServer) -> None:
    job = server.start("sleep 0.1; exit 1", retries=100, max_duration=1.5)
    ended = server.wait(job)[job]
    assert ended["killed"] is True
    assert ended["reason"].endswith("stopped because it ran for 1.5s, its max_duration")


def test_a_command_that_ends_in_time_is_left_alone(server: PretendServer) -> None:
    job = server.start("exit 3", max_duration=600, stop_if_idle=600)
    ended = server.wait(job)[job]
    assert (ended["exit_code"], ended["killed"], ended["reason"]) == (3, False, "")


@pytest.mark.row(286)
def test_idle_gpus_stop_a_job_after_a_notice(server: PretendServer, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    put_nvidia_smi(folder, line(0, 2), line(1, 0))
    job = start_on_gpus(server, folder, stop_if_idle=IDLE)
    ended = server.wait(job)[job]
    reason = "stopped because it used its GPUs for less than 5 % in the last 2s: stop_if_idle, "
    assert ended["killed"]
    assert re.fullmatch(f"{reason}[0-9]+ measurements by nvidia-smi", ended["reason"])
    assert server.output(job, "err") == "remote-tool: its GPUs are idle; stop_if_idle stops it in 1s if they stay so\n"


class Clock:
    """Seconds of a test's own, and an nvidia-smi that answers once in each of them while it runs."""

    def __init__(self) -> None:
        self.answer: Callable[[], list[str]] = list
        self.now = 0
        self.questions = 0
        self.keeps_answers = False
        self.knows_loops = True

    def ask(self, *words: str) -> Answers:
        self.questions += 1
        return Answers(self, is_running="-l" in words and self.knows_loops)


class Answers:
    """In place of a running nvidia-smi."""

    def __init__(self, clock: Clock, *, is_running: bool) -> None:
        self.clock = clock
        self.is_running = is_running
        self.read_at = -1
        self.has_ended = False

    def read(self) -> list[str]:
        if self.read_at == self.clock.now or (self.is_running and self.clock.keeps_answers):
            return []
        self.read_at = self.clock.now
        self.has_ended = not self.is_running
        return self.clock.answer()

    def end(self) -> None:
        self.has_ended = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("remote_tool.agent.supervisor.limits.early_end.Program", found.ask)
    return found


def watch(folder: Path, clock: Clock, seconds: int, gpus: tuple[str, ...] = (), **of_request: Any) -> list[str]:
    """Return what a watch with a limit of 100 s says, asked once per second of the clock."""
    (folder / "job.err").touch()
    descriptor = os.open(folder, os.O_RDONLY)
    request = RequestedJob({"id": "id", "gpus": gpus}, "", {}, **of_request)
    plan = Plan(request, descriptor, str(folder), -1, True, "/", request.environment)
    idle = IdleGpus(plan, 100.0)
    said = []
    for _ in range(seconds):
        said.append(idle.look(float(clock.now)))
        clock.now += 1
    idle.pause()
    os.close(descriptor)
    return [text for text in said if text]


@pytest.mark.row(286)
@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param((line(0, 0), line(1, 97)), id="one of them is used"),
        pytest.param((line(1, 97), line(0, 0)), id="the first of them is used"),
        pytest.param((line(0, 0), line(1, "[N/A]")), id="one does not say"),
        pytest.param(("No devices were found",), id="it fails"),
        pytest.param((), id="it says nothing"),
    ],
)
def test_gpus_that_may_be_used_stop_nothing(tmp_path: Path, clock: Clock, gpus: tuple[str, ...]) -> None:
    clock.answer = lambda: [*gpus]
    assert watch(tmp_path, clock, 150) == []


@pytest.mark.row(286)
def test_idle_gpus_stop_it_not_before_the_time(tmp_path: Path, clock: Clock) -> None:
    clock.answer = lambda: [line(0, 4)]
    assert watch(tmp_path, clock, 100) == []
    said = watch(tmp_path, clock, 101)
    assert said == ["used its GPUs for less than 5 % in the last 100s: stop_if_idle, 101 measurements by nvidia-smi"]
    assert clock.questions == 2


@pytest.mark.row(286)
def test_a_second_of_use_in_every_twenty_is_always_seen(tmp_path: Path, clock: Clock) -> None:
    clock.answer = lambda: [line(0, 97 if clock.now % 20 == 7 else 0)]
    assert watch(tmp_path, clock, 1000) == []


@pytest.mark.row(286)
def test_a_gpu_that_becomes_silent_stops_nothing(tmp_path: Path, clock: Clock) -> None:
    clock.answer = lambda: [line(0, 0), line(1, 0)][: 2 if clock.now < 50 else 1]
    assert watch(tmp_path, clock, 150) == []


@pytest.mark.parametrize(("is_silent", "seconds"), [(True, 119), (False, 110)])
def test_an_nvidia_smi_that_does_not_answer_in_a_loop_is_asked_now_and_then(
    tmp_path: Path, clock: Clock, seconds: int, *, is_silent: bool
) -> None:
    clock.answer = lambda: [line(0, 0)]
    clock.keeps_answers, clock.knows_loops = is_silent, is_silent
    (said,) = set(watch(tmp_path, clock, seconds))
    assert said.endswith("stop_if_idle, 11 measurements by nvidia-smi")
    assert clock.questions == 12 - (not is_silent)


@pytest.mark.parametrize(
    ("gpus", "is_idle"),
    [(("1", "2"), True), (("GPU-2",), True), (("0",), False), (("1", "0"), False), (("7",), False), ((), False)],
)
def test_only_the_gpus_of_the_job_count(tmp_path: Path, clock: Clock, gpus: tuple[str, ...], *, is_idle: bool) -> None:
    clock.answer = lambda: [line(0, 97), line(1, 0), line(2, 0), line(3, "[N/A]")]
    assert bool(watch(tmp_path, clock, 110, gpus=gpus)) is is_idle


@pytest.mark.row(286)
def test_an_nvidia_smi_that_hangs_stops_nothing_and_holds_up_no_stop(server: PretendServer, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    put_nvidia_smi(folder, otherwise="exec sleep 600")
    job = start_on_gpus(server, folder, stop_if_idle=IDLE)
    wait_until(lambda: looks(folder) == 1, "the question")
    server.stop(job)
    ended = server.wait(job)[job]
    assert (ended["reason"], ended["leftovers"], ended["unkillable"]) == ("stopped with SIGTERM", 0, [])


def test_gpus_that_are_used_again_take_the_notice_back(tmp_path: Path, installed: Path) -> None:
    """The notice comes early here, and the stop late: a busy machine sees the change in between."""
    times = {"_LOOK_SECONDS, _LOOK_PART = 30.0,": "_LOOK_SECONDS, _LOOK_PART = 0.5,"}
    times["_NOTICE_SECONDS, _NOTICE_PART = 300.0, 2"] = "_NOTICE_SECONDS, _NOTICE_PART = 299.0, 1"
    changed = changed_copy(installed, tmp_path / "changed", {"agent/supervisor/limits/early_end.py": times})
    server, folder = PretendServer(tmp_path / "home", changed), tmp_path / "bin"
    put_nvidia_smi(folder, line(0, 0))
    job = start_on_gpus(server, folder, stop_if_idle=300)
    notice = "its GPUs are idle; stop_if_idle stops it in 299s if they stay so"
    wait_until(lambda: server.status(job)["reason"] == notice, "the notice")
    (folder / "gpus").write_text(f"{line(0, 60)}\n")
    wait_until(lambda: server.status(job)["reason"] == "", "the end of the notice")
    again = "remote-tool: its GPUs are used again, so it is not stopped\n"
    assert server.output(job, "err") == f"remote-tool: {notice}\n{again}"
    server.clean()


def test_without_nvidia_smi_the_limit_says_that_it_has_no_effect(server: PretendServer, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sleep", "sh"):
        (tools / name).symlink_to(f"/bin/{name}")
    job = server.new_job("exec sleep 600", stop_if_idle=IDLE)
    with server.open("start", login={"PATH": str(tools)}, jobs=[job]) as call:
        call.rest()
    error = server.jobs / job["id"] / "job.err"
    text = "remote-tool: stop_if_idle has no effect: nvidia-smi: No such file or directory\n"
    wait_until(lambda: error.exists() and error.read_text() == text, "the message")
