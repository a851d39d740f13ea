"""The whole program with a real server: kill -9, a full disk, and a link that breaks, at every call that matters.

The sweeps begin where the program first touches its records.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.sshd import TestServer, make_key

from .injection import WRITING, Call, Fault, Fork, Zygote, faults, wait_until
from .program_case import ProgramCase, Servers
from .sweeping import AT_ONCE, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STAYS = "echo $$ >> ran; exec sleep 60"
RUN = ("job-run", "--no-sync", "--cmd", STAYS)
FOLLOW = ("job-run", "--follow", "--no-sync", "--cmd", "echo one; echo two >&2; exit 3")
LIST = ("job-list", "--stopped")
STOPPED, ENDED = "stopped", "ended"
STOP = ("job-kill", "--job", "1")


@pytest.fixture(scope="module")
def program(tracing: None) -> Iterator[Zygote]:
    """A process that has the whole program imported."""
    del tracing
    with Zygote("tests.extended.sweeps.program_phase") as process:
        yield process


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """One for each case that runs at a time."""
    folder = tmp_path_factory.mktemp("servers")
    some = Servers(folder, make_key(folder / "id_ed25519"), AT_ONCE)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # Made before each test's home is.
            patch.setenv("HOME", str(folder))
            some.start(folder / "project")
        yield some
    finally:
        some.stop()


def _is_optional(call: Call) -> bool:
    """Tell whether it may not come: what the server says when decides on packets, an idle thread on a further one."""
    return call.name == "sendto" or (call.name.startswith("clone") and "CLONE_THREAD" in call.text)


def _stopped_or_ended(fork: Fork) -> str:
    assert fork.tracing is not None
    if fork.tracing.has_stopped():
        return STOPPED
    return ENDED if fork.has_ended() else ""


def _calls(case: ProgramCase, arguments: tuple[str, ...]) -> list[Call]:
    """Run a command without a fault; returns the calls from the first that touches the records."""
    with case.run(*arguments) as fork:
        fork.go()
        fork.wait()
        assert "Traceback" not in fork.stderr()
        assert fork.tracing is not None
        fork.tracing.wait()
        calls = fork.tracing.calls()
    case.check_list()
    case.check_stop()
    first = next(number for number, call in enumerate(calls) if ".remote/jobs" in call.text)
    return calls[first:]


@pytest.mark.picked_case("run")
@pytest.mark.slow
@pytest.mark.row(9, 121)
@pytest.mark.parametrize("arguments", [RUN, FOLLOW, LIST, STOP], ids=["run", "follow", "list", "kill"])
def test_a_program_that_is_killed_anywhere_loses_no_job(
    program: Zygote, zygote: Zygote, servers: Servers, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    def prepare(server: TestServer) -> ProgramCase:
        case = ProgramCase(program, zygote, tmp_path, server)
        if arguments in {LIST, STOP}:
            case.start_job(STAYS)
        return case

    def run(fault: Fault) -> bool:
        with servers.one() as server:
            case = prepare(server)
            try:
                before = {job.id for job in case.jobs()}
                with case.run(*arguments, fault=fault) as fork:
                    fork.go()
                    fork.wait()
                    assert fork.tracing is not None
                    fork.tracing.wait()
                    hit = fork.tracing.was_hit()
                assert before <= {job.id for job in case.jobs()}
                case.check_list()
                case.check_stop()
            finally:
                case.clean()
            return hit or _is_optional(fault.call)

    with servers.one() as server:
        calls = _calls(prepare(server), arguments)
    if arguments == FOLLOW:
        # It begins like the other job-run.
        calls = calls[next(number for number, call in enumerate(calls) if "/job.out" in call.text) :]
    # The many steps of a login change nothing here or there; the last ones are the request and its answer.
    talk = [call for call in calls if call.name == "sendto"][:-8]
    silent = [call for call in calls if call not in talk]
    sweep(f"{' '.join(arguments[:2])}, kill -9", faults(silent, "signal=KILL"), run)


@pytest.mark.slow
@pytest.mark.row(9, 36)
def test_a_link_that_breaks_at_any_moment_of_a_start_starts_one_job_once(
    program: Zygote, zygote: Zygote, servers: Servers, tmp_path: Path
) -> None:
    def run(fault: Fault) -> bool:
        with servers.one() as server:
            case = ProgramCase(program, zygote, tmp_path, server)
            try:
                with case.run(*RUN, fault=fault) as fork:
                    fork.go()
                    assert fork.tracing is not None
                    hit = wait_until(partial(_stopped_or_ended, fork), "SIGSTOP or the end") == STOPPED
                    server.drop_connections()
                    if hit:
                        os.kill(fork.pid, signal.SIGCONT)
                    fork.wait()
                    assert "Traceback" not in fork.stderr()
                    succeeded = "job 1 on first: running" in fork.stderr()
                there = case.at_rest()
                assert len(there) <= 1
                assert not succeeded or [each.state for each in there.values()] == ["running"]
                # A shell that was let go writes its line when it comes to it.
                wait_until(lambda: len(case.lines()) >= len(there), "every job's line")
                assert len(case.lines()) == len(there)
                case.check_list()
                case.check_stop()
            finally:
                case.clean()
            return hit or _is_optional(fault.call)

    with servers.one() as server:
        calls = _calls(ProgramCase(program, zygote, tmp_path, server), RUN)
    sweep("job-run, the link cut", faults(calls, "signal=STOP"), run)


@pytest.mark.slow
@pytest.mark.row(124)
def test_a_program_that_cannot_write_says_where(
    program: Zygote, zygote: Zygote, servers: Servers, tmp_path: Path
) -> None:
    def run(fault: Fault) -> bool:
        with servers.one() as server:
            case = ProgramCase(program, zygote, tmp_path, server)
            try:
                with case.run(*FOLLOW, fault=fault) as fork:
                    fork.go()
                    fork.wait()
                    assert fork.tracing is not None
                    fork.tracing.wait()
                    hit = fork.tracing.was_hit()
                    said = fork.stderr()
                assert "Traceback" not in said
                assert "Cannot write" in said
                assert str(case.registry.folder) in said
                assert "No space left on device" in said
                # Nothing is started that could not be recorded.
                assert len(case.at_rest()) <= len(case.jobs())
                case.check_list()
            finally:
                case.clean()
            return hit

    with servers.one() as server:
        calls = _calls(ProgramCase(program, zygote, tmp_path, server), FOLLOW)
    relevant = [call for call in calls if ".remote/jobs" in call.text and "EEXIST" not in call.text]
    sweep("job-run --follow, ENOSPC", faults(relevant, "error=ENOSPC", WRITING), run)
