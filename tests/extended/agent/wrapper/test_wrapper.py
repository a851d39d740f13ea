"""Jobs behind a launch command and in containers: started, followed, ended and known as those that are not."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.proc import processes
from remote_tool.agent.proc import subprocess as asking
from remote_tool.agent.wrapper.container import WrappedProcesses
from tests.containers import IMAGE, OPTIONS, Podman
from tests.extended.agent.conftest import PATIENCE, PretendServer, wait_until
from tests.extended.agent.jobs.test_run import members, read_to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

# A test calls podman ten times, which takes a second each, and on a busy machine ten.
ROOT = Path(__file__).parents[4]
UNSHARE = ["unshare", "--pid", "--mount", "--fork", "--mount-proc"]
DEAF = """
trap 'echo heard' TERM
(trap '' TERM; echo child; while :; do sleep 1; done) &
echo ready
while :; do sleep 1; done
"""


class CommandWrapper:
    """What a request says of where its command begins."""

    def __init__(self, kind: str, entry: dict[str, Any]) -> None:
        self.kind = kind
        self.entry = entry


@pytest.fixture(params=["unshare", "container", "exec"])
def door(
    request: pytest.FixtureRequest, server: PretendServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommandWrapper]:
    """A namespace of each job's own, a container of each job's own, and a container that is there already."""
    if request.param == "unshare":
        skip_unless_unshare()
        yield CommandWrapper("unshare", {"launch": UNSHARE})
        return
    podman: Podman = request.getfixturevalue("podman")
    if podman.problem:
        pytest.skip(podman.problem)
    monkeypatch.setenv("PATH", f"{podman.bin}:{os.environ['PATH']}")
    if request.param == "container":
        yield CommandWrapper("container", {"container": [*OPTIONS, IMAGE]})
        # Who removes it after its end may take a moment.
        wait_until(lambda: podman.names() == [], "the end of all containers")
        return
    mount = f"type=bind,source={server.home},target={server.home}"
    ran = podman.run(
        "run", "--detach", "--name", "standing", "--network", "host", *OPTIONS, "--mount", mount, IMAGE, "sleep", "600"
    )
    assert ran.returncode == 0, ran.stderr
    yield CommandWrapper("exec", {"launch": ["podman", "exec", "-w", "{project}", "-i", "standing"]})
    podman.run("rm", "--force", "--time", "0", "standing")


def skip_unless_unshare() -> None:
    if subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("unshare is not permitted here")


@pytest.mark.slow
def test_the_exit_status_and_the_output_are_those_of_the_command(server: PretendServer, door: CommandWrapper) -> None:
    job_ids = [
        server.start("echo out; echo err >&2; pwd; cat; exit 3", entry=door.entry),
        server.start("sh -c 'kill -SEGV $$'", entry=door.entry),
    ]
    first, second = server.wait(*job_ids).values()
    assert (first["exit_code"], first["reason"]) == (3, "")
    assert server.output(job_ids[0]) == f"out\n{server.project}\n"
    assert (server.jobs / job_ids[0] / "job.err").read_text() == "err\n"
    assert second["exit_code"] == 128 + signal.SIGSEGV
    assert [server.members(job_id) for job_id in job_ids] == [[], []]


@pytest.mark.slow
def test_variables_arrive_inside_and_are_nowhere_else(server: PretendServer, door: CommandWrapper) -> None:
    # Its own: other tests, at the same time, have one too.
    owned = f"$(touch {server.home}/owned-{secrets.token_hex(8)})"
    secret = f'it\'s "a" secret\n{owned} `x`\\'
    command = 'printf "%s|" "$SECRET" "$RANK" "$REMOTE_TOOL_SERVER" "$PYTHONPATH" "$PET_NNODES"; sleep 600'
    job = server.new_job(command, environment={"SECRET": secret}, entry=door.entry)
    with server.open("start", login={"RANK": "3", "PET_NNODES": "2"}, jobs=[job]) as call:
        frame = call.next()
        assert frame is not None
        assert "error" not in frame.header["jobs"][0]
    server.wait_for_output(job["id"], "src||")
    said = server.output(job["id"]).split("|")
    hook = server.entry.parent / "remote_tool" / "agent" / "hook"
    assert said == [secret, "", "first", f"{hook}:{server.project}:{server.project}/src", "", ""]
    for file in ("cmdline", "environ"):
        owners = [each for each in Path("/proc").glob(f"[0-9]*/{file}") if owned.encode() in read(each)]
        assert len(owners) <= (file == "environ") * 3, owners
    written = [path for path in server.home.rglob("*") if path.is_file() and owned.encode() in path.read_bytes()]
    assert written == [server.jobs / job["id"] / "job.out"]
    assert server.stop(job["id"], signal="SIGKILL")["state"] == "killed"


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_a_stop_ends_a_tree_that_does_not_listen_and_its_last_words_arrive(
    server: PretendServer, door: CommandWrapper
) -> None:
    job_id = server.start(DEAF, entry=door.entry)
    server.wait_for_output(job_id, "child")
    server.wait_for_output(job_id, "ready")
    marked = pids_of(job_id)
    answer = server.stop(job_id, grace=3.0)
    assert (answer["state"], answer["left"]) == ("killed", [])
    assert "SIGKILL ended the remaining processes" in answer["ended"]["reason"]
    assert "heard" in server.output(job_id)
    assert marked
    assert pids_of(job_id) == []


def pids_of(job_id: str) -> list[int]:
    """The processes that carry the mark, wherever they are."""
    mark = f"REMOTE_TOOL_JOB_ID={job_id}".encode()
    return [int(each.parent.name) for each in Path("/proc").glob("[0-9]*/environ") if mark in read(each)]


@pytest.mark.slow
def test_a_polite_end_is_waited_for(server: PretendServer, door: CommandWrapper) -> None:
    command = "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.2; done"
    job_id = server.start(command, entry=door.entry)
    server.wait_for_output(job_id, "ready")
    # On a busy machine, the client of the engine ends many seconds after the command.
    answer = server.stop(job_id, grace=100.0)
    assert (answer["state"], answer["ended"]["exit_code"]) == ("killed", 5)
    assert server.output(job_id) == "ready\nsaved\n"


@pytest.mark.slow
def test_processes_left_by_a_dead_supervisor_are_ended(server: PretendServer, door: CommandWrapper) -> None:
    job_id = server.start(DEAF, entry=door.entry)
    server.wait_for_output(job_id, "ready")
    supervisor = server.record(job_id, "started")["supervisor"]
    os.kill(supervisor["pid"], signal.SIGKILL)
    wait_until(lambda: processes.find_alive(supervisor) is None, "the end of the supervisor")
    assert server.status(job_id)["state"] == "lost"
    answer = server.stop(job_id, grace=0.5)
    assert (answer["state"], answer["left"], pids_of(job_id)) == ("killed", [], [])


@pytest.mark.slow
def test_processes_that_outlive_the_launch_command_are_ended(server: PretendServer, door: CommandWrapper) -> None:
    """As when the engine's client is killed: what it has begun goes on without it."""
    job_id = server.start("echo ready; sleep 600", entry=door.entry)
    server.wait_for_output(job_id, "ready")
    os.kill(server.record(job_id, "started")["command"]["pid"], signal.SIGKILL)
    assert server.wait(job_id)[job_id]["signal"] == "SIGKILL"
    assert pids_of(job_id) == []


@pytest.mark.slow
def test_an_attached_command_begins_inside_and_ends_with_its_client(
    server: PretendServer, door: CommandWrapper
) -> None:
    with server.open("run", command='echo "$LR \'"; exit 7', environment={"LR": "0.1"}, entry=door.entry) as call:
        assert read_to_end(call) == (b"0.1 '\n", b"")
        assert call.process.wait(PATIENCE) == 7
    mark = server.project / "mark"
    command = f"echo $REMOTE_TOOL_JOB_ID >{mark.name}; sleep 600"
    with server.open("run", command=command, environment={}, entry=door.entry) as call:
        wait_until(lambda: mark.exists() and mark.read_text().strip(), "the command")
        assert members(mark)
        call.close()
        assert pids_of(mark.read_text().strip()) == []


def test_a_launch_command_that_does_not_pass_stdin_on_is_a_failure(server: PretendServer) -> None:
    job_id = server.start("echo never", entry={"launch": ["sh", "-c", "exit 0"]})
    ended = server.wait(job_id)[job_id]
    assert (ended["exit_code"], ended["reason"]) == (None, "sh ended with exit code 0 before the command began")
    assert server.status(job_id)["state"] == "failed"


def test_a_launch_command_that_fails_or_is_not_there_is_named(server: PretendServer) -> None:
    refused = server.start("echo never", entry={"launch": ["sh", "-c", "echo no such container >&2; exit 125"]})
    ended = server.wait(refused)[refused]
    assert (ended["exit_code"], ended["reason"]) == (125, "sh ended with exit code 125 before the command began")
    answer = server.call("start", jobs=[server.new_job("true", entry={"launch": ["no-such-engine"]})])["jobs"][0]
    assert answer["state"] == "failed"
    assert "no-such-engine: there is no such program on this server" in answer["reason"]


@pytest.mark.parametrize("engine", ["no-such-engine", "an-engine"])
def test_a_folder_on_path_that_may_not_be_read_hides_nothing(
    server: PretendServer, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system answers "Permission denied" then, whether the program is there or not."""
    closed, folder = server.home / "closed", server.home / "engines"
    closed.mkdir(mode=0o000)
    folder.mkdir()
    (folder / "an-engine").write_text("")
    environment = {**os.environ, "PATH": f"{closed}:{folder}"}
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert asking.is_missing(engine, environment, denied) == (engine == "no-such-engine")
    if os.geteuid() == 0:
        # Root may read every folder; a file that nobody may run is denied to root too.
        return
    monkeypatch.setenv("PATH", environment["PATH"])
    said = asking.talk([engine], b"", environment, 5.0).errors.decode()
    expected = asking.NO_PROGRAM if engine == "no-such-engine" else "Permission denied"
    assert said == f"{engine}: {expected}"


def test_a_project_that_is_not_there_inside_is_named(server: PretendServer) -> None:
    skip_unless_unshare()
    hide = ["sh", "-c", f'mount -t tmpfs none "{server.home}" && exec "$0" "$@"']
    job_id = server.start("echo never", entry={"launch": [*UNSHARE, *hide]})
    assert server.wait(job_id)[job_id]["exit_code"] == 126
    assert "does not exist inside: mount it at the same path" in (server.jobs / job_id / "job.err").read_text()


def test_an_environment_that_is_reached_from_inside_is_activated(server: PretendServer) -> None:
    server.activate(variables={"CONDA_PREFIX": "/prefix"}, path=["/prefix/bin"], unset=["GONE"])
    command = 'echo "$CONDA_PREFIX ${PATH%%:*} $GONE"'
    jobs = [
        server.new_job(command, entry={"launch": ["env", "GONE=here"], "activate": activate})
        for activate in (True, False)
    ]
    server.call("start", jobs=jobs)
    server.wait(*(job["id"] for job in jobs))
    assert server.output(jobs[0]["id"]) == "/prefix /prefix/bin \n"
    assert server.output(jobs[1]["id"]).endswith(" here\n")
    assert "/prefix" not in server.output(jobs[1]["id"])


def test_the_python_inside_says_what_it_is(server: PretendServer) -> None:
    python = Path(server.python).parent
    entry = {"launch": ["env", f"PATH={python}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES=0,1,2"]}
    answer = server.call("facts", launch=True, entry=entry)
    assert (answer["python"].split(".")[0], answer["gpus"]) == ("3", 3)
    assert len(answer["gpu_names"]) == 3
    setup = "export CUDA_VISIBLE_DEVICES=$ONLY"
    answer = server.call("facts", launch=True, entry=entry, setup=setup, environment={"ONLY": "2"})
    assert answer["gpu_names"] == ["2"]
    answer = server.call("facts", launch=True, entry={"launch": ["false"]}, needs_python=False)
    assert (answer["python"], answer["gpu_names"]) == ("", [])
    with pytest.raises(AssertionError, match="python does not answer behind false"):
        assert not server.call("facts", launch=True, entry={"launch": ["false"]})["error"]


def test_malformed_launch_commands_are_refused(server: PretendServer) -> None:
    entries: list[Any] = [{}, {"launch": []}, {"launch": "docker"}, {"container": [1]}, [], {"launch": ["a\0b"]}]
    for entry in entries:
        answer = server.call("start", jobs=[server.new_job("true", entry=entry)])
        assert "launch command cannot be" in answer["error"]


def test_processes_invisible_from_outside_are_signalled_from_inside() -> None:
    skip_unless_unshare()
    assert shutil.which("nsenter")
    # A container that was there before, and the way into it.
    with subprocess.Popen([*UNSHARE, "sh", "-c", "sleep 600 & wait"]) as outer:
        child = int(wait_until(lambda: read(Path(f"/proc/{outer.pid}/task/{outer.pid}/children")), "it"))
        ask = ["nsenter", "--target", str(child), "--pid", "--mount", "/bin/sh", "-s"]
        try:
            marked = ["env", "REMOTE_TOOL_JOB_ID=some-job", "sleep", "600"]
            with subprocess.Popen(["nsenter", "--target", str(child), "--pid", "--mount", *marked]) as job:
                inside = WrappedProcesses("some-job", ask, [], os.environb)
                wait_until(lambda: inside.count() == 1, "the job")
                assert WrappedProcesses("some-other", ask, [], os.environb).signal(signal.SIGTERM) == 0
                assert inside.signal(signal.SIGTERM) == 1
                assert job.wait(PATIENCE) == -signal.SIGTERM
                assert inside.kill() == 0
        finally:
            outer.kill()
            os.kill(child, signal.SIGKILL)


@pytest.mark.row(18)
def test_processes_inside_that_do_not_die_are_given_up_and_named() -> None:
    """In a process of its own: a tree ends all that is below the process that asks for it."""
    script = """
import os, time
from remote_tool.agent.supervisor import tree as trees
from remote_tool.agent.wrapper.container import WrappedProcesses
trees.KILL_SECONDS = 2.0
inside = WrappedProcesses("some-job", ["sh", "-c", "echo count 1; echo 'remote-tool: end'"], [], os.environb)
pauses = []
def pause(seconds):
    pauses.append(seconds)
    assert len(pauses) < 1000
    time.sleep(seconds)
print(trees.Tree("some-job", "", pause, inside).kill(), any(pauses), inside.rest)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300, cwd=ROOT
    )
    assert ran.stdout == "[] True 1 process behind sh would not die\n", ran.stderr


@pytest.mark.row(1, 16)
def test_a_stop_that_reached_nobody_inside_says_so(server: PretendServer) -> None:
    """The engine begins the job, and answers nothing from then on."""
    engine = server.home / "engine"
    engine.write_text('#!/bin/sh\n[ -e "$0.begun" ] && exit 1\ntouch "$0.begun"\nexec "$@"\n')
    engine.chmod(0o700)
    job_id = server.start("echo ready; exec sleep 600", entry={"launch": [str(engine)]})
    server.wait_for_output(job_id, "ready")
    reason = server.stop(job_id)["ended"]["reason"]
    assert reason == "stopped with SIGTERM; processes behind engine could not be reached and may still be running"
    (server.home / "engine.begun").unlink()
    by_itself = server.start("true", entry={"launch": [str(engine)]})
    assert server.wait(by_itself)[by_itself]["reason"] == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who has no pipe yet")
def test_a_user_with_many_pipes_is_not_waited_for_and_told() -> None:
    """Of so many, the kernel makes the next ones small, and lets none grow."""
    program = (
        "import os, resource; from remote_tool.agent.proc.subprocess import open_script, talk\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192)); os.setuid(54321)\n"
        "end, hold = os.pipe()\n"
        "ready, tell = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    pipes = [os.pipe() for _ in range(1100)]\n"
        "    os.close(hold); os.write(tell, b'.'); os.read(end, 1); os._exit(0)\n"
        "os.read(ready, 1)\n"
        "for size in (4000, 60_000):\n"
        "    said = talk(['wc', '-c'], b'x' * size, os.environb, 10.0)\n"
        "    print(said.output.decode().strip(), said.errors.decode())\n"
        "try: open_script(b'x' * 60_000)\n"
        "except OSError as error: print(error)\n"
    )
    soft = int(Path("/proc/sys/fs/pipe-user-pages-soft").read_text())
    assert 0 < soft <= 1100 * 16
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    refused = "no pipe takes the 60000 bytes that it is to read: Operation not permitted"
    assert ran.stdout.splitlines() == ["4000 ", f" wc: {refused}", refused], ran.stderr


def test_an_inside_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    inside = WrappedProcesses("some-job", ["sh", "-c", f"echo called >>{calls}; exit 1"], [], os.environb)
    assert [inside.count(), inside.signal(signal.SIGTERM), inside.kill()] == [0, 0, 0]
    assert calls.read_text() == "called\n"


@pytest.mark.slow
def test_a_niceness_is_given_inside(server: PretendServer, door: CommandWrapper) -> None:
    """A container's processes descend from its engine, and not from the job's supervisor."""
    job_ids = [server.start("nice; sh -c nice", entry=door.entry, nice=nice) for nice in (6, 0, None)]
    server.wait(*job_ids)
    said = [[int(word) for word in server.output(job_id).split()] for job_id in job_ids]
    assert said == [[said[2][0] + 6] * 2, said[2], said[2]]
