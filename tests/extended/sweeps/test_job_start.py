"""kill -9 at every system call that matters in the life of a job, on its server.

After each: every record is whole, the job stands as the kernel says, a start that is asked for again starts nothing
twice, and what is left can be stopped.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from .injection import Call, Fault, Fork, Zygote, faults, wait_until
from .job_case import COMMAND, CONTROL, SUPERVISOR, JobCase
from .sweeping import sweep

if TYPE_CHECKING:
    from pathlib import Path

# Each sweep is dozens of cases, one after the other on a busy machine.
STAYS = "exec sleep 60"
# It does not end between two signals, so that each run makes the same calls.
STUBBORN = "trap '' TERM; exec sleep 60"
# Has to be killed.
DEAF = "trap '' TERM; exec sleep 60"
ENDS = "exit 3"
KILL = "signal=KILL"


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(9, 12)
@pytest.mark.parametrize(("who", "generation"), [("start", CONTROL), ("a supervisor that begins", SUPERVISOR)])
def test_a_start_that_is_killed_anywhere_starts_once_or_not(
    zygote: Zygote, tmp_path: Path, who: str, generation: int
) -> None:
    def run(fault: Fault) -> bool:
        case = JobCase(zygote, tmp_path, STAYS)
        try:
            with case.open("start", generation=generation, fault=fault) as fork:
                hit = _end(fork)
            standing = case.check_standing(case.settled(stays=True))
            case.check_retry(standing, stays=True)
            case.check_stop()
        finally:
            case.clean()
        return hit

    sweep(f"{who}, kill -9", faults(calls_of_beginning(zygote, tmp_path, generation), KILL), run)


@pytest.mark.slow
@pytest.mark.row(9, 10)
@pytest.mark.parametrize(("who", "generation"), [("one", CONTROL), ("a supervisor that begins", SUPERVISOR)])
def test_a_second_start_comes_at_any_moment_of_the_first(
    zygote: Zygote, tmp_path: Path, who: str, generation: int
) -> None:
    def run(fault: Fault) -> bool:
        case = JobCase(zygote, tmp_path, STAYS)
        try:
            opened = case.open("start", generation=generation, fault=fault)
            with opened as first, case.open("start", traced=False) as second:
                first.go()
                assert first.tracing is not None
                wait_until(first.tracing.has_stopped, "SIGSTOP")
                second.go()
                second.has_ended(0.05)
                os.kill(first.target, signal.SIGCONT)
                answers = [case.answer(fork.wait()) for fork in (first, second)]
            assert case.settled(stays=True).runs == 1
            assert sorted(answer["already"] for answer in answers) == [False, True]
            assert len({answer["started"]["pid"] for answer in answers}) == 1
            assert {path.name for path in case.jobs.iterdir()} == {case.id, ".folder-id"}
            case.check_stop()
        finally:
            case.clean()
        return True

    calls = [call for call in calls_of_beginning(zygote, tmp_path, generation) if call.name != "exit_group"]
    sweep(f"two starts, {who} held", faults(calls, "signal=STOP"), run)


@pytest.mark.picked
def test_the_jobs_of_one_call_begin_together(zygote: Zygote, tmp_path: Path) -> None:
    """Each waits for the disk by itself: one that is held up holds up no other."""
    case = JobCase(zygote, tmp_path, STAYS)
    try:
        with case.open("start", generation=SUPERVISOR, traced=False, jobs=3) as fork:
            supervisors = (fork.target, fork.see_another(), fork.see_another())
            assert len(set(supervisors)) == 3
            case.kill((fork.pid, *supervisors))
    finally:
        case.clean()


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(3, 12, 22)
def test_a_supervisor_that_is_killed_anywhere_leaves_the_truth(zygote: Zygote, tmp_path: Path) -> None:
    def run(fault: Fault) -> bool:
        case = JobCase(zygote, tmp_path, ENDS)
        try:
            with case.open("start", generation=SUPERVISOR, fault=fault) as fork:
                hit = _end(fork)
            standing = case.check_standing(case.settled(stays=False))
            assert standing is not None
            assert standing.state in {"lost", "failed"}
            assert standing.ended is None or standing.ended["exit_code"] == 3
            case.check_retry(standing, stays=False)
            case.check_stop()
        finally:
            case.clean()
        return hit

    sweep("a supervisor's life, kill -9", faults(calls_of_life(zygote, tmp_path, ENDS), KILL), run)


@pytest.mark.slow
@pytest.mark.row(3, 12)
def test_a_supervisor_that_is_killed_anywhere_while_it_stops_a_job(zygote: Zygote, tmp_path: Path) -> None:
    calls = calls_of_life(zygote, tmp_path, DEAF)
    first = next(number for number, call in enumerate(calls) if call.name == "pidfd_send_signal")

    def run(fault: Fault) -> bool:
        case = JobCase(zygote, tmp_path, DEAF)
        try:
            with case.open("start", generation=SUPERVISOR, fault=fault) as fork:
                fork.go()
                fork.wait()
                case.settled(stays=True)
                case.call("stop")
                assert fork.tracing is not None
                fork.tracing.wait()
                hit = fork.tracing.was_hit()
            standing = case.check_standing(case.settled(stays=False))
            assert standing is not None
            # Killed when a process was left that the stop had to end itself.
            assert standing.state in {"killed", "lost"}
            case.check_stop()
        finally:
            case.clean()
        return hit

    sweep("a supervisor that stops a job, kill -9", faults(calls[first:], KILL), run)


@pytest.mark.slow
@pytest.mark.row(12)
def test_a_command_that_is_killed_before_it_is_the_command(zygote: Zygote, tmp_path: Path) -> None:
    calls = calls_of_start(zygote, tmp_path, STAYS, COMMAND)
    became = next(number for number, call in enumerate(calls) if call.name == "execve")

    def run(fault: Fault) -> bool:
        case = JobCase(zygote, tmp_path, STAYS)
        try:
            with case.open("start", generation=COMMAND, fault=fault) as fork:
                hit = _end(fork)
            standing = case.check_standing(case.settled(stays=False))
            assert standing is not None
            assert standing.ended is not None
            assert standing.ended["signal"] == "SIGKILL"
            case.check_retry(standing, stays=False)
            case.check_stop()
        finally:
            case.clean()
        return hit

    sweep("a command before it runs, kill -9", faults(calls[: became + 1], KILL), run)


@pytest.mark.slow
@pytest.mark.row(12, 21)
@pytest.mark.parametrize("supervised", [True, False])
def test_a_stop_that_is_killed_anywhere_can_be_asked_for_again(
    zygote: Zygote, tmp_path: Path, *, supervised: bool
) -> None:
    def run(fault: Fault | None) -> list[Call] | bool:
        case = JobCase(zygote, tmp_path, STAYS if supervised else STUBBORN)
        try:
            case.call("start")
            reality = case.settled(stays=True)
            if not supervised:
                case.kill(reality.ours)
            with case.open("stop", fault=fault) as fork:
                fork.go()
                fork.wait()
                assert fork.tracing is not None
                fork.tracing.wait()
                hit, calls = fork.tracing.was_hit(), fork.tracing.calls()
            case.check_records()
            case.check_stop()
        finally:
            case.clean()
        return calls if fault is None else hit

    calls = run(None)
    assert isinstance(calls, list)
    sweep(
        f"stop {'with' if supervised else 'without'} a supervisor, kill -9",
        faults(calls, KILL),
        # A supervisor that looks for itself between the request and the signal may need no signal: once more then.
        lambda fault: any(run(fault) for _ in range(5)),
    )


def _end(fork: Fork) -> bool:
    """Let a fork run until its target has ended, and it itself; whether its fault came."""
    fork.go()
    fork.wait()
    assert fork.tracing is not None
    fork.tracing.wait()
    return fork.tracing.was_hit()


def calls_of_start(zygote: Zygote, folder: Path, command: str, generation: int) -> list[Call]:
    """Start and stop a job without a fault; returns the calls of one of the processes."""
    case = JobCase(zygote, folder, command)
    try:
        with case.open("start", generation=generation) as fork:
            fork.go()
            fork.wait()
            reality = case.settled(stays=command != ENDS)
            assert reality.runs == 1
            case.check_stop()
            assert fork.tracing is not None
            fork.tracing.wait()
            return fork.tracing.calls()
    finally:
        case.clean()


def calls_of_beginning(zygote: Zygote, folder: Path, generation: int) -> list[Call]:
    """Return the calls of a start, or those of a supervisor until its job's folder is there."""
    calls = calls_of_start(zygote, folder, STAYS, generation)
    return calls if generation == CONTROL else calls[: _folder_is_there(calls)]


def calls_of_life(zygote: Zygote, folder: Path, command: str) -> list[Call]:
    """Return the calls of a supervisor from when its job's folder is there."""
    calls = calls_of_start(zygote, folder, command, SUPERVISOR)
    return calls[_folder_is_there(calls) :]


def _folder_is_there(calls: list[Call]) -> int:
    return 1 + next(number for number, call in enumerate(calls) if call.name.startswith("rename"))
