"""Jobs that wait for GPUs and for other jobs, on a server of their own with a stand-in for nvidia-smi."""

from __future__ import annotations

import json
import os
import pwd
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.extended.agent.conftest import PretendServer, changed_copy, wait_until
from tests.processes import parents
from tests.small_disks import small_disk
from tests.stand_in_gpus import gpu_line, process_line, put_nvidia_smi, remove_in_use, set_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator


WAITS = "until [ -e go ]; do sleep 0.05; done; echo $CUDA_VISIBLE_DEVICES"


class GpuServer:
    """A server with GPUs, of which tests choose who uses them."""

    def __init__(self, server: PretendServer) -> None:
        self.server = server
        self.programs = server.home / "programs"

    def put_gpus(self, *lines: str, **how: str) -> None:
        put_nvidia_smi(self.programs, *lines, **how)

    def set_gpus(self, *lines: str, processes: str = "") -> None:
        set_gpus(self.programs, *lines, processes=processes)

    def start(self, command: str, count: int | None = 1, **fields: Any) -> tuple[str, str]:
        """Start a job that waits; return its id and the state in the answer."""
        job = self.server.new_job(command, gpu_count=count, **fields)
        login = {"PATH": f"{self.programs}:{os.environ['PATH']}"}
        with self.server.open("start", jobs=[job], login=login) as call:
            (frame,) = call.rest()
        (answer,) = frame.header["jobs"]
        assert "error" not in answer, answer
        return job["id"], str(answer.get("state"))

    def hold(self, command: str = WAITS, **fields: Any) -> str:
        """Start a job, and wait until it has its GPU: a slow machine answers before."""
        job, _ = self.start(command, **fields)
        wait_until((self.server.jobs / job / "started.json").exists, "the start")
        return job

    def state(self, job_id: str) -> str:
        return str(self.server.status(job_id)["state"])

    def wait_for_state(self, job_id: str, state: str) -> None:
        wait_until(lambda: self.state(job_id) == state, f"{state} of {job_id}")

    def leases(self) -> list[Path]:
        return list(self.server.leases.glob("*/*.lease"))

    def tickets(self) -> list[Path]:
        return list(self.server.leases.glob("*/*.ticket"))

    def queued_supervisor(self, job_id: str) -> int:
        """Return the pid of the supervisor of a job that waits."""
        return int(json.loads((self.server.jobs / job_id / "queued").read_text())["supervisor"]["pid"])

    def clean(self) -> None:
        """Stop the jobs that still wait: their commands are not there yet."""
        if self.server.ids:
            self.server.call("stop", ids=self.server.ids, signal="SIGKILL")


def children_of(pid: int) -> list[int]:
    return [child for child, parent in parents().items() if parent == pid]


def opened_by(pid: int) -> set[str]:
    """Return the paths that a process has open; none if it has ended."""
    found = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(entry.readlink()))
    return found


@pytest.fixture
def gpus(server: PretendServer) -> Iterator[GpuServer]:
    found = GpuServer(server)
    found.put_gpus(gpu_line(0, load=0, used=1))
    yield found
    found.clean()


@pytest.mark.row(259, 270)
def test_of_two_jobs_for_one_gpu_the_second_waits_for_the_end_of_the_first(gpus: GpuServer) -> None:
    first = gpus.hold()
    assert gpus.server.record(first, "started")["leased_gpus"] == ["GPU-0"]
    second, state = gpus.start("echo $CUDA_VISIBLE_DEVICES")
    assert state == "queued"
    status = gpus.server.status(second)
    assert status["state"] == "queued"
    assert "1st of 1 for 1 GPU; 1 is leased by" in status["reason"]
    (gpus.server.project / "go").touch()
    ended = gpus.server.wait(first, second)
    assert [ended[job]["exit_code"] for job in (first, second)] == [0, 0]
    assert gpus.server.output(first) == gpus.server.output(second) == "GPU-0\n"
    wait_until(lambda: not gpus.leases(), "the end of the leases")


def test_a_job_that_waits_is_killed_before_its_command_starts(gpus: GpuServer) -> None:
    gpus.hold()
    second, _ = gpus.start("touch ran")
    stopped = gpus.server.stop(second)
    assert stopped["state"] == "killed"
    assert stopped["ended"]["reason"] == "it was killed before its command started"
    assert not gpus.tickets()
    assert not (gpus.server.project / "ran").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_to_the_supervisor_ends_a_job_that_waits(gpus: GpuServer, number: int) -> None:
    gpus.hold()
    second, _ = gpus.start("true")
    os.kill(gpus.queued_supervisor(second), number)
    assert gpus.server.wait(second)[second]["killed"]


@pytest.mark.row(268)
def test_a_supervisor_that_is_killed_while_it_waits_is_lost_and_holds_nobody_up(gpus: GpuServer) -> None:
    first = gpus.hold()
    second, _ = gpus.start("true")
    third, _ = gpus.start("true")
    os.kill(gpus.queued_supervisor(second), signal.SIGKILL)
    gpus.wait_for_state(second, "lost")
    assert (
        gpus.server.status(second)["reason"] == "its supervisor was killed while it waited, and its command never ran"
    )
    (gpus.server.project / "go").touch()
    assert gpus.server.wait(first, third)[third]["exit_code"] == 0
    assert not gpus.tickets()


@pytest.mark.row(263)
def test_the_gpu_of_a_killed_supervisor_is_free_once_the_processes_of_its_job_are_gone(gpus: GpuServer) -> None:
    first = gpus.hold("sleep 600")
    second, _ = gpus.start("true", idle_after=3600)
    os.kill(gpus.server.supervisor(first), signal.SIGKILL)
    wait_until(lambda: "must be idle for 3600 s" in gpus.server.status(second)["reason"], "the doubt about the GPU")
    gpus.server.stop(first, signal="SIGKILL")
    assert gpus.server.wait(second)[second]["exit_code"] == 0


@pytest.mark.row(264)
def test_a_job_waits_until_nobody_uses_the_gpu_and_says_who_does(gpus: GpuServer) -> None:
    gpus.set_gpus(gpu_line(0, load=0, used=900), processes=process_line(0, os.getpid(), used=900))
    job, state = gpus.start("true", idle_after=0.5)
    assert state == "queued"
    user = pwd.getpwuid(os.getuid()).pw_name
    reason = f"1st of 1 for 1 GPU; GPU 0 is used by {user} (pid {os.getpid()})"
    wait_until(lambda: gpus.server.status(job)["reason"] == reason, "the reason")
    gpus.set_gpus(gpu_line(0, load=0, used=900))
    wait_until(lambda: "a process that is not visible here (900 MiB)" in gpus.server.status(job)["reason"], "memory")
    gpus.set_gpus(gpu_line(0, load=0, used=1))
    assert gpus.server.wait(job)[job]["exit_code"] == 0


@pytest.mark.row(265)
def test_without_an_answer_of_nvidia_smi_a_job_waits_and_says_so(gpus: GpuServer) -> None:
    gpus.put_gpus("NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver")
    job, state = gpus.start("true")
    assert state == "queued"
    wait_until(lambda: "nvidia-smi: NVIDIA-SMI has failed" in gpus.server.status(job)["reason"], "the reason")
    assert gpus.server.stop(job)["state"] == "killed"


@pytest.mark.row(264, 265)
@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ("echo 'Unable to determine the device handle'; exit 1", "nvidia-smi: Unable to determine the device handle"),
        ("echo 'Insufficient Permissions'; exit 0", "nvidia-smi: Insufficient Permissions"),
        ("exit 9", "nvidia-smi: it ended with exit code 9"),
        ("kill -SEGV $$", "nvidia-smi: it ended with signal 11"),
    ],
)
def test_if_nvidia_smi_cannot_list_processes_a_job_waits_and_says_so(
    gpus: GpuServer, answers: str, reason: str
) -> None:
    gpus.put_gpus(gpu_line(0, load=0, used=1), otherwise=f'case "$1" in --query-compute-apps=*) {answers} ;; esac')
    job, state = gpus.start("true", idle_after=1)
    assert state == "queued"
    wait_until(lambda: reason in gpus.server.status(job)["reason"], "the reason")
    gpus.put_gpus(gpu_line(0, load=0, used=1))
    assert gpus.server.wait(job)[job]["exit_code"] == 0


@pytest.mark.row(264, 265)
def test_a_gpu_that_tells_neither_load_nor_memory_is_not_taken(gpus: GpuServer) -> None:
    gpus.put_gpus(gpu_line(0, load="[N/A]", used="[N/A]"))
    job, state = gpus.start("true", idle_after=0)
    assert state == "queued"
    reason = "1st of 1 for 1 GPU; GPU 0 may be in use: nvidia-smi tells neither its load nor its memory"
    wait_until(lambda: gpus.server.status(job)["reason"] == reason, "the reason")
    assert gpus.server.call("free_gpus")["free"] == 0
    gpus.set_gpus(gpu_line(0, load=0, used=1))
    assert gpus.server.wait(job)[job]["exit_code"] == 0


@pytest.mark.row(264, 265)
@pytest.mark.parametrize("numbers", [{"load": "[N/A]", "used": 1}, {"load": 0, "used": "[N/A]"}])
def test_a_gpu_that_tells_only_one_of_load_and_memory_must_be_idle_for_long_enough(
    gpus: GpuServer, numbers: dict[str, Any]
) -> None:
    gpus.put_gpus(gpu_line(0, **numbers))
    job, state = gpus.start(WAITS, idle_after=3600)
    assert state == "queued"
    reason = "GPU 0 must be idle for 3600 s: nvidia-smi does not tell its "
    wait_until(lambda: reason in gpus.server.status(job)["reason"], "the reason")
    gpus.server.stop(job)
    # Whoever waits for the end of a lease knows who had it.
    holder = gpus.hold(idle_after=0.2)
    waiting, _ = gpus.start("true", idle_after=3600)
    wait_until(lambda: "1 is leased by" in gpus.server.status(waiting)["reason"], "the wait for the lease")
    (gpus.server.project / "go").touch()
    assert gpus.server.wait(holder, waiting)[waiting]["exit_code"] == 0


@pytest.mark.row(265)
def test_a_job_that_waits_for_an_nvidia_smi_that_hangs_is_killed_at_once(gpus: GpuServer) -> None:
    gpus.put_gpus(otherwise="exec sleep 600")
    job, state = gpus.start("true")
    assert state == "queued"
    assert gpus.server.stop(job)["state"] == "killed"


@pytest.mark.row(265)
def test_a_job_that_wants_more_gpus_than_the_server_has_fails_at_once(gpus: GpuServer) -> None:
    gpus.hold()
    job, _ = gpus.start("true", 2)
    ended = gpus.server.wait(job)[job]
    assert ended["reason"] == "the command could not be started: it needs 2 GPUs, and this server has 1"


@pytest.mark.row(259)
def test_a_new_job_takes_no_gpu_whose_lease_was_removed(tmp_path: Path, installed: Path) -> None:
    times = {"CHECK_SECONDS = 10.0": "CHECK_SECONDS = 1.0", "_RETURN_SECONDS = 20.0": "_RETURN_SECONDS = 5.0"}
    changes = {"agent/leases/waiter.py": times, "agent/supervisor/events.py": {"_SECONDS = 10.0": "_SECONDS = 0.5"}}
    server = PretendServer(tmp_path / "home", changed_copy(installed, tmp_path / "changed", changes))
    gpus = GpuServer(server)
    gpus.put_gpus(gpu_line(0, load=0, used=1))
    first = gpus.hold()
    remove_in_use(server.leases / f"remote-tool-{os.geteuid()}")
    second, state = gpus.start("true")
    assert state == "queued"
    wait_until(lambda: "1 is leased by" in server.status(second)["reason"], "the lease")
    (server.project / "go").touch()
    assert server.wait(first, second)[second]["exit_code"] == 0
    gpus.clean()
    server.clean()


@pytest.mark.parametrize("options", ["size=4k,nr_inodes=1", "ro"])
def test_a_job_waits_and_says_so_while_the_disk_of_the_queue_is_full_or_read_only(
    gpus: GpuServer, options: str
) -> None:
    with small_disk(gpus.server.leases, options):
        job, state = gpus.start("true")
        assert state == "queued"
        errors = ("No space left on device (errno 28)", "Read-only file system (errno 30)")
        reasons = [f"the queue in {gpus.server.leases} cannot be used now: {error}" for error in errors]
        wait_until(lambda: gpus.server.status(job)["reason"] in reasons, "the reason")
    assert gpus.server.wait(job)[job]["exit_code"] == 0


def test_a_job_that_may_not_wait_fails_when_its_gpus_are_not_free(gpus: GpuServer) -> None:
    gpus.hold()
    job, _ = gpus.start("true", waits=False)
    reason = gpus.server.wait(job)[job]["reason"]
    assert reason.startswith("the command could not be started: it needs 1 free GPU now: 1 is leased by ")
    assert not gpus.tickets()


@pytest.mark.row(265)
def test_without_nvidia_smi_a_job_fails_at_once(server: PretendServer) -> None:
    job = server.new_job("true", gpu_count=1)
    with server.open("start", jobs=[job], login={"PATH": str(server.home / "nothing")}) as call:
        call.rest()
    assert "this server has no nvidia-smi" in server.wait(job["id"])[job["id"]]["reason"]


@pytest.mark.row(271)
def test_the_lease_is_given_up_when_the_job_has_ended_though_its_terminal_has_a_process_of_ours(
    gpus: GpuServer,
) -> None:
    job = gpus.hold("exec sleep 600", terminal="command")
    supervisor = gpus.server.supervisor(job)
    pipe = next(gpus.server.leases.glob("*/*.held"))
    holders = [pid for pid in children_of(supervisor) if str(pipe) in opened_by(pid)]
    assert str(pipe) in opened_by(supervisor)
    assert holders == []
    gpus.server.stop(job, signal="SIGKILL")


@pytest.mark.row(269)
@pytest.mark.parametrize(
    ("first", "after_any", "expected"), [("true", False, 0), ("false", False, None), ("false", True, 0)]
)
def test_a_job_begins_after_another_one_if_that_succeeded(
    gpus: GpuServer, first: str, expected: int | None, *, after_any: bool
) -> None:
    before, _ = gpus.start(f"until [ -e go ]; do sleep 0.05; done; {first}", None)
    job, state = gpus.start("true", None, after=[before], after_any=after_any)
    assert state == "queued"
    status = gpus.server.status(job)
    assert (status["state"], status["reason"]) == ("queued", f"waits for the end of job {before}")
    (gpus.server.project / "go").touch()
    ended = gpus.server.wait(before, job)[job]
    assert ended["exit_code"] == expected
    if expected is None:
        assert ended["reason"] == (
            f"the command could not be started: it begins only if job {before} succeeds, which failed"
        )


@pytest.mark.row(269)
def test_a_job_waits_for_one_that_waits_itself_and_then_for_its_gpu(gpus: GpuServer) -> None:
    first = gpus.hold()
    second, _ = gpus.start("true")
    third, _ = gpus.start("true", after=[second])
    assert gpus.state(third) == "queued"
    (gpus.server.project / "go").touch()
    ended = gpus.server.wait(first, second, third)
    assert [ended[job]["exit_code"] for job in (first, second, third)] == [0, 0, 0]
    assert ended[second]["ended_at"] <= gpus.server.record(third, "started")["started_at"]


@pytest.mark.row(269)
def test_a_job_after_one_that_does_not_exist_fails(gpus: GpuServer) -> None:
    job, _ = gpus.start("true", None, after=["20261121-053000-nothing"])
    assert "which does not exist on this server" in gpus.server.wait(job)[job]["reason"]


@pytest.mark.row(270)
def test_behind_a_launch_command_only_the_leased_gpu_is_visible(gpus: GpuServer) -> None:
    gpus.put_gpus(gpu_line(0, load=0, used=1), gpu_line(1, load=0, used=1))
    entry = {"launch": ["env", "CUDA_VISIBLE_DEVICES=0,1"], "activate": True}
    job, _ = gpus.start("echo $CUDA_VISIBLE_DEVICES", entry=entry, gpus=["1"])
    assert gpus.server.wait(job)[job]["exit_code"] == 0, gpus.server.output(job, "err")
    assert gpus.server.output(job) == "GPU-1\n"


@pytest.mark.row(259)
def test_jobs_wait_for_gpus_and_each_other_with_the_oldest_python(oldest: PretendServer) -> None:
    gpus = GpuServer(oldest)
    gpus.put_gpus(gpu_line(0, load=0, used=1))
    try:
        first = gpus.hold()
        second, _ = gpus.start("echo $CUDA_VISIBLE_DEVICES")
        third, _ = gpus.start("true", None, after=[second])
        gpus.wait_for_state(third, "queued")
        (oldest.project / "go").touch()
        ended = oldest.wait(first, second, third)
        assert [ended[job]["exit_code"] for job in (first, second, third)] == [0, 0, 0]
        assert oldest.output(second) == "GPU-0\n"
    finally:
        gpus.clean()
