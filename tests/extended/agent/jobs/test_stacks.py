"""Where the Python processes of a job are: asked by a signal that only those get which expect it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.hook import sitecustomize
from remote_tool.agent.proc import stacks
from remote_tool.jobs.stacks import StackFrame, read_threads
from tests.extended.agent.conftest import wait_until
from tests.extended.agent.wrapper.test_wrapper import UNSHARE, skip_unless_unshare
from tests.processes import read_of

if TYPE_CHECKING:
    from tests.extended.agent.conftest import PretendServer

HOOK = Path(str(sitecustomize.__file__)).parent
PY_SPY = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
HANG = "import time\ndef hang():\n    print('here', flush=True)\n    time.sleep(600)\n"


def taken(server: PretendServer, *ids: str, **options: Any) -> list[tuple[dict[str, Any], str]]:
    """Return what the agent says about each Python process of jobs."""
    with server.open("stacks", ids=list(ids), **options) as call:
        *frames, last = call.rest()
    assert last.header == {"done": True}
    return [(dict(frame.header), frame.body.decode()) for frame in frames]


def hanging(server: PretendServer, *lines: str, python: str = "python", more: str = "hang()\n") -> str:
    """Start a job that hangs in a function of its own; return when it does."""
    (server.project / "train.py").write_text("".join(f"{line}\n" for line in lines) + HANG + more)
    job = server.start(f"{python} train.py")
    server.wait_for_output(job, "here")
    return job


@pytest.mark.row(218)
def test_each_rank_shows_its_stack_and_goes_on(server: PretendServer) -> None:
    job = hanging(server)
    more = "RANK=1 python -c 'import train'"
    second = server.start(more)
    server.wait_for_output(second, "here")
    ((header, text),) = taken(server, job)
    assert [(frame.function, frame.line) for frame in read_threads(text)[-1]] == [("hang", 4), ("<module>", 5)]
    assert (header["why"], "rank" in header) == ("", False)
    assert header["command"].endswith("train.py")
    again, ranked = taken(server, job, second)
    assert (again[0]["pid"], again[1]) == (header["pid"], text)
    assert ranked[0]["rank"] == 1
    assert [server.status(each)["state"] for each in (job, second)] == ["running"] * 2


@pytest.mark.row(218)
def test_forked_children_and_threads_show_theirs(server: PretendServer) -> None:
    fork = (
        "import multiprocessing, threading\n"
        "workers = [multiprocessing.get_context('fork').Process(target=hang) for _ in range(3)]\n"
        "for each in workers: each.start()\n"
        "threading.Thread(target=hang, daemon=True).start()\n"
        "workers[0].join()\n"
    )
    job = hanging(server, more=fork)
    wait_until(lambda: server.output(job).count("here") == 4, "all of them")
    found = taken(server, job)
    places = sorted("hang" in text for _, text in found)
    assert (len(found), places) == (4, [True] * 4)
    main = next(text for header, text in found if header["parent"] not in {each["pid"] for each, _ in found})
    thread, stack = read_threads(main)
    assert thread[0].function == "hang"
    assert stack[-1].function == "<module>"


@pytest.mark.row(219)
@pytest.mark.parametrize("options", ["-I", "-S", "-E"])
def test_a_process_without_the_hook_gets_no_signal(server: PretendServer, options: str) -> None:
    job = hanging(server, python=f"python {options}")
    ((header, text),) = taken(server, job)
    assert (header["why"], text) == (stacks._NO_HOOK, "")
    assert server.status(job)["state"] == "running"


@pytest.mark.row(219)
def test_a_program_that_gave_the_signal_up_does_not_get_it(server: PretendServer) -> None:
    job = hanging(server, "import faulthandler", f"assert faulthandler.unregister({stacks._SIGNAL})")
    ((header, text),) = taken(server, job)
    assert (header["why"], text) == (stacks._NO_HOOK, "")
    assert server.status(job)["state"] == "running"


@pytest.mark.row(219)
def test_a_program_that_closed_the_file_gets_no_signal(server: PretendServer) -> None:
    job = hanging(server, "import os", "os.closerange(3, 4096)", "data = [open('data', 'w') for _ in range(300)]")
    ((header, text),) = taken(server, job)
    assert (header["why"], text) == (stacks._NO_HOOK, "")
    assert server.status(job)["state"] == "running"
    assert (server.project / "data").read_bytes() == b""


@pytest.mark.row(219)
def test_a_stopped_process_is_named_and_holds_nothing_up(server: PretendServer) -> None:
    job = hanging(server, "import os", more="print('here', flush=True); os.kill(os.getpid(), 19)\n")
    wait_until(lambda: any(_is_stopped(pid) for pid in server.members(job)), "its stop")
    ((header, text),) = taken(server, job)
    assert (header["why"], text) == ("it is stopped", "")


@pytest.mark.row(218)
def test_stacks_are_kept_beside_the_output(server: PretendServer) -> None:
    job = hanging(server)
    taken(server, job, keep=True)
    assert "in hang\n" in (server.jobs / job / "stacks.txt").read_text()


def with_py_spy(server: PretendServer, *lines: str) -> None:
    """Put a stand-in for py-spy into the environment."""
    folder = server.home / "bin"
    folder.mkdir()
    (folder / "py-spy").write_text("".join(f"{line}\n" for line in ("#!/bin/sh", *lines)))
    (folder / "py-spy").chmod(0o700)
    server.activate(path=[str(folder), str(Path(server.python).parent)])


@pytest.mark.row(223)
def test_py_spy_shows_native_calls(server: PretendServer) -> None:
    frame = '{"name": "ncclAllReduce", "filename": "libnccl.so.2", "line": 0}'
    thread = f'[{{"thread_name": "MainThread", "frames": [{frame}]}}]'
    with_py_spy(server, f'echo "$*" >{server.home}/asked', f"echo '{thread}'")
    job = hanging(server)
    ((header, text),) = taken(server, job, native=True)
    assert (server.home / "asked").read_text() == f"dump --native --json --pid {header['pid']}\n"
    assert read_threads(text) == ((StackFrame("libnccl.so.2", 0, "ncclAllReduce"),),)


@pytest.mark.row(223)
def test_each_process_is_shown_as_soon_as_py_spy_has_seen_it(server: PretendServer) -> None:
    asked, go = server.home / "asked", server.home / "go"
    # The second one waits until the first one is shown.
    with_py_spy(server, f"while [ -e {asked} ] && [ ! -e {go} ]; do sleep 0.05; done", f": >{asked}", "echo '[]'")
    job = hanging(server, more="import os\nos.fork()\nhang()\n")
    wait_until(lambda: server.output(job).count("here") == 2, "both")
    with server.open("stacks", ids=[job], native=True) as call:
        first = call.next()
        go.touch()
        second = call.next()
    assert [each and each.header["why"] for each in (first, second)] == ["", ""]


@pytest.mark.row(223)
def test_where_the_kernel_forbids_py_spy_python_shows_its_stacks(server: PretendServer) -> None:
    with_py_spy(server, "echo 'Permission Denied: Try running again with elevated permissions' >&2", "exit 1")
    ((header, text),) = taken(server, hanging(server), native=True)
    assert header["why"].startswith("the kernel forbids py-spy to trace it (kernel.yama.ptrace_scope is ")
    assert " in hang\n" in text


# Stands in for a kernel with Yama's scope 1, when the process has named the supervisor as its tracer.
ONLY_BELOW_THE_SUPERVISOR = """
parent=$$
until [ "$parent" -le 1 ] || [ "$parent" = "$(cat {file})" ]; do
    parent=$(sed 's/.*) . //; s/ .*//' /proc/$parent/stat)
done
[ "$parent" -le 1 ] && {{ echo 'Error: Permission denied (os error 13)' >&2; exit 1; }}
echo '[{{"thread_name": "MainThread", "frames": [{{"name": "ncclAllReduce", "filename": "n.so", "line": 0}}]}}]'
"""


@pytest.mark.row(224)
def test_where_only_the_supervisor_may_trace_it_runs_py_spy(server: PretendServer) -> None:
    file = server.home / "supervisor"
    with_py_spy(server, ONLY_BELOW_THE_SUPERVISOR.format(file=file))
    job = hanging(server, more="import os\nos.fork()\nhang()\n")
    wait_until(lambda: server.output(job).count("here") == 2, "both")
    file.write_text(str(server.supervisor(job)))
    found = taken(server, job, native=True)
    assert [(header["why"], "ncclAllReduce" in text) for header, text in found] == [("", True)] * 2
    assert list((server.jobs / job).glob("*trace*")) == []
    assert server.status(job)["state"] == "running"
    server.stop(job, signal="SIGTERM", grace=20.0)
    assert server.status(job)["ended"]["reason"] == "stopped with SIGTERM"


@pytest.mark.row(224)
@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace")
@pytest.mark.parametrize(("scope", "calls"), [("0", 0), ("1", 2), ("2", 0)])
def test_a_process_names_its_supervisor_where_only_that_may_trace(tmp_path: Path, scope: str, calls: int) -> None:
    setting = tmp_path / "ptrace_scope"
    setting.write_text(f"{scope}\n")
    text = (HOOK / "sitecustomize.py").read_text()
    (tmp_path / "sitecustomize.py").write_text(text.replace(sitecustomize.SCOPE, str(setting)))
    log = tmp_path / "log"
    fork = "import os; os.fork() or os._exit(0); os.wait()"
    variables = {"PYTHONPATH": str(tmp_path), "REMOTE_TOOL_JOB_ID": "job", "REMOTE_TOOL_TRACER": "4242"}
    words = ["strace", "-f", "-e", "trace=prctl", "-o", str(log), sys.executable, "-c", fork]
    subprocess.run(words, env={**os.environ, **variables}, check=True, timeout=300)
    named = [line for line in log.read_text().splitlines() if "PR_SET_PTRACER, 4242" in line]
    assert len(named) == calls
    assert len({line.split()[0] for line in named}) == calls


@pytest.mark.row(224)
@pytest.mark.skipif(PY_SPY is None, reason="py-spy is not installed")
def test_the_real_py_spy_shows_where_a_process_is(server: PretendServer) -> None:
    assert PY_SPY is not None
    server.activate(path=[str(Path(PY_SPY).parent), str(Path(server.python).parent)])
    job = hanging(server)
    ((header, text),) = taken(server, job, native=True)
    if header["why"].startswith("the kernel forbids"):
        pytest.skip(header["why"])
    assert header["why"] == ""
    own = [frame for frame in read_threads(text)[-1] if frame.file.endswith("train.py")]
    assert [(frame.function, frame.line) for frame in own] == [("hang", 4), ("<module>", 5)]
    assert len(read_threads(text)[-1]) > len(own)


@pytest.mark.row(226)
@pytest.mark.parametrize("words", [["env"], UNSHARE], ids=["env", "unshare"])
def test_jobs_behind_a_launch_command_show_their_stacks(server: PretendServer, words: list[str]) -> None:
    if words == UNSHARE:
        skip_unless_unshare()
    (server.project / "train.py").write_text(HANG + "hang()\n")
    job = server.start(f"{sys.executable} train.py", entry={"launch": words}, environment={"PYTHONPATH": "/mine"})
    server.wait_for_output(job, "here")
    ((header, text),) = taken(server, job, keep=True)
    assert (header["why"], "in hang" in text) == ("", True)
    assert "in hang" in (server.jobs / job / "stacks.txt").read_text()


# Stands in for another machine: what reads the pipe is no child of the job, and has another mark.
ELSEWHERE = ["sh", "-c", "sed s/REMOTE_TOOL_JOB_ID/ELSEWHERE/ >{pipe}; exec sleep 600"]


@pytest.mark.row(226)
def test_a_job_whose_processes_cannot_be_seen_says_so(server: PretendServer) -> None:
    pipe = server.home / "pipe"
    os.mkfifo(pipe)
    (server.project / "train.py").write_text(HANG + "hang()\n")
    elsewhere = [word.format(pipe=pipe) for word in ELSEWHERE]
    with subprocess.Popen(["sh", "-c", f"exec sh <{pipe}"], start_new_session=True) as other:
        try:
            job = server.start(f"exec {sys.executable} train.py >>out", entry={"launch": elsewhere})
            wait_until(lambda: (server.project / "out").exists() and (server.project / "out").read_text(), "its start")
            ((header, text),) = taken(server, job)
            assert header == {
                "job": job,
                "why": "its processes run behind sh, where they cannot be seen from this server",
            }
            assert text == ""
        finally:
            os.killpg(other.pid, signal.SIGKILL)
    server.stop(job, signal="SIGKILL", grace=0.0)


@pytest.mark.row(227)
def test_an_ended_job_sends_what_its_folder_keeps(server: PretendServer) -> None:
    job = hanging(server)
    taken(server, job, keep=True)
    server.stop(job, signal="SIGKILL", grace=0.0)
    assert taken(server, job) == [({"job": job, "ended": True}, "")]
    folder = server.jobs / job
    (folder / "nccl-rank-12").write_bytes(b"x" * 700_000)
    (folder / "nccl-rank-x").write_bytes(b"not a dump")
    (folder / "nccl-rank-3").symlink_to("/etc/passwd")
    with server.open("kept", jobs=[{"id": job, "have": {}}, {"id": "none"}]) as call:
        *frames, last = call.rest()
    assert last.header == {"done": True}
    sent: dict[str, bytes] = {}
    for frame in frames:
        sent[frame.header["name"]] = sent.get(frame.header["name"], b"") + frame.body
    text = (folder / "stacks.txt").read_bytes()
    assert sent == {"nccl-rank-12": b"x" * 700_000, "stacks.txt": text}
    with server.open("kept", jobs=[{"id": job, "have": {"nccl-rank-12": 700_000, "stacks.txt": 1}}]) as call:
        assert [frame.header.get("name") for frame in call.rest()] == ["stacks.txt", None]


@pytest.mark.row(223)
def test_a_missing_py_spy_is_said(server: PretendServer) -> None:
    server.activate(path=[])
    with server.open("stacks", login={"PATH": str(server.home)}, ids=[], native=True) as call:
        (frame,) = call.rest()
    assert frame.header["error"] == "py-spy is not installed on this server"
    assert frame.header["hint"] == "remote-tool run -- pip install py-spy"


def run(program: str, *options: str, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in Python as a job does."""
    environment = {**os.environ, "PYTHONPATH": f"{HOOK}{path}", "REMOTE_TOOL_JOB_ID": "job", **variables}
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.row(220)
def test_the_users_own_sitecustomize_is_loaded_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 7\nVALUE = 8\n")
    shown = f"import sys, sitecustomize; print(mine, sitecustomize.VALUE, sys.path.count({str(HOOK)!r}))"
    done = run(shown, path=f":{tmp_path}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "7 8 0\n", "")
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    ours, theirs = (run("print(1)", path=f":{tmp_path}") for _ in range(2))
    assert "no_such_module" in ours.stderr
    assert (ours.returncode, ours.stdout) == (theirs.returncode, "1\n")


@pytest.mark.row(220)
@pytest.mark.parametrize(
    "broken",
    [
        "import sys; sys.modules['faulthandler'] = None",
        "import os; os.register_at_fork = None",
        "import os\ndef refuse(*_): raise OSError(28, 'no space')\nos.open = refuse",
    ],
)
def test_a_hook_that_fails_is_not_noticed(broken: str) -> None:
    program = f"{broken}\nimport runpy; runpy.run_path({str(HOOK / 'sitecustomize.py')!r}); print('goes on')"
    done = run(program, path="-not")
    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", "")


@pytest.mark.row(220)
def test_a_program_has_the_same_small_descriptors_and_no_file_is_left() -> None:
    shown = "import os; print(os.open('/dev/null', 0), os.getpid())"
    (file, pid), (usual, _) = (run(shown, path=path).stdout.split() for path in ("", "-not"))
    assert file == usual
    assert list(Path("/dev/shm").glob(f"{sitecustomize.NAME}{pid}-*")) == []


def test_hook_and_agent_agree() -> None:
    assert (sitecustomize.SIGNAL, sitecustomize.NAME) == (stacks._SIGNAL, stacks._FILE_NAME)


def _is_stopped(pid: int) -> bool:
    return read_of(pid, "stat").rpartition(b")")[2].split()[:1] == [b"T"]


@pytest.mark.row(218)
def test_our_process_that_leads_a_terminal_is_not_among_them(server: PretendServer) -> None:
    (server.project / "train.py").write_text(HANG + "hang()\n")
    job = server.start("python train.py", terminal="command")
    server.wait_for_output(job, "here")
    ((header, text),) = taken(server, job)
    assert header["command"].endswith("train.py")
    assert "in hang" in text
