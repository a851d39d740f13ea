"""What a machine may deny: processes, a writable /tmp, and the death of a process."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import remote_tool
from remote_tool.agent.proc import processes

from .conftest import PretendServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PIDS = Path("/sys/fs/cgroup/pids")
PACKAGE = Path(remote_tool.__file__).parent


@pytest.fixture
def pids_group() -> Iterator[Path]:
    """A control group that counts processes."""
    if not os.access(PIDS / "cgroup.procs", os.W_OK) or not (PIDS / "tasks").exists():
        pytest.skip("no control group for processes can be made here")
    group = PIDS / f"remote-tool-test-{os.getpid()}"
    group.mkdir()
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "an empty group")
    group.rmdir()


@pytest.mark.row(32)
@pytest.mark.slow
def test_a_start_that_cannot_fork_says_so_and_leaves_nothing_half_made(server: PretendServer, pids_group: Path) -> None:
    """With room for one process more each time: the control program, the supervisor, the command."""
    wrapper = server.home / "python"
    wrapper.write_text(f'#!/bin/sh\necho $$ > {pids_group}/cgroup.procs\nexec {server.python} "$@"\n')
    wrapper.chmod(0o700)
    server.python = str(wrapper)
    said = []
    for limit in range(1, 8):
        (pids_group / "pids.max").write_text(f"{limit}\n")
        job = server.new_job("touch ran")
        answer = server.call("start", jobs=[job])["jobs"][0]
        folder = server.jobs / job["id"]
        if answer.get("error"):
            said.append("error")
            assert "errno 11" in answer["error"]
            assert not folder.exists()
        elif answer["ended"] and answer["ended"]["exit_code"] is None:
            said.append("failed")
            assert "the command could not be started: cannot fork" in answer["ended"]["reason"]
            assert answer["state"] == "failed"
        else:
            said.append("runs")
            server.wait(job["id"])
        # A process counts until it has been waited for, which the list of them does not show.
        wait_until(lambda: (pids_group / "pids.current").read_text() == "0\n", "the end of all of it")
        assert (server.project / "ran").exists() == ("runs" in said)
    assert said == sorted(said)
    assert set(said) >= {"error", "runs"}
    assert [path.name for path in server.jobs.iterdir() if path.name.startswith(".")] == [".folder-id"]


@pytest.mark.row(35)
def test_no_file_that_a_job_needs_is_in_tmp(installed: Path) -> None:
    """The server has an empty /tmp that cannot be written."""
    unshare = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro tmpfs /tmp && exec "$@"', "sh"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("making a mount namespace is not allowed here")
    if Path(sys.executable).is_relative_to("/tmp"):
        pytest.skip("the Python of these tests is in /tmp itself")
    with tempfile.TemporaryDirectory(prefix="remote-tool-test-", dir="/var/tmp") as name:
        folder = Path(name)
        shutil.copytree(installed, folder / "scripts")
        wrapper = folder / "python"
        words = " ".join(f"'{word}'" for word in unshare)
        server = PretendServer(folder / "home", folder / "scripts")
        wrapper.write_text(f'#!/bin/sh\nexec {words} {server.python} "$@"\n')
        wrapper.chmod(0o700)
        server.python = str(wrapper)
        try:
            job_id = server.start("ls -a /tmp; touch /tmp/x; echo up; exec sleep 60")
            server.wait_for_output(job_id, "up")
            assert server.output(job_id) == ".\n..\nup\n"
            assert "Read-only" in (server.jobs / job_id / "job.err").read_text()
            with server.open("follow", jobs=[{"id": job_id, "offsets": {}}], wait=False, logs=True) as call:
                assert any(b"up" in frame.body for frame in call.rest())
            assert server.status(job_id)["state"] == "running"
            assert server.stop(job_id)["state"] == "killed"
            with server.open("run", command="echo attached", environment={}) as call:
                assert b"attached\n" in call.stdout.read()
        finally:
            server.clean()


@pytest.mark.row(24)
def test_no_code_of_ours_runs_between_fork_and_exec_of_another_program() -> None:
    """It would be in a copy of a process whose other threads may hold any lock."""
    for path in PACKAGE.rglob("*.py"):
        words = {keyword.arg for keyword in ast.walk(ast.parse(path.read_bytes())) if isinstance(keyword, ast.keyword)}
        assert "preexec_fn" not in words, path


@pytest.mark.row(24)
def test_the_supervisor_forks_before_it_has_threads_and_dies_of_nobody_elses_end(server: PretendServer) -> None:
    job_id = server.start("exec sleep 60")
    started = server.record(job_id, "started")
    for process in (started["supervisor"], started["command"]):
        assert "\nThreads:\t1\n" in Path(f"/proc/{process['pid']}/status").read_text()
    # Neither is bound to the thread or the process that made it: PR_SET_PDEATHSIG would end them with the start.
    assert processes.find_alive(started["supervisor"])
    assert processes.find_alive(started["command"])


def hangs(pid: int) -> bool:
    """Return whether a process is stuck for longer than reading a file from a busy disk takes."""
    for _ in range(5):
        process = processes.read_process(pid)
        if process is None or not process.is_stuck:
            return False
        time.sleep(0.1)
    return True


@contextmanager
def frozen_disk(folder: Path) -> Iterator[Path]:
    """A file system on which whoever writes hangs, and no signal reaches it, until the context is left."""
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(8 * 1024 * 1024)
    commands = (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mounted)])
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip(f"{command[0]} is not possible here")
    try:
        frozen = subprocess.run(["fsfreeze", "--freeze", mounted], check=False, capture_output=True)
        if frozen.returncode != 0:
            pytest.skip("fsfreeze is not possible here")
        try:
            yield mounted
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", mounted], check=True)
    finally:
        subprocess.run(["umount", "--lazy", mounted], check=True)


@pytest.mark.row(18)
@pytest.mark.slow
def test_a_process_that_no_signal_reaches_is_named_in_bounded_time(server: PretendServer, tmp_path: Path) -> None:
    with frozen_disk(tmp_path) as disk:
        job_id = server.start(f"echo up; exec touch '{disk}/x'")
        pid = server.record(job_id, "started")["pid"]
        wait_until(lambda: hangs(pid), "the hanging")
        begin = time.monotonic()
        answer = server.stop(job_id, grace=0.2)
        assert time.monotonic() - begin < 30
        assert answer["left"] == [pid]
        assert answer["ended"]["unkillable"] == [pid]
        assert f"1 process could not be killed (uninterruptible sleep): {pid}" in answer["ended"]["reason"]
        status = server.status(job_id)
        assert (status["state"], status["alive"], status["processes"]) == ("killed", True, [pid])
    wait_until(lambda: server.status(job_id)["processes"] == [], "its end when the disk is back")
    assert server.stop(job_id, signal=signal.SIGTERM.name)["already"]
