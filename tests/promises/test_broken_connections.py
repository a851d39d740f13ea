"""Nothing is lost when the connection breaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.processes import parents
from tests.promises.conftest import PATIENCE, HeldRequest, folder_of_sockets, until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.promises.conftest import Desk

# Each line has another number, so a repeated or a missing byte shows.
PRINTS = """
import itertools, os, sys, time
for number in itertools.count():
    print(number, "x" * (number % 97), flush=True)
    time.sleep(0.002)
    if os.path.exists("enough"):
        break
"""


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def is_longer_than(output: bytearray, size: int) -> bool:
    return len(output) > size


def only_folder(desk: Desk) -> Path:
    """Return the folder of the only job on the server."""
    (found,) = [path for path in (desk.there() / ".jobs").iterdir() if (path / "spec.json").exists()]
    return found


@pytest.mark.row(36, 150)
def test_output_continues_at_the_byte_where_the_connection_broke(desk: Desk) -> None:
    (desk.root / "prints.py").write_text(PRINTS)
    desk.does("job-run", "--cmd", "python prints.py")
    words = [sys.executable, "-m", "remote_tool", "job-tail", "1"]
    output = bytearray()
    with subprocess.Popen(words, cwd=desk.root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tail:

        def read() -> None:
            assert tail.stdout is not None
            while data := os.read(tail.stdout.fileno(), 65536):
                output.extend(data)

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(3):
            until(partial(is_longer_than, output, len(output)), "output arrives")
            desk.servers["first"].drop_connections()
        (desk.there() / "enough").touch()
        assert tail.wait(PATIENCE) == 0
        reader.join(PATIENCE)
    written = (only_folder(desk) / "job.out").read_bytes()
    assert bytes(output) == written
    assert (desk.root / ".remote" / "jobs" / desk.job(1)["id"] / "job.out").read_bytes() == written


@pytest.mark.row(14)
def test_a_job_keeps_running_without_the_laptop_and_its_output_is_there_later(desk: Desk) -> None:
    (desk.root / "prints.py").write_text(PRINTS)
    with desk.runs_meanwhile("job-run", "--follow", "--cmd", "python prints.py") as program:
        assert program.stdout is not None
        while not program.stdout.readline().startswith("9 "):
            pass
        program.send_signal(signal.SIGKILL)
    desk.servers["first"].drop_connections()
    log = only_folder(desk) / "job.out"
    size = log.stat().st_size
    until(lambda: log.stat().st_size > size + 1000, "the job goes on")
    (desk.there() / "enough").touch()
    desk.does("job-wait", "1")
    assert desk.does("job-tail", "1").encode() == log.read_bytes()
    assert desk.job(1)["state"] == "succeeded"


@pytest.mark.row(9)
def test_a_job_whose_start_was_not_confirmed_is_not_started_twice(desk: Desk, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with desk.runs_meanwhile("job-run", "--json", "--no-sync", "--cmd", f"echo ran >> {ran}; sleep 1000") as program:

        def has_begun() -> bool:
            with suppress(FileNotFoundError):
                return any(path.name[:2] == "20" for path in (desk.there() / ".jobs").iterdir())
            return False

        until(lambda: has_begun() or program.poll() is not None, "the start has begun")
        # From now on, no answer leaves the server.
        sessions = desk.servers["first"].session_pids()
        signal_all(sessions, signal.SIGSTOP)
        until(ran.exists, "the job runs")
        signal_all(sessions, signal.SIGKILL)
        said, _ = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, said
    (job,) = desk.jobs()
    assert job["state"] == "running"
    desk.does("job-kill", "1", "--grace", "0")
    assert ran.read_text() == "ran\n"


@pytest.mark.row(36, 182)
@pytest.mark.parametrize("kept", [0, "10m"], ids=["own login", "kept login"])
def test_a_command_whose_connection_breaks_is_an_error_and_is_not_run_again(
    desk: Desk, kept: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.configure(keep_connections=kept)
    with folder_of_sockets() as environment:
        monkeypatch.setenv("XDG_RUNTIME_DIR", environment["XDG_RUNTIME_DIR"])
        desk.does("run", "--cmd", "true")
        if kept:
            until(lambda: "no login is kept" not in desk.tries("connections").stderr, "the login is kept")
        check_that_a_break_is_an_error(desk)
        desk.does("disconnect")


def check_that_a_break_is_an_error(desk: Desk) -> None:
    with desk.runs_meanwhile("run", "--cmd", "echo run >> runs; echo begun; sleep 1000") as running:
        assert running.stdout is not None
        while "begun" not in running.stdout.readline():
            assert running.poll() is None, "it ends before the connection breaks"
        desk.servers["first"].drop_connections()
        said, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 4, said
    assert "the connection was lost" in said
    assert (desk.there() / "runs").read_text() == "run\n"


def kill_what_answers(desk: Desk) -> int:
    """Kill what answers requests on the server, but not their connections; return how many there were."""
    sessions = {*desk.servers["first"].session_pids()}
    answering = [pid for pid, parent in parents().items() if parent in sessions and pid not in sessions]
    signal_all(answering, signal.SIGKILL)
    return len(answering)


@pytest.mark.row(151)
def test_a_job_is_followed_to_its_end_though_what_answers_is_killed(desk: Desk) -> None:
    command = "echo one; until [ -e go ]; do sleep 0.1; done; echo two; exit 7"
    with desk.runs_meanwhile("job-run", "--follow", "--cmd", command) as program:
        assert program.stdout is not None
        lines = iter(program.stdout.readline, "")
        assert "one\n" in lines
        until(lambda: kill_what_answers(desk), "something answers")
        assert any("ended by SIGKILL; trying again" in line for line in lines)
        (desk.there() / "go").touch()
        said, _ = program.communicate(timeout=PATIENCE)
    assert program.returncode == 7, said
    assert (said.count("one\n"), said.count("two\n")) == (0, 1)
    assert desk.job(1)["state"] == "failed"


@pytest.mark.row(151)
def test_an_answer_that_does_not_come_says_nothing_about_the_jobs(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "sleep 1000")
    held = HeldRequest(desk, f"[ -e {desk.root}/hold ]")
    (desk.root / "hold").touch()
    with desk.runs_meanwhile("job-list") as program:
        held.wait()
        assert kill_what_answers(desk) == 1
        said, _ = program.communicate(timeout=PATIENCE)
    assert program.returncode == 1, said
    assert "first: the control program ended by SIGKILL" in said
    assert "last seen running" in said
    assert desk.job(1)["state"] == "running"
    desk.does("job-kill", "1", "--grace", "0")
