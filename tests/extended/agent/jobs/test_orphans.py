"""Strays are found by their mark and by who they are, and nothing else is ever touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.proc import processes
from tests.extended.agent.conftest import PATIENCE, PROJECT, PretendServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def leave(server: PretendServer) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A function that starts a process with a mark, which nothing looks after."""
    with ExitStack() as stack:

        def start(job_id: str, *, project: str = "", words: tuple[str, ...] = ("sleep", "600")) -> Any:
            marks = {"REMOTE_TOOL_JOB_ID": job_id, "REMOTE_TOOL_PROJECT": project or str(server.home / PROJECT)}
            process = stack.enter_context(
                subprocess.Popen(words, env={**os.environ, **marks}, stdout=subprocess.DEVNULL)
            )
            stack.callback(process.kill)
            return process

        yield start


def find(server: PretendServer) -> dict[int, dict[str, Any]]:
    return {each["pid"]: each for each in server.call("strays")["strays"]}


def end(server: PretendServer, strays: dict[int, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    jobs = [{"id": each["job"], "processes": [[pid, each["start_time"]]]} for pid, each in strays.items()]
    return server.call("end_strays", **{"jobs": jobs, "identity": processes.place(), **fields})


def kill_supervisor(server: PretendServer, job_id: str) -> None:
    os.kill(server.supervisor(job_id), signal.SIGKILL)
    wait_until(lambda: server.status(job_id)["state"] == "lost", "the loss")


def test_processes_left_by_a_lost_job_are_found_and_ended_with_its_record(server: PretendServer) -> None:
    (server.project / "two.sh").write_text("trap '' TERM; setsid sleep 600 & echo ready; wait; sleep 600\n")
    job_id = server.start("bash two.sh")
    server.wait_for_output(job_id, "ready")
    assert find(server) == {}
    kill_supervisor(server, job_id)
    found = find(server)
    assert set(found) == set(server.members(job_id))
    assert {each["state"] for each in found.values()} == {"lost"}
    assert any("bash two.sh" in each["command"] for each in found.values())
    assert all(each["memory"] > 0 and 0 <= each["age"] < 60 for each in found.values())
    # One of them is named, and the whole tree goes.
    pid = min(found)
    answer = end(server, {pid: found[pid]}, grace=0.3)
    assert answer["jobs"] == [{"id": job_id, "left": []}]
    assert server.members(job_id) == []
    assert find(server) == {}
    assert "had to be ended" in server.record(job_id, "ended")["reason"]


def test_processes_of_an_ended_or_forgotten_job_are_orphans(
    server: PretendServer, leave: Callable[..., subprocess.Popen[bytes]]
) -> None:
    ended = server.start("true")
    server.wait(ended)
    wait_until(lambda: not server.status(ended)["alive"], "its end")
    forgotten = server.start("true")
    server.wait(forgotten)
    shutil.rmtree(server.jobs / forgotten)
    first, second = leave(ended), leave(forgotten)
    wait_until(lambda: len(find(server)) == 2, "both")
    states = {pid: each["state"] for pid, each in find(server).items()}
    assert states == {first.pid: "succeeded", second.pid: "unknown"}
    end(server, find(server), signal="SIGKILL")
    assert first.wait(PATIENCE) == second.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.parametrize("entry", [None, {"launch": ["env"]}], ids=["plain", "behind a launch command"])
def test_processes_left_by_an_interrupted_run_are_orphans(server: PretendServer, entry: dict[str, Any] | None) -> None:
    """Its control program was killed with SIGKILL, so it could end nothing."""
    command = "echo $REMOTE_TOOL_JOB_ID > id; exec sleep 600"
    with server.open("run", command=command, environment={}, entry=entry) as call:
        wait_until(lambda: (server.project / "id").exists() and (server.project / "id").read_text(), "the run")
        assert find(server) == {}
        call.process.kill()
        call.process.wait()
    wait_until(lambda: find(server), "the stray")
    end(server, find(server))
    assert find(server) == {}


def test_processes_of_others_are_not_orphans(
    server: PretendServer, leave: Callable[..., subprocess.Popen[bytes]]
) -> None:
    running = server.start("sleep 600")
    other_project = leave("20261121-053000-" + "0" * 32, project=f"{server.home}/other")
    without_mark = leave("")
    assert find(server) == {}
    server.stop(running, signal="SIGKILL")
    assert other_project.poll() is None
    assert without_mark.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_users_process_does_not_count_even_for_root(
    server: PretendServer, leave: Callable[..., subprocess.Popen[bytes]]
) -> None:
    words = ("setpriv", "--reuid", "65534", "--clear-groups", "sleep", "600")
    process = leave("20261121-053000-" + "1" * 32, words=words)
    wait_until(lambda: Path(f"/proc/{process.pid}").stat().st_uid == 65534, "the other user")
    assert find(server) == {}


def test_a_process_that_was_not_listed_is_not_ended(
    server: PretendServer, leave: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Its pid alone says nothing: the one that was listed may have gone, and another one have its pid."""
    process = leave("20261121-053000-" + "2" * 32)
    wait_until(lambda: find(server), "the stray")
    found = find(server)
    older = {process.pid: {**found[process.pid], "start_time": found[process.pid]["start_time"] - 1}}
    assert end(server, older)["jobs"] == []
    answer = end(server, found, identity={**processes.place(), "boot_id": "another"})
    assert "has restarted" in answer["error"]
    assert process.poll() is None


def test_gpu_memory_is_reported_if_nvidia_smi_reports_it(
    server: PretendServer, leave: Callable[..., subprocess.Popen[bytes]], tmp_path: Any
) -> None:
    process = leave("20261121-053000-" + "3" * 32)
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{process.pid}, 3000'\necho '{process.pid}, 72'\necho '1, [N/A]'\n")
    program.chmod(0o755)
    with server.open("strays", login={"PATH": f"{program.parent}:{os.environ['PATH']}"}) as call:
        (frame,) = call.rest()
    assert [each["gpu_memory"] for each in frame.header["strays"]] == [3072 * 1024 * 1024]
