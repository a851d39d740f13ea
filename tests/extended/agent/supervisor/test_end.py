from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.proc import processes
from remote_tool.agent.supervisor import shell
from tests.extended.agent.conftest import PATIENCE, PretendServer, changed_copy, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_CODES = [0, 1, 2, 3, 125, 126, 127, 128, 129, 137, 143, 254, 255]
NOT_DEADLY = {"SIGCHLD", "SIGCLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH"}
DEADLY = sorted(name for name in signal.Signals.__members__ if name not in NOT_DEADLY)


@pytest.mark.row(6)
def test_every_exit_code_is_recorded_as_it_is(server: PretendServer) -> None:
    jobs = {code: server.new_job(f"exit {code}") for code in EXIT_CODES}
    server.call("start", jobs=list(jobs.values()))
    ended = server.wait(*(job["id"] for job in jobs.values()))
    for code, job in jobs.items():
        record = ended[job["id"]]
        assert (record["exit_code"], record["signal"], record["killed"]) == (code, None, False)
        assert server.status(job["id"])["state"] == ("succeeded" if code == 0 else "failed")


@pytest.mark.row(7)
@pytest.mark.slow
def test_a_signal_is_recorded_by_name_and_apart_from_an_exit_code(server: PretendServer) -> None:
    # Not by the shell: bash is deaf to SIGQUIT.
    (server.project / "die.py").write_text(
        "import os, signal, sys\n"
        "for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT): signal.signal(number, signal.SIG_DFL)\n"
        "os.kill(os.getpid(), int(sys.argv[1]))\n"
    )
    jobs = {name: server.new_job(f"exec python -S die.py {int(signal.Signals[name])}") for name in DEADLY}
    server.call("start", jobs=list(jobs.values()))
    ended = server.wait(*(job["id"] for job in jobs.values()))
    for name, job in jobs.items():
        record = ended[job["id"]]
        # Some numbers have two names.
        assert signal.Signals[record["signal"]] == signal.Signals[name]
        assert (record["exit_code"], record["killed"]) == (None, False)
        assert record["reason"].startswith(f"ended by {record['signal']}")


@pytest.mark.row(7)
def test_a_core_dump_is_recorded(server: PretendServer) -> None:
    crash = "ulimit -c unlimited; kill -SEGV $$; sleep 60"
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", f"cd {server.home}; {crash}"], os.environ)
    truth = os.WCOREDUMP(os.waitpid(pid, 0)[1])
    job_id = server.start(crash)
    record = server.wait(job_id)[job_id]
    assert record["core_dumped"] == truth
    assert ("core dumped" in record["reason"]) == truth
    assert not list(server.project.glob("core*")) or truth


@pytest.mark.row(31)
def test_a_record_tells_how_long_it_took_and_what_it_used(server: PretendServer) -> None:
    """Durations do not come from the clock on the wall."""
    job_id = server.start_python("x = bytearray(80_000_000)\nimport time; time.sleep(0.2)")
    record = server.wait(job_id)[job_id]
    assert 0.2 <= record["duration"] < 60
    assert 80_000_000 < record["resources"]["max_rss_bytes"] < 1_000_000_000
    assert record["resources"]["user_seconds"] < 10


@pytest.mark.row(16, 17)
def test_processes_left_by_a_command_are_ended(server: PretendServer) -> None:
    """Background, own session, double fork, no environment; none may hold a GPU."""
    job_id = server.start(
        "sleep 600 & setsid sleep 600 & (setsid sh -c 'sleep 600 & echo > two; sleep 600' &) & env -i sleep 600 & "
        "env -i setsid sh -c 'sleep 600 > /dev/null 2>&1 & echo $! > hidden' & "
        "until [ -s hidden -a -s two ]; do sleep 0.05; done; sleep 0.2; exit 4"
    )
    record = server.wait(job_id)[job_id]
    assert record["exit_code"] == 4
    assert record["leftovers"] >= 6
    # The last one has no mark, no output of ours and no parent: only the supervisor knew it, as its child.
    hidden = int((server.project / "hidden").read_text())
    wait_until(lambda: processes.read_process(hidden) is None, "the end of the last one")
    assert "left behind" in record["reason"]
    assert not record["killed"]
    assert server.members(job_id) == []


@pytest.mark.row(17, 142)
@pytest.mark.slow
def test_leftovers_that_ignore_sigterm_are_killed(server: PretendServer) -> None:
    """Data loaders of a command that crashed: deaf, and blocked in a pipe that nobody reads."""
    assert shell.LEFTOVER_GRACE == 5.0
    program = (
        "import os, signal, time\n"
        "for number in range(3):\n"
        "    if os.fork() == 0:\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid(); print('deaf', flush=True)\n"
        "        pipe = os.pipe()\n"
        "        while True: os.write(pipe[1], bytes(4096))\n"
        "while open('out').read().count('deaf') < 3: time.sleep(0.01)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    (server.project / "program.py").write_text(program)
    job_id = server.start("exec python -S program.py > out")
    record = server.wait(job_id)[job_id]
    assert (record["signal"], record["leftovers"]) == ("SIGKILL", 3)
    assert server.members(job_id) == []
    # It ended when its command did; what was left took its time.
    written = (server.jobs / job_id / "ended.json").stat().st_mtime
    assert record["ended_at"] < written - shell.LEFTOVER_GRACE
    assert record["duration"] < written - server.record(job_id, "started")["started_at"] - shell.LEFTOVER_GRACE


@pytest.fixture
def patient(tmp_path: Path, installed: Path) -> Iterator[PretendServer]:
    """A server that waits long for processes that end by themselves, as those of a busy machine do."""
    changes = {"agent/supervisor/shell.py": {"SETTLE_SECONDS = 0.5": "SETTLE_SECONDS = 20.0"}}
    pretend = PretendServer(tmp_path / "home", changed_copy(installed, tmp_path / "program", changes))
    yield pretend
    pretend.clean()


@pytest.mark.row(142)
def test_an_end_that_leaves_nothing_looks_at_no_other_process(patient: PretendServer, tmp_path: Path) -> None:
    """Else a thousand jobs that end together look at each other for a minute."""
    server = patient
    job_id = server.start("while [ ! -e go ]; do sleep 0.01; done; sleep 0.1 & exit 0")
    log = tmp_path / "calls"
    with watch_calls(server.supervisor(job_id), log):
        (server.project / "go").touch()
        record = server.wait(job_id)[job_id]
    assert (record["exit_code"], record["leftovers"]) == (0, 0)
    calls = log.read_text()
    assert "ended.json" in calls
    assert not re.findall(r'"/proc/[0-9]+/.*"', calls)


@contextlib.contextmanager
def watch_calls(pid: int, log: Path) -> Iterator[None]:
    """Write down every file that a process opens until it ends."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is missing")
    arguments = [strace, "-e", "trace=%file", "-o", str(log), "-p", str(pid)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        if "attached" not in process.stderr.readline():
            pytest.skip("strace may not look at processes here")
        yield
        process.wait(PATIENCE)


def test_children_that_go_by_themselves_are_no_leftovers(patient: PretendServer) -> None:
    job_id = patient.start("sleep 0.2 & exit 0")
    record = patient.wait(job_id)[job_id]
    assert (record["leftovers"], record["reason"]) == (0, "")


@pytest.mark.row(19)
@pytest.mark.slow
def test_orphans_are_reaped_while_the_job_runs(server: PretendServer) -> None:
    """A thousand grandchildren leave no zombie."""
    program = (
        "import os, time\n"
        "for _ in range(1000):\n"
        "    if os.fork() == 0:\n"
        "        os.fork(); os._exit(0)\n"
        "    os.wait()\n"
        "print('all', flush=True); time.sleep(60)\n"
    )
    job_id = server.start_python(program)
    server.wait_for_output(job_id, "all")
    supervisor = server.supervisor(job_id)
    wait_until(lambda: _children(supervisor) == [server.record(job_id, "started")["pid"]], "the reaping")
    assert server.status(job_id)["state"] == "running"
    assert len(server.members(job_id)) == 1


def test_a_supervisor_that_inherits_ignored_children_sees_the_exit_code(server: PretendServer) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        job_id = server.start("exit 3")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert server.wait(job_id)[job_id]["exit_code"] == 3


def test_no_space_is_kept_when_the_record_is_written(server: PretendServer) -> None:
    job_id = server.start("true")
    server.wait(job_id)
    wait_until(lambda: processes.find_alive(server.record(job_id, "started")["supervisor"]) is None)
    names = {path.name for path in (server.jobs / job_id).iterdir()}
    assert names == {"spec.json", "started.json", "ended.json", "command", "job.out", "job.err", "ranks"}
    assert (server.jobs / job_id / "ended.json").stat().st_size < 1024


def test_a_job_whose_folder_was_removed_is_still_ended(server: PretendServer) -> None:
    job_id = server.start("sleep 600 & exec sleep 600")
    started = server.record(job_id, "started")
    subprocess.run(["rm", "-rf", server.jobs], check=True)
    os.kill(started["pid"], signal.SIGKILL)
    wait_until(lambda: processes.find_alive(started["supervisor"]) is None, "the end of the supervisor")
    assert server.members(job_id) == []


@pytest.mark.row(11)
def test_an_end_that_cannot_be_written_is_written_when_it_can_be(own_home: PretendServer) -> None:
    """Nothing is lost or made up in between."""
    job_id = own_home.start("while [ ! -e go ]; do sleep 0.01; done; exit 6")
    folder = own_home.jobs / job_id
    if subprocess.run(["chattr", "+i", folder], check=False, capture_output=True).returncode != 0:
        pytest.skip("a folder cannot be made immutable here")
    try:
        (own_home.project / "go").touch()
        status = wait_until(lambda: (found := own_home.status(job_id))["reason"] and found, "the end of the command")
        assert (status["state"], status["ended"]) == ("running", None)
        assert "being recorded" in status["reason"]
    finally:
        subprocess.run(["chattr", "-i", folder], check=True)
    assert own_home.wait(job_id)[job_id]["exit_code"] == 6
    assert own_home.status(job_id)["state"] == "failed"


@pytest.mark.row(8)
@pytest.mark.skipif(not os.access("/sys/fs/cgroup/memory", os.W_OK), reason="no memory control group can be made here")
def test_a_job_that_the_kernel_kills_for_its_memory_in_another_group_says_so(server: PretendServer) -> None:
    """As in a container."""
    group = Path(f"/sys/fs/cgroup/memory/remote-tool-test-{os.getpid()}")
    group.mkdir()
    try:
        (server.project / "eat.py").write_text("x = []\nwhile True: x.append(bytearray(1_000_000))\n")
        limit = f'echo 60000000 > {group}/memory.limit_in_bytes; echo $$ > {group}/cgroup.procs; exec "$@"'
        job_id = server.start("exec python -S eat.py", entry={"launch": ["sh", "-c", limit, "sh"]})
        record = server.wait(job_id)[job_id]
        assert record["signal"] == "SIGKILL"
        assert "probably out of memory" in record["reason"]
    finally:
        wait_until(lambda: not server.members(job_id))
        wait_until(lambda: subprocess.run(["rmdir", group], check=False, stderr=subprocess.DEVNULL).returncode == 0)


def test_a_supervisor_that_crashes_leaves_its_traceback_beside_a_job_that_counts_as_lost(
    tmp_path: Path, installed: Path
) -> None:
    program = {"agent/supervisor/supervise.py": {"return self._records.write_end(": "return self._no_such_record("}}
    server = PretendServer(tmp_path / "home", changed_copy(installed, tmp_path / "program", program))
    try:
        job_id = server.start("exit 3")
        note = server.jobs / job_id / "supervisor.log"
        wait_until(lambda: note.exists() and "_no_such_record" in note.read_text(), "the traceback")
        wait_until(lambda: server.status(job_id)["state"] == "lost", "the state")
    finally:
        server.clean()


def _children(pid: int) -> list[int]:
    return [process.pid for process in processes.ProcessSnapshot().processes.values() if process.parent == pid]


def test_the_tests_run_the_python_they_say(server: PretendServer) -> None:
    job_id = server.start("python -c 'import sys; print(sys.version)'")
    server.wait(job_id)
    assert server.output(job_id).strip() == sys.version
