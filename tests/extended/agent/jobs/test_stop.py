from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.proc import processes
from tests.extended.agent.conftest import PretendServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

# As torchrun does it: workers in sessions of their own, each with a data loader, one orphaned by a double fork.
WORKERS = """
import os, signal, sys, time
deaf = len(sys.argv) > 1
def worker():
    os.setsid()
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        if os.fork() == 0:
            os.environ.clear()
            os.execve('/bin/sh', ['sh', '-c', 'sleep 600'], {})
        os._exit(0)
    print('ready', flush=True)
    while True: time.sleep(60)
for _ in range(2):
    if os.fork() == 0: worker()
while True: time.sleep(60)
"""


def start_workers(server: PretendServer, *, deaf: bool = False, **fields: Any) -> str:
    """Start such a job and wait until all its processes run, the orphans too."""
    (server.project / "workers.py").write_text(WORKERS)
    job_id = server.start(f"exec python -S workers.py {'deaf' if deaf else ''}", **fields)
    wait_until(lambda: server.output(job_id).count("ready") == 2 and count_sleeping(server, job_id) == 2, "the workers")
    return job_id


def count_sleeping(server: PretendServer, job_id: str) -> int:
    """Count the members that have become ``sleep``."""
    names = []
    for pid in server.members(job_id):
        with suppress(OSError):
            names.append(Path(f"/proc/{pid}/comm").read_text())
    return names.count("sleep\n")


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with the job."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.row(1, 17)
def test_a_stop_ends_every_process_before_it_says_killed(server: PretendServer) -> None:
    job_id = start_workers(server)
    answer = server.stop(job_id)
    assert (answer["state"], answer["left"], answer["already"]) == ("killed", [], False)
    assert server.members(job_id) == []
    assert answer["ended"]["killed"]
    assert answer["ended"]["signal"] == "SIGTERM"
    assert answer["ended"]["reason"] == "stopped with SIGTERM"


@pytest.mark.row(1, 2)
@pytest.mark.slow
def test_workers_that_ignore_sigterm_get_the_grace_and_then_sigkill(server: PretendServer) -> None:
    """Never only the process group."""
    job_id = start_workers(server, deaf=True, grace=60.0)
    begin = time.monotonic()
    answer = server.stop(job_id, grace=1.0)
    assert 1.0 <= time.monotonic() - begin < 30
    assert (answer["state"], answer["left"]) == ("killed", [])
    assert "SIGKILL ended the remaining processes" in answer["ended"]["reason"]
    assert server.members(job_id) == []


@pytest.mark.row(2)
def test_the_grace_of_the_start_counts_when_the_stop_names_none(server: PretendServer) -> None:
    job_id = server.start("trap '' TERM; echo deaf; while :; do sleep 0.05; done", grace=0.3)
    server.wait_for_output(job_id, "deaf")
    answer = server.stop(job_id)
    assert server.record(job_id, "stop")["grace"] == 0.3
    assert answer["state"] == "killed"


@pytest.mark.row(23)
@pytest.mark.slow
def test_a_checkpoint_handler_gets_the_whole_grace_although_its_shell_has_ended(server: PretendServer) -> None:
    program = (
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(1.5); open('checkpoint', 'w').write('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); print('ready', flush=True)\n"
        "while True: time.sleep(60)\n"
    )
    (server.project / "train.py").write_text(program)
    job_id = server.start("python -S train.py; true")
    server.wait_for_output(job_id, "ready")
    answer = server.stop(job_id, grace=10.0)
    assert answer["state"] == "killed"
    assert (server.project / "checkpoint").read_text() == "saved"
    assert "SIGKILL" not in answer["ended"]["reason"]


def test_a_stop_may_name_another_signal(server: PretendServer) -> None:
    job_id = server.start("trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.05; done")
    server.wait_for_output(job_id, "ready")
    answer = server.stop(job_id, signal="SIGINT")
    assert (answer["state"], answer["ended"]["exit_code"]) == ("killed", 7)
    assert "interrupted" in server.output(job_id)


def test_sigkill_is_sent_at_once(server: PretendServer) -> None:
    job_id = start_workers(server, deaf=True)
    begin = time.monotonic()
    answer = server.stop(job_id, signal="SIGKILL", grace=60.0)
    assert time.monotonic() - begin < 30
    assert (answer["state"], answer["ended"]["signal"]) == ("killed", "SIGKILL")


@pytest.mark.row(21)
def test_a_second_stop_makes_it_sigkill_and_both_get_the_answer(server: PretendServer) -> None:
    job_id = start_workers(server, deaf=True)
    with server.open("stop", ids=[job_id], grace=60.0) as first:
        wait_until((server.jobs / job_id / "stop.json").exists)
        second = server.stop(job_id, signal="SIGKILL")
        frame = first.next()
        assert frame is not None
        assert frame.header["jobs"][0]["ended"] == second["ended"]
    assert second["state"] == "killed"
    assert server.members(job_id) == []


@pytest.mark.row(21, 22)
def test_stopping_a_finished_job_changes_nothing(server: PretendServer) -> None:
    job_id = server.start("exit 0")
    server.wait(job_id)
    before = (server.jobs / job_id / "ended.json").read_bytes()
    for _ in range(2):
        answer = server.stop(job_id, signal="SIGKILL")
        assert (answer["state"], answer["already"]) == ("succeeded", True)
    assert (server.jobs / job_id / "ended.json").read_bytes() == before
    assert not (server.jobs / job_id / "stop.json").exists()


@pytest.mark.row(21)
def test_stopping_a_killed_job_again_is_done_already(server: PretendServer) -> None:
    job_id = server.start("exec sleep 60")
    assert not server.stop(job_id)["already"]
    assert server.stop(job_id)["already"]


@pytest.mark.row(21)
def test_a_stop_request_during_a_start_is_not_lost(server: PretendServer) -> None:
    """Whenever it comes, the job is killed in the end, and the command has run whole or not at all."""
    for delay in (0.0, 0.02, 0.03, 0.04, 0.05, 0.06):
        job = server.new_job("exec sleep 60")
        with server.open("start", jobs=[job]) as call:
            wait_until((server.jobs / job["id"]).exists)
            time.sleep(delay / 10)
            answer = server.stop(job["id"])
            assert answer["state"] == "killed", answer
            assert server.members(job["id"]) == []
            assert call.next() is not None


@pytest.mark.row(21)
def test_a_stop_request_before_the_command_keeps_it_from_running(server: PretendServer) -> None:
    # On a busy machine, it often comes after.
    for _ in range(30):
        job = server.new_job("touch ran; exec sleep 60")
        folder = server.jobs / job["id"]
        with server.open("start", jobs=[job]) as call:
            while not folder.exists():
                pass
            wish = {"schema": 1, "id": job["id"], "signal": "SIGTERM", "grace": 1.0, "requested_at": 1.0}
            (folder / "new").write_text(json.dumps(wish))
            (folder / "new").rename(folder / "stop.json")
            frame = call.next()
            assert frame is not None
        wait_until((folder / "started.json").exists, "the start")
        with suppress(ProcessLookupError):
            os.kill(server.supervisor(job["id"]), signal.SIGUSR1)
        ended = server.wait(job["id"])[job["id"]]
        assert ended["killed"]
        if "before its command started" in ended["reason"]:
            assert frame.header["jobs"][0]["ended"] == ended
            return
    pytest.fail("the wish never came first")


def test_a_signal_to_the_supervisor_is_a_stop(server: PretendServer) -> None:
    job_id = start_workers(server)
    os.kill(server.supervisor(job_id), signal.SIGTERM)
    ended = server.wait(job_id)[job_id]
    assert ended["killed"]
    assert ended["reason"] == "stopped by a signal to its supervisor"
    assert server.members(job_id) == []


@pytest.mark.row(23)
def test_a_job_that_was_suspended_hears_the_stop(server: PretendServer) -> None:
    """With its supervisor suspended too, as by a slip of the finger."""
    job_id = server.start("trap 'echo heard; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    server.wait_for_output(job_id, "ready")
    for pid in (server.record(job_id, "started")["pid"], server.supervisor(job_id)):
        os.kill(pid, signal.SIGSTOP)
    answer = server.stop(job_id, grace=20.0)
    assert (answer["state"], answer["ended"]["exit_code"]) == ("killed", 0)
    assert "heard" in server.output(job_id)


def test_a_stop_whose_sender_dies_is_carried_out(server: PretendServer) -> None:
    job_id = server.start("trap '' TERM; echo deaf; while :; do sleep 0.05; done")
    server.wait_for_output(job_id, "deaf")
    with server.open("stop", ids=[job_id], grace=0.5) as call:
        wait_until((server.jobs / job_id / "stop.json").exists)
        call.process.kill()
    # It has ended already if the sender came to the signal.
    with suppress(ProcessLookupError):
        os.kill(server.supervisor(job_id), signal.SIGUSR1)
    assert server.wait(job_id)[job_id]["killed"]


@pytest.mark.row(3, 16)
def test_a_job_without_a_supervisor_is_found_and_ended_by_its_marks(server: PretendServer) -> None:
    """Lost, never running, and still to be killed, also what has no environment and no parent."""
    job_id = start_workers(server)
    os.kill(server.supervisor(job_id), signal.SIGKILL)
    status = wait_until(lambda: (found := server.status(job_id))["state"] == "lost" and found, "the loss")
    # The command, two workers, their two orphans, and the sleeps of these.
    assert status["reason"] in {
        "the supervisor is gone; 5 processes remain",
        "the supervisor is gone; 7 processes remain",
    }
    assert status["alive"]
    assert set(status["processes"]) == set(server.members(job_id))
    answer = server.stop(job_id)
    assert (answer["state"], answer["left"]) == ("killed", [])
    assert "the supervisor was gone" in answer["ended"]["reason"]
    assert server.members(job_id) == []
    assert server.stop(job_id)["already"]


@pytest.mark.row(3)
@pytest.mark.slow
def test_a_supervisor_killed_at_any_time_leaves_no_lie_and_no_process(server: PretendServer) -> None:
    """Of every second job while it surely runs, of the others about when it ends."""
    jobs = [server.new_job("sleep 0.2 & sleep 0.2" if number % 2 else "sleep 60 & sleep 60") for number in range(12)]
    server.call("start", jobs=jobs)
    for number, job in enumerate(jobs):
        time.sleep(number * 0.004)
        supervisor = server.record(job["id"], "started")["supervisor"]
        if processes.find_alive(supervisor):
            with suppress(ProcessLookupError):
                os.kill(supervisor["pid"], signal.SIGKILL)
    for number, job in enumerate(jobs):
        state = wait_until(partial(_final_state, server, job["id"]), "an end")
        has_ended = number % 2 == 1 and (server.jobs / job["id"] / "ended.json").exists()
        assert state == ("succeeded" if has_ended else "lost")
        assert server.stop(job["id"])["left"] == []
        assert server.members(job["id"]) == []


def _final_state(server: PretendServer, job_id: str) -> str:
    state = str(server.status(job_id)["state"])
    return "" if state == "running" else state


@pytest.mark.row(4, 5)
@pytest.mark.parametrize("field", ["start_time", "boot_id", "pid_namespace"])
def test_a_stop_does_not_signal_another_process_with_the_same_pid(
    server: PretendServer, victim: subprocess.Popen[bytes], field: str
) -> None:
    """The pid of the record is now somebody else's, after a long time or a reboot."""
    job_id = server.start("exit 0")
    server.wait(job_id)
    folder = server.jobs / job_id
    (folder / "ended.json").unlink()
    started = server.record(job_id, "started")
    process = processes.read_process(victim.pid)
    assert process is not None
    for name in ("command", "supervisor"):
        started[name] = process.as_record()
        if field == "start_time":
            started[name]["start_time"] -= 1
        else:
            started["place"][field] = "another"
    (folder / "started.json").write_text(json.dumps(started))
    answer = server.stop(job_id, signal="SIGKILL", grace=0.0)
    assert answer["state"] == "lost"
    assert victim.poll() is None


def test_stopping_a_missing_job_is_an_error_of_that_job_only(server: PretendServer) -> None:
    job_id = server.start("exec sleep 60")
    answer = server.call("stop", ids=["20261121-none", "../..", job_id])
    assert [job.get("error") for job in answer["jobs"]] == [*["there is no such job on this server"] * 2, None]
    assert answer["jobs"][2]["state"] == "killed"


@pytest.mark.parametrize(
    ("field", "value"), [("signal", "SIGNOTHING"), ("grace", "soon"), ("grace", -1), ("ids", "all")]
)
def test_an_invalid_stop_request_is_refused(server: PretendServer, field: str, value: object) -> None:
    job_id = server.start("exec sleep 60")
    assert field in server.call("stop", **{"ids": [job_id], field: value})["error"]
    assert server.status(job_id)["state"] == "running"
