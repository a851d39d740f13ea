"""The Python API in a callback, in a forked process, and where somebody reads slowly or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobState, Workspace
from tests.extended.workflows.jobs.test_jobs import begin, by_id, until
from tests.figures import record_figure
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.workflows.jobs.follow import Chunk
    from tests.conftest import MakeServer


def run_script(script: str, *arguments: object, cwd: Path, seconds: float = 300.0) -> str:
    """Run a program of a user in a project; return what it printed."""
    words = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    ended = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.row(152)
def test_a_call_from_a_callback_is_an_error_and_not_a_wait_without_end(workspace: Workspace) -> None:
    job = begin(workspace, "first", "echo on; exec sleep 1000")
    with pytest.raises(RuntimeError, match=r"A callback, such as on_chunk, .* Call it in a thread of its own"):
        workspace.follow_jobs(by_id(job.id), lambda _chunk: job.kill())
    with pytest.raises(RuntimeError, match=r"A callback, such as on_chunk"):
        workspace.follow_jobs(by_id(job.id), lambda _chunk: next(job.tail()))
    assert job.state is JobState.RUNNING
    # Other tests on this server list what runs.
    job.kill()


@pytest.mark.row(152)
def test_a_callback_may_call_in_a_thread_of_its_own(workspace: Workspace) -> None:
    job = begin(workspace, "first", "echo on; exec sleep 1000")

    killers: list[threading.Thread] = []

    def kill(_chunk: Chunk) -> None:
        killers.append(threading.Thread(target=job.kill))
        killers[-1].start()

    try:
        assert workspace.follow_jobs(by_id(job.id), kill).jobs[0].state is JobState.KILLED
    finally:
        for killer in killers:
            killer.join()


FORKING = """
import os, sys, threading
from remote_tool import JobSelection, JobState, Workspace
from remote_tool.workspace import Hooks

go = sys.argv[1]
told, shown, answers = [], [], []
workspace = Workspace.find(hooks=Hooks(report=told.append))
job = workspace.start("first", f"echo one; until test -e {go}; do sleep 0.01; done; echo two", sync=False)
lines = job.tail()
assert next(lines) == "one"
begun = threading.Event()

def show(chunk):
    shown.append(chunk.data)
    begun.set()

follow = lambda: answers.append(workspace.follow_jobs(JobSelection(jobs=(job.id,), stopped=True), show))
follower = threading.Thread(target=follow)
follower.start()
begun.wait()
for leave in (sys.exit, os._exit):
    child = os.fork()
    if child == 0:
        assert job.state is JobState.RUNNING
        own = workspace.start("first", "echo child", sync=False)
        assert list(own.tail()) == ["child"]
        try:
            next(lines)
        except RuntimeError:
            leave(0)
        leave(1)
    assert os.waitpid(child, 0)[1] == 0, leave
open(go, "w").close()
follower.join()
assert list(lines) == ["two"]
lost = [notice for notice in told if "trying again" in notice.text]
print(b"".join(shown), answers[0].exit_code, lost)
"""


@pytest.mark.row(152)
@pytest.mark.slow
def test_a_forked_process_begins_again_and_leaves_the_connections_of_its_parent_alone(
    workspace: Workspace, tmp_path: Path
) -> None:
    assert run_script(FORKING, tmp_path / "go", cwd=workspace.root) == "b'one\\ntwo\\n' 0 []\n"


LEFT_BEHIND = """
import os, sys, time
from remote_tool import Workspace

lines = Workspace.find().start("first", "echo on; exec sleep 1000", sync=False).tail()
assert next(lines) == "on"
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(1000)
"""


@pytest.mark.row(152)
@pytest.mark.slow
def test_a_connection_ends_with_its_program_although_a_forked_process_lives_on(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server()
    root = make_project(tmp_path / "project", [server])
    workspace = Workspace.find(root)
    workspace.prepare()
    words = [sys.executable, "-c", LEFT_BEHIND]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        try:
            assert server.session_pids()
            program.kill()
            until(lambda: not server.session_pids())
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)
    workspace.stop_jobs(by_id(workspace.list_jobs().jobs[0].id))


POOL = """
import multiprocessing
from remote_tool import Workspace

workspace = Workspace.find()

def run(number):
    return workspace.run(f"exit {number}", check=False, servers=["first"]).values["first"].exit_code

if __name__ == "__main__":
    assert run(1) == 1
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(run, [2, 3, 4]), run(5))
"""


@pytest.mark.row(152)
@pytest.mark.slow
def test_a_pool_of_forked_processes_works(workspace: Workspace) -> None:
    assert run_script(POOL, cwd=workspace.root) == "[2, 3, 4] 5\n"


UNREAD = """
import gc, sys, time
from remote_tool import Workspace

def memory():
    gc.collect()
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) // 1000

workspace = Workspace.find()
copy = workspace.config.local.jobs
job = workspace.start("first", "seq 100000000 | head -c 400000000", sync=False)
before = memory()
lines = job.tail()
assert next(lines) == "1"
log = copy / job.id / "job.out"
size = -1
while size != log.stat().st_size:
    size = log.stat().st_size
    time.sleep(1)
assert size < 100_000_000, "it goes on without a reader"
print(memory() - before)
if sys.argv[1] == "closed":
    lines.close()
else:
    del lines
deadline = time.monotonic() + 100
while not open(sys.argv[2]).read() and time.monotonic() < deadline:
    time.sleep(0.05)
"""


@pytest.mark.row(128, 152)
@pytest.mark.slow
@pytest.mark.parametrize("left", ["closed", "dropped"])
def test_lines_that_nobody_reads_fill_no_memory_and_end_with_their_reader(
    make_server: MakeServer, tmp_path: Path, left: str
) -> None:
    server = make_server()
    root = make_project(tmp_path / "project", [server])
    Workspace.find(root).prepare()
    done = tmp_path / "done"
    done.touch()
    words = [sys.executable, "-W", "error", "-c", UNREAD, left, str(done)]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        megabytes = int(program.stdout.readline())
        try:
            until(lambda: not server.session_pids())
            assert program.poll() is None, "the connection ends before its program does"
        finally:
            done.write_text("done")
    assert program.returncode == 0
    record_figure("memory of a tail that nobody reads (MB)", megabytes)
    assert megabytes < 60


@pytest.mark.slow
def test_every_line_comes_to_a_slow_reader(workspace: Workspace) -> None:
    count = 1_000_000
    job = begin(workspace, "first", f"seq {count}")
    found = 0
    for line in job.tail():
        found += 1
        assert line == str(found)
        if found % 200_000 == 0:
            time.sleep(0.2)
    assert found == count
    assert job.job.state is JobState.SUCCEEDED


def test_ctrl_c_while_the_loop_is_made_says_nothing(tmp_path: Path) -> None:
    script = """if True:
        import asyncio, os, signal, time
        from remote_tool.workspace import background

        class Slow(background.Loop):
            def __init__(self):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
                super().__init__()

        background.Loop = Slow
        work = asyncio.sleep(0)
        try:
            background.run_in_background(work)
        except KeyboardInterrupt:
            work.close()
            print("interrupted")
    """
    assert run_script(script, cwd=tmp_path) == "interrupted\n"
