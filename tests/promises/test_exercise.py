"""check --exercise: rates under load, who is slow, and nothing that stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import environments, open_files, users_of
from tests.promises.conftest import Desk, until
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Iterator

EXERCISE = ("check", "--exercise")
RANK = b"REMOTE_TOOL_EXERCISE_RANK="


def ranks(desk: Desk, server: str) -> list[int]:
    """Return the processes of a server's ranks."""
    home = f"HOME={desk.servers[server].home}\0".encode()
    return [pid for pid, environment in environments() if RANK in environment and home in environment]


def has_sockets(pid: int) -> bool:
    with suppress(OSError):
        return any(name.startswith("socket:") for name in open_files(pid).values())
    return False


def checks(document: dict[str, Any], server: str) -> dict[str, dict[str, str]]:
    """Return the checks of a server by name."""
    (found,) = [each for each in document["servers"] if each["name"] == server]
    return {check["name"]: check for check in found["checks"]}


@pytest.mark.slow
def test_servers_without_gpus_are_compared_by_their_cpus_and_the_network_between_them_is_measured(
    desk_of_two: Desk,
) -> None:
    # On a busy machine, one of the two may have too little of the processor.
    empty = desk_of_two.servers["first"].home / "empty"
    desk_of_two.configure(on_empty={"run": f"touch {empty}", "after": "1s"})
    checked = desk_of_two.tries(*EXERCISE, "--json")
    document = json.loads(checked.stdout)
    found = {server: checks(document, server) for server in ("first", "second")}
    for own in found.values():
        assert " GFLOP/s" in own["speed"]["value"]
        assert own["all-reduce"]["value"].endswith(" bus bandwidth, 2 ranks")
    measured = document["exercise"]
    assert [(each["server"], each["device"]) for each in measured["devices"]] == [("first", None), ("second", None)]
    assert measured["ranks"] == 2
    assert measured["all_reduce_bits_per_second"] > 1e7
    assert [(job["name"], job["state"], job["server"]) for job in desk_of_two.jobs()] == [
        ("exercise", "succeeded", "first"),
        ("exercise", "succeeded", "second"),
    ]
    assert "remote-tool check --exercise" in desk_of_two.does("job-show", "2")
    again = desk_of_two.tries("job-rerun", "2")
    assert (again.returncode, "hint: remote-tool check --exercise" in again.stderr) == (2, True), again.stderr
    until(lambda: not users_of(str(desk_of_two.there() / ".jobs")), "the supervisors have ended")
    assert not empty.exists(), "a check stops no rented machine"


@pytest.mark.row(319)
@pytest.mark.slow
def test_a_slow_server_is_named_and_the_command_fails(desk_of_two: Desk) -> None:
    is_over = threading.Event()

    def slow_down() -> None:
        # What is stopped most of the time has little of the processor. Before it connects, it loads torch.
        goes_on = time.monotonic()
        while not is_over.wait(0.03):
            slowed = [pid for pid in ranks(desk_of_two, "second") if has_sockets(pid)]
            # To find them takes long on a busy machine, and they run meanwhile.
            for number, seconds in ((signal.SIGSTOP, 6 * (time.monotonic() - goes_on)), (signal.SIGCONT, 0.0)):
                for pid in slowed:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                time.sleep(seconds)
            goes_on = time.monotonic()

    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        checked = desk_of_two.tries("check", "--exercise", "--seconds", "60", "--json")
    finally:
        is_over.set()
        thread.join()
    assert checked.returncode == 1, checked.stderr
    document = json.loads(checked.stdout)
    assert checks(document, "first")["speed"]["status"] == "ok"
    slow = checks(document, "second")["speed"]
    assert slow["status"] == "fail"
    assert ", the median of " in slow["value"]


@pytest.fixture
def gpus(desk_of_two: Desk) -> Iterator[Desk]:
    """Give the first server two GPUs that torch does not see."""
    programs = desk_of_two.servers["first"].programs
    lines = "0, 44, 0x0000000000000000, 0, 0\n1, 91, 0x0000000000000040, 2, 7\n"
    otherwise = f"""case "$1" in *throttle*) printf '{lines.replace(chr(10), chr(92) + "n")}'; exit ;; esac"""
    program = put_nvidia_smi(programs, gpu_line(0, load=0, used=0), gpu_line(1, load=0, used=0), otherwise=otherwise)
    yield desk_of_two
    program.unlink()


@pytest.mark.row(320)
@pytest.mark.slow
def test_gpus_that_torch_does_not_see_fail_and_their_temperatures_and_errors_are_shown(gpus: Desk) -> None:
    checked = gpus.tries(*EXERCISE, "--server", "first", "--json")
    assert checked.returncode == 1, checked.stderr
    own = checks(json.loads(checked.stdout), "first")
    assert "sees 0 GPUs" in own["exercise"]["value"]
    assert own["exercise"]["hint"] == "remote-tool job-tail 1"
    assert own["gpu health"]["status"] == "fail"
    health = "GPU 1: 2 uncorrected ECC errors; GPU 1 was slowed down by heat at 91 °C; "
    assert own["gpu health"]["value"].startswith(health)
    assert own["gpu health"]["value"].endswith("up to 91 °C")
    (server,) = json.loads(gpus.does("gpus", "--server", "first", "--json"))["servers"]
    assert [gpu["lease"] for gpu in server["gpus"]] == [None, None]


@pytest.mark.slow
def test_gpus_that_a_job_has_are_waited_for_and_then_named(gpus: Desk) -> None:
    gpus.does("job-run", "--server", "first", "--gpus", "1", "--cmd", "exec sleep 613")
    gpus.waits_for(1, "running")
    checked = gpus.tries("check", "--exercise", "--seconds", "20", "--json")
    gpus.does("job-kill", "1", "--signal", "SIGKILL")
    assert "the exercise waits for GPUs: first: 2 wanted; 1 of 2 free, 1 reserved by jobs" in checked.stderr
    assert checked.returncode == 1
    document = json.loads(checked.stdout)
    taken = checks(document, "first")["exercise"]
    assert taken["value"].startswith("its GPUs are in use: 2 wanted; 1 of 2 free, 1 reserved by jobs")
    assert "speed" in checks(document, "second")


def test_an_environment_without_torch_fails_with_the_next_command(desk_of_two: Desk) -> None:
    plain = desk_of_two.servers["first"].home / "plain"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", plain], check=True, timeout=120)
    desk_of_two.configure(environment={"existing": str(plain)})
    desk_of_two.does("prepare", "--server", "first")
    checked = desk_of_two.tries(*EXERCISE, "--server", "first", "--json")
    assert checked.returncode == 1
    own = checks(json.loads(checked.stdout), "first")
    assert own["exercise"]["value"] == "its environment has no torch"
    assert own["exercise"]["hint"].endswith("remote-tool update-packages --server first")


@pytest.mark.row(320)
@pytest.mark.slow
@pytest.mark.parametrize("when", ["is started", "runs"])
def test_ctrl_c_ends_the_exercise_on_all_servers(desk_of_two: Desk, when: str) -> None:
    checking = desk_of_two.runs_meanwhile("check", "--exercise")

    def has_begun() -> bool:
        if when == "is started":
            return any((desk_of_two.root / ".remote" / "jobs").glob("2*/"))
        return all(ranks(desk_of_two, server) for server in ("first", "second"))

    until(has_begun, f"the exercise {when}")
    checking.send_signal(signal.SIGINT)
    checking.communicate()
    assert checking.returncode == 130
    assert not ranks(desk_of_two, "first") + ranks(desk_of_two, "second")
    assert {job["state"] for job in desk_of_two.jobs()} <= {"killed", "failed"}


def test_a_time_in_which_nothing_can_be_measured_is_refused(desk_of_two: Desk) -> None:
    refused = desk_of_two.refuses("check", "--exercise", "--seconds", "1", status=2)
    assert "--seconds must be from 20 to 3600, found 1" in refused
    assert "--seconds is for --exercise" in desk_of_two.refuses("check", "--seconds", "30", status=2)
