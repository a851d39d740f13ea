"""A disk that is full or broken at every system call that writes, in the life of a job on its server.

After each: nothing that was there is lost, no record is cut off, the message names the path and says why, and the
end of a job is recorded as soon as it can be.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from .injection import WRITING, Call, Fault, Zygote, faults, wait_until
from .job_case import CONTROL, SUPERVISOR, JobCase
from .sweeping import sweep
from .test_job_start import ENDS, STAYS, calls_of_beginning, calls_of_life

if TYPE_CHECKING:
    from pathlib import Path

# As in the sweeps of starts.
ERRORS = {"ENOSPC": "No space left on device (errno 28)", "EIO": "Input/output error (errno 5)"}
each_error = pytest.mark.parametrize("error", ERRORS)


def _writing(calls: list[Call], error: str) -> list[Fault]:
    """One fault for each call that writes to a disk: the answer goes to a pipe, and the gate to a neighbour."""
    found = faults(calls, f"error={error}", WRITING)
    return [fault for fault in found if "/stdout-" not in fault.call.text and "<pipe:" not in fault.call.text]


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(11, 29)
@each_error
@pytest.mark.parametrize("generation", [CONTROL, SUPERVISOR])
def test_a_start_that_cannot_write_says_so_or_starts(
    zygote: Zygote, tmp_path: Path, error: str, generation: int
) -> None:
    def run(fault: Fault) -> bool:
        case = JobCase(zygote, tmp_path, STAYS)
        try:
            with case.open("start", generation=generation, fault=fault) as fork:
                fork.go()
                answer = case.answer(fork.wait(), fork.stderr())
                assert fork.tracing is not None
                if generation == CONTROL or answer.get("error"):
                    fork.tracing.wait()
                else:
                    # It supervises a job by now.
                    fork.tracing.end()
                hit = fork.tracing.was_hit()
            standing = case.check_standing(case.settled(stays=not answer.get("error")))
            if answer.get("error"):
                assert str(case.jobs) in answer["error"]
                assert ERRORS[error].split(" (")[0] in answer["error"]
                assert standing is None
                # The folder of all jobs has its id from the first start on, whatever becomes of that.
                assert {path.name for path in case.jobs.glob("*")} <= {".folder-id"}
            else:
                assert standing is not None
                assert standing.state == "running"
            case.check_retry(standing, stays=True)
            case.check_stop()
        finally:
            case.clean()
        return hit

    who = "start" if generation == CONTROL else "a supervisor that begins"
    sweep(f"{who}, {error}", _writing(calls_of_beginning(zygote, tmp_path, generation), error), run)


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(11, 28)
@each_error
def test_a_supervisor_that_cannot_write_records_the_end_all_the_same(
    zygote: Zygote, tmp_path: Path, error: str
) -> None:
    def run(fault: Fault) -> bool:
        case = JobCase(zygote, tmp_path, ENDS)
        try:
            with case.open("start", generation=SUPERVISOR, fault=fault) as fork:
                fork.go()
                fork.wait()
                assert fork.tracing is not None
                fork.tracing.wait()
                hit = fork.tracing.was_hit()
            standing = case.check_standing(case.settled(stays=False))
            assert standing is not None
            assert standing.state == "failed"
            assert standing.ended is not None
            if case.lines():
                assert standing.ended["exit_code"] == 3
            else:
                assert standing.ended["reason"].endswith(f"{case.folder}/started.json: {ERRORS[error]}")
            case.check_retry(standing, stays=False)
            case.check_stop()
        finally:
            case.clean()
        return hit

    sweep(f"a supervisor's life, {error}", _writing(calls_of_life(zygote, tmp_path, ENDS), error), run)


@pytest.mark.slow
@pytest.mark.row(11, 28)
@each_error
def test_an_end_that_cannot_be_written_for_long_arrives_when_it_can(zygote: Zygote, tmp_path: Path, error: str) -> None:
    calls = calls_of_life(zygote, tmp_path, ENDS)
    started = next(number for number, call in enumerate(calls) if call.name == "unlinkat")

    def run(fault: Fault) -> bool:
        case = JobCase(zygote, tmp_path, ENDS)
        try:
            with case.open("start", generation=SUPERVISOR, fault=fault) as fork:
                fork.go()
                fork.wait()
                tracing = fork.tracing
                assert tracing is not None
                # Two in a row: it was tried again.
                wait_until(lambda: tracing.hits() > 1, "the second try")
                reality = case.reality()
                assert reality.ours
                standing = case.check_standing(reality)
                assert standing is not None
                assert standing.reason == "its command has ended, and its end is being recorded"
                tracing.end()
            standing = case.check_standing(case.settled(stays=False))
            assert standing is not None
            assert standing.ended is not None
            assert standing.ended["exit_code"] == 3
            case.check_stop()
        finally:
            case.clean()
        return True

    last = [fault for fault in _writing(calls[started:], error) if "reserve" in fault.call.text]
    lasting = [Fault(fault.call, fault.effect, lasts=True) for fault in last if fault.call.name != "linkat"]
    sweep(f"an end that cannot be written for long, {error}", lasting, run)


@pytest.mark.picked
@pytest.mark.row(11)
def test_an_end_that_a_full_disk_holds_up_is_told_so(zygote: Zygote, tmp_path: Path, small_disk: Path) -> None:
    calls = calls_of_life(zygote, tmp_path, ENDS)
    last = [fault for fault in _writing(calls, "ENOSPC") if "/reserve>" in fault.call.text]
    case = JobCase(zygote, small_disk, ENDS)
    try:
        with case.open("start", generation=SUPERVISOR, fault=Fault(last[0].call, "error=ENOSPC", lasts=True)) as fork:
            fork.go()
            fork.wait()
            tracing = fork.tracing
            assert tracing is not None
            wait_until(lambda: tracing.hits() > 1, "the second try")
            with (small_disk / "filler").open("ab", buffering=0) as filler, suppress(OSError):
                while True:
                    filler.write(b"x" * 4096)
            standing = case.standing()
            assert standing is not None
            assert standing.state == "running"
            assert standing.reason == "its command has ended, and its end is being recorded, but the disk is full"
            tracing.end()
        standing = case.check_standing(case.settled(stays=False))
        assert standing is not None
        assert standing.state == "failed"
    finally:
        case.clean()


@dataclass(frozen=True)
class Silence(Fault):
    """What a network disk answers for a while to one kind of question about one path."""

    about: str = ""

    def options(self, _: Path | None) -> list[str]:
        """For strace."""
        injected = f"inject={self.call.name}:{self.effect}:when=1..4"
        return ["-e", f"trace={self.call.name}", "-e", injected, "-P", self.about]


def _silence(call: str, about: object) -> Silence:
    return Silence(Call(call, 1, 1, str(about)), "error=EIO", about=str(about))


@pytest.mark.slow
@pytest.mark.row(1, 11)
@pytest.mark.parametrize("call", ["openat", "newfstatat", "fstatfs"])
def test_a_disk_that_does_not_answer_ends_no_job_and_no_supervisor(zygote: Zygote, tmp_path: Path, call: str) -> None:
    """Above all, a stop.json that cannot be read is no wish when there is none."""
    case = JobCase(zygote, tmp_path, f"sleep 0.3; {ENDS}")
    try:
        about = "stop.json" if call == "openat" else case.folder
        with case.open("start", generation=SUPERVISOR, fault=_silence(call, about)) as fork:
            fork.go()
            fork.wait()
            assert fork.tracing is not None
            fork.tracing.wait()
            assert fork.tracing.hits()
        standing = case.check_standing(case.settled(stays=False))
        assert standing is not None
        assert standing.ended is not None
        assert (standing.state, standing.ended["exit_code"], standing.reason) == ("failed", 3, "")
    finally:
        case.clean()


@dataclass(frozen=True)
class Stale(Fault):
    """What a network disk says of a folder that another machine removed, from when it has this path."""

    path: str = ""

    def options(self, _: Path | None) -> list[str]:
        """For strace."""
        calls = "?fstat,newfstatat,openat,linkat"
        return ["-e", f"trace={calls}", "-e", f"inject={calls}:error=ESTALE", "-P", self.path]


@pytest.mark.slow
@pytest.mark.row(137)
def test_a_supervisor_whose_folder_a_network_disk_has_removed_ends_soon_and_not_while_it_may_be_there(
    zygote: Zygote, tmp_path: Path
) -> None:
    case = JobCase(zygote, tmp_path, "until test -e ../go; do sleep 0.02; done")
    away = case.home / "away"
    about = away / ".jobs" / case.id
    try:
        fault = Stale(Call("newfstatat", 1, 1, str(about)), "error=ESTALE", path=str(about))
        with case.open("start", generation=SUPERVISOR, fault=fault) as fork:
            fork.go()
            fork.wait()
            tracing = fork.tracing
            assert tracing is not None
            assert case.settled(stays=True).commands
            # From now on its folder is stale, while its path still leads to one.
            case.project.rename(away)
            case.folder.mkdir(parents=True)
            (case.home / "go").touch()
            wait_until(lambda: not case.reality().commands, "the end of the command")
            hits = tracing.hits()
            wait_until(lambda: tracing.hits() > hits + 2, "further tries")
            assert case.reality().ours
            case.folder.rmdir()
            wait_until(lambda: not case.reality().ours, "the end of the supervisor")
            tracing.wait()
        assert not (about / "ended.json").exists()
    finally:
        case.clean()


@pytest.mark.picked
@pytest.mark.row(3, 29)
def test_a_folder_that_cannot_be_opened_now_is_not_called_gone(zygote: Zygote, tmp_path: Path) -> None:
    case = JobCase(zygote, tmp_path, STAYS)
    try:
        case.call("start")
        case.settled(stays=True)
        answers = {}
        for op in ("status", "follow", "stop"):
            with case.open(op, fault=_silence("openat", case.id)) as fork:
                fork.go()
                answers[op] = case.answer(fork.wait(), fork.stderr())
        bad = {"name": case.id, "why": "Input/output error", "errno": 5}
        assert (answers["status"]["jobs"], answers["status"]["bad"]) == ([], [bad])
        assert answers["follow"] == {"job": case.id, "trouble": "Input/output error"}
        assert "Input/output error" in answers["stop"]["error"]
        assert case.settled(stays=True).commands
    finally:
        case.clean()


@pytest.mark.slow
@pytest.mark.row(11, 21)
@each_error
@pytest.mark.parametrize("supervised", [True, False])
def test_a_stop_that_cannot_write_stops_all_the_same(
    zygote: Zygote, tmp_path: Path, error: str, *, supervised: bool
) -> None:
    def run(fault: Fault | None) -> list[Call] | bool:
        case = JobCase(zygote, tmp_path, STAYS)
        try:
            case.call("start")
            reality = case.settled(stays=True)
            if not supervised:
                case.kill(reality.ours)
            with case.open("stop", fault=fault) as fork:
                fork.go()
                answer = case.answer(fork.wait(), fork.stderr())
                assert fork.tracing is not None
                fork.tracing.wait()
                hit, calls = fork.tracing.was_hit(), fork.tracing.calls()
            standing = case.check_standing(case.settled(stays=False))
            assert standing is not None
            assert standing.state == "killed" or ERRORS[error] in answer["error"], answer
            assert "error" not in answer or str(case.folder) in answer["error"]
            case.check_stop()
        finally:
            case.clean()
        return calls if fault is None else hit

    calls = run(None)
    assert isinstance(calls, list)
    who = "with" if supervised else "without"
    sweep(f"stop {who} a supervisor, {error}", _writing(calls, error), lambda fault: bool(run(fault)))


@pytest.mark.slow
@pytest.mark.row(153)
@pytest.mark.parametrize("error", ["EMFILE", "EIO"])
def test_a_start_that_cannot_read_says_not_begun_only_where_nothing_ever_runs(
    zygote: Zygote, tmp_path: Path, error: str
) -> None:
    def run(fault: Fault) -> bool:
        case = JobCase(zygote, tmp_path, STAYS)
        try:
            with case.open("start", fault=fault) as fork:
                fork.go()
                output = fork.wait()
                answer = case.answer(output, fork.stderr()) if output else {}
                assert fork.tracing is not None
                fork.tracing.wait()
                hit = fork.tracing.was_hit()
            reality = case.settled(stays=True)
            if answer.get("begun") is False:
                assert (reality.runs, case.folder.exists()) == (0, False)
            elif "error" not in answer:
                assert reality.runs == 1
            case.check_retry(case.check_standing(reality), stays=True)
            case.check_stop()
        finally:
            case.clean()
        return hit

    calls = calls_of_beginning(zygote, tmp_path, CONTROL)
    # The kernel's own files are on no disk.
    wanted = "" if error == "EMFILE" else "/.jobs"
    opening = [call for call in calls if call.name == "openat" and wanted in call.text]
    sweep(f"a start that cannot read, {error}", [Fault(call, f"error={error}") for call in opening], run)
