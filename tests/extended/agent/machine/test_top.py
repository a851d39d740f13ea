"""The stream of samples: what a machine does, and what changes about its jobs."""

from __future__ import annotations

import os
import pwd
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.leases import folders
from remote_tool.agent.leases.claim import Claim
from remote_tool.agent.leases.folders import BASE_VARIABLE
from remote_tool.agent.machine import gpu_use
from tests.extended.agent.conftest import PretendServer, wait_for_text, wait_until
from tests.figures import record_figure
from tests.processes import is_running
from tests.small_disks import silent_disk
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.extended.agent.conftest import Call

SAMPLES = 20


@contextmanager
def watching(server: PretendServer, folder: Path | None = None, **fields: Any) -> Iterator[Call]:
    """Open the stream, with the programs of a folder on PATH."""
    path = f"{folder}:{os.environ['PATH']}" if folder else os.environ["PATH"]
    with server.open("top", login={"PATH": path}, **{"interval": 0.5, **fields}) as call:
        yield call


def until(call: Call, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Return the first header that holds."""
    while True:
        frame = call.next()
        assert frame is not None
        assert "error" not in frame.header, frame.header
        if holds(frame.header):
            return dict(frame.header)


def asked(folder: Path) -> list[list[str]]:
    """Return the pid and the words of each call of the stand-in."""
    return [line.split() for line in (folder / "asked").read_text().splitlines()]


def test_a_sample_has_the_machine_and_the_stream_ends_with_its_client(server: PretendServer) -> None:
    with watching(server) as call:
        sample = until(call, lambda header: "machine" in header)
        again = until(call, lambda header: "machine" in header)
        assert call.close() == 0
    machine = sample["machine"]
    assert 0 <= machine["cpu"] <= 100
    assert machine["cores"] == os.cpu_count()
    assert 0 < machine["memory_available"] < machine["memory_total"]
    assert 0 < machine["disk_free"] <= machine["disk_total"]
    assert machine["load"] >= 0
    assert (sample["jobs"], "jobs" in again) == ({}, False)


@pytest.mark.parametrize("interval", [0.01, 1e9, True, "2", None])
def test_an_interval_out_of_bounds_is_refused(server: PretendServer, interval: Any) -> None:
    assert "interval cannot be" in server.call("top", interval=interval)["error"]


@pytest.mark.row(229)
def test_gpus_are_asked_in_a_loop_of_nvidia_smi_which_ends_with_the_stream(
    server: PretendServer, tmp_path: Path
) -> None:
    """Starting it for each sample would take more than one hundredth of a core."""
    folder = tmp_path / "bin"
    processes = f"GPU-1, {os.getpid()}, 39000\nGPU-1, 4194305, [N/A]\n"
    put_nvidia_smi(folder, gpu_line(0, load="[N/A]", used=0), gpu_line(1), processes=processes)
    with watching(server, folder) as call:
        gpus = until(call, lambda header: header.get("gpus") and header["gpus"][1]["processes"])["gpus"]
        for _ in range(4):
            assert len(until(call, lambda header: "gpus" in header)["gpus"]) == 2
        calls = asked(folder)
    assert [words[-2:] for words in calls if words[1].startswith("--query-gpu")] == [["-l", "1"]]
    assert (gpus[0]["load"], gpus[0]["processes"]) == (None, [])
    assert {name: gpus[1][name] for name in ("index", "load", "used", "memory", "temperature", "power")} == {
        "index": 1,
        "load": 97.0,
        "used": 40000.0,
        "memory": 81559.0,
        "temperature": 61.0,
        "power": 312.5,
    }
    mine, unknown = gpus[1]["processes"]
    assert (mine["pid"], mine["used"], bool(mine["user"])) == (os.getpid(), 39000.0, True)
    assert (unknown["used"], unknown["user"], unknown["job"]) == (None, "", "")
    pids = [int(words[0]) for words in calls]
    wait_until(lambda: not any(map(is_running, pids)), "the end of nvidia-smi")


def test_a_sample_has_who_has_reserved_each_gpu_without_another_question(
    server: PretendServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    put_nvidia_smi(folder, *(gpu_line(number, load=0, used=1) for number in range(3)))
    monkeypatch.setenv(BASE_VARIABLE, str(server.leases))
    with watching(server, folder) as call:
        assert [gpu.get("lease") for gpu in until(call, lambda header: header.get("gpus"))["gpus"]] == [None] * 3
        claim = Claim(folders.open_own(), "20261121-053000-abcd", "digits", ("GPU-0", "GPU-2"))
        gpus = until(call, lambda header: any(gpu.get("lease") for gpu in header["gpus"]))["gpus"]
        user = pwd.getpwuid(os.geteuid()).pw_name
        lease = {"user": user, "job": "20261121-053000-abcd", "name": "digits", "since": claim.lease.since}
        assert [gpu["lease"] for gpu in gpus] == [lease, None, lease]
        claim.let_die()
        until(call, lambda header: not any(gpu["lease"] for gpu in header["gpus"]))
        assert len([words for words in asked(folder) if words[1].startswith("--query-gpu")]) == 1


def test_the_loop_of_nvidia_smi_ends_when_the_agent_is_killed(server: PretendServer, tmp_path: Path) -> None:
    put_nvidia_smi(tmp_path / "bin", gpu_line(0))
    with watching(server, tmp_path / "bin") as call:
        until(call, lambda header: header.get("gpus"))
        call.process.send_signal(signal.SIGKILL)
        call.process.wait()
        pid = int(asked(tmp_path / "bin")[0][0])
        call.stdout.close()
        wait_until(lambda: not is_running(pid), "the end of nvidia-smi")


@pytest.mark.row(230)
def test_an_nvidia_smi_that_hangs_holds_up_no_sample(server: PretendServer, tmp_path: Path) -> None:
    put_nvidia_smi(tmp_path / "bin", otherwise="exec sleep 300")
    with watching(server, tmp_path / "bin") as call:
        for _ in range(3):
            assert until(call, lambda header: "gpus" in header)["gpus"] == []
        wait_for_text(tmp_path / "bin" / "asked")
        pid = int(asked(tmp_path / "bin")[0][0])
        assert is_running(pid)
        assert call.close() == 0
    wait_until(lambda: not is_running(pid), "the end of nvidia-smi")


def test_an_nvidia_smi_that_fails_is_quoted(server: PretendServer, tmp_path: Path) -> None:
    put_nvidia_smi(tmp_path / "bin", otherwise="echo 'Driver/library version mismatch' >&2; exit 18")
    with watching(server, tmp_path / "bin", once=True) as call:
        (frame,) = call.rest()
    assert (frame.header["gpus"], frame.header["gpu_problem"]) == ([], "nvidia-smi: Driver/library version mismatch")


def test_once_waits_for_the_gpus_and_their_processes(server: PretendServer, tmp_path: Path) -> None:
    put_nvidia_smi(tmp_path / "bin", gpu_line(0), processes="GPU-0, 1, 512\n", otherwise="sleep 1.2")
    with watching(server, tmp_path / "bin", once=True) as call:
        (frame,) = call.rest()
    (gpu,) = frame.header["gpus"]
    assert [each["used"] for each in gpu["processes"]] == [512.0]


def test_the_job_of_a_process_on_a_gpu_is_named(server: PretendServer, tmp_path: Path) -> None:
    job = server.start("exec sleep 600")
    pid = wait_until(lambda: server.record(job, "started")["command"]["pid"], "a command")
    put_nvidia_smi(tmp_path / "bin", gpu_line(0), processes=f"GPU-0, {pid}, 512\n")
    with watching(server, tmp_path / "bin", once=True) as call:
        (frame,) = call.rest()
    assert [each["job"] for each in frame.header["gpus"][0]["processes"]] == [job]


def test_jobs_are_told_when_they_change_and_their_output_when_it_has_grown(server: PretendServer) -> None:
    before = server.start("true")
    server.wait(before)
    with watching(server) as call:
        assert until(call, lambda header: "jobs" in header)["jobs"] == {}
        os.mkfifo(server.project / "go")
        job = server.start("echo loss 0.5; read line < go; echo loss 0.25; exec sleep 600")
        until(call, lambda header: header.get("jobs") == {job: "running"})
        first = until(call, lambda header: "tail" in header)
        assert (first["tail"], first["texts"]) == (job, ["loss 0.5\n"])
        (server.project / "go").write_text("\n")
        frames = [until(call, lambda _: True)]
        while "tail" not in frames[-1]:
            frames.append(until(call, lambda _: True))
        assert frames[-1]["texts"] == ["loss 0.5\nloss 0.25\n"]
        assert not any("jobs" in frame for frame in frames)
        server.stop(job)
        until(call, lambda header: header.get("jobs") == {})


def test_a_job_whose_supervisor_was_killed_is_gone(server: PretendServer) -> None:
    job = server.start("exec sleep 600")
    with watching(server) as call:
        until(call, lambda header: header.get("jobs") == {job: "running"})
        os.kill(server.supervisor(job), signal.SIGKILL)
        until(call, lambda header: header.get("jobs") == {job: "gone"})


def test_the_oldest_python_sends_samples(oldest: PretendServer, tmp_path: Path) -> None:
    put_nvidia_smi(tmp_path / "bin", gpu_line(0), processes="GPU-0, 1, 512\n")
    with watching(oldest, tmp_path / "bin", once=True) as call:
        (frame,) = call.rest()
    assert len(frame.header["gpus"]) == 1


@pytest.mark.row(251)
def test_a_disk_that_hangs_holds_up_no_sample_and_is_named(server: PretendServer) -> None:
    with watching(server) as call:
        assert "disk_problem" not in until(call, lambda header: "machine" in header)
        with silent_disk(server.project):
            for _ in range(3):
                sample = until(call, lambda header: "disk_problem" in header)
                assert sample["disk_problem"] == "the project's disk does not answer"
                assert (sample["machine"]["disk_total"], sample["machine"]["disk_free"]) == (None, None)
                assert sample["machine"]["memory_total"] > 0
        again = until(call, lambda header: "machine" in header and "disk_problem" not in header)
        assert again["machine"]["disk_free"] > 0
        with silent_disk(server.project):
            until(call, lambda header: "disk_problem" in header)
            assert call.close() == 0


@pytest.mark.row(252)
def test_ranks_that_are_alive_and_that_have_ended_are_shown(server: PretendServer) -> None:
    os.mkfifo(server.project / "go")
    rank = "sh -c 'sleep 600 & wait'"
    job = server.start(f"RANK=4 {rank} & RANK=5 {rank} & RANK=6 sh -c 'read line < go' & wait")
    with watching(server) as call:
        found = until(call, lambda header: header.get("ranks") and len(header["ranks"][0]["alive"]) == 3)["ranks"]
        assert found == [{"job": job, "alive": [4, 5, 6], "ended": [], "problem": ""}]
        (server.project / "go").write_text("\n")
        found = until(call, lambda header: header.get("ranks") and header["ranks"][0]["ended"])["ranks"]
        assert found == [{"job": job, "alive": [4, 5], "ended": [6], "problem": ""}]
        server.stop(job, grace=0.2)
        until(call, lambda header: header.get("ranks") == [])


@pytest.mark.row(252)
def test_ranks_that_ended_before_are_known_from_the_folders_of_torchrun(server: PretendServer) -> None:
    """Of the newest attempt; the error is the one that torch recorded."""
    job = server.start(
        'cd "$REMOTE_TOOL_PROJECT/.jobs/$REMOTE_TOOL_JOB_ID"\n'
        "for folder in 0/7 1/0 1/1 1/2; do\n"
        "  mkdir -p ranks/none_x/attempt_$folder; touch ranks/none_x/attempt_$folder/stderr.log\n"
        "done\n"
        'echo \'{"message": {"message": "ValueError: boom"}}\' > ranks/none_x/attempt_1/2/error.json\n'
        "RANK=5 LOCAL_RANK=1 exec sleep 600"
    )

    def ranks() -> list[dict[str, Any]]:
        with watching(server, once=True) as call:
            (frame,) = call.rest()
        return list(frame.header["ranks"])

    known = {"job": job, "alive": [5], "ended": [4, 6], "problem": "rank 6: ValueError: boom"}
    wait_until(lambda: ranks() == [known], "its ranks")


def test_gpus_without_nvidia_smi_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for nvidia, amd, problem in [(0, 0, ""), (2, 0, "GPU found, but no nvidia-smi"), (0, 8, "AMD GPUs are not shown")]:
        monkeypatch.setattr(gpu_use, "count_nvidia", lambda count=nvidia: count)
        monkeypatch.setattr(gpu_use, "count_gpus", lambda count=nvidia + amd: count)
        use = gpu_use.GpuUse(2.0)
        use.update(0.0)
        assert (use.problem, use.as_answer(), use.is_known) == (problem, [], True)


@pytest.mark.slow
@pytest.mark.row(231)
def test_a_sample_costs_less_than_a_hundredth_of_a_core(server: PretendServer, tmp_path: Path) -> None:
    """At the usual interval of 2 s; processor time, so that a busy machine does not matter."""
    put_nvidia_smi(tmp_path / "bin", *(gpu_line(index) for index in range(8)))
    for _ in range(8):
        server.start("while :; do echo loss 0.5; sleep 0.3; done")
    with watching(server, tmp_path / "bin") as call:
        until(call, lambda header: len(header.get("gpus", ())) == 8)
        before = _seconds(call.process.pid)
        for _ in range(SAMPLES):
            until(call, lambda header: "machine" in header)
        per_sample = (_seconds(call.process.pid) - before) / SAMPLES
    record_figure("a sample of top, 8 GPUs and 8 jobs: ms of a core", round(per_sample * 1000, 2))
    assert per_sample < 0.02


def _seconds(pid: int) -> float:
    """Return the processor time of a process with all its threads."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
