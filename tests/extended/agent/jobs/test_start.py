from __future__ import annotations

import contextlib
import os
import secrets
import signal
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.proc import processes
from remote_tool.protocol import limits
from tests.below import contents_below
from tests.extended.agent.conftest import PretendServer, changed_copy, wait_for_text, wait_until
from tests.processes import open_files, read_of
from tests.small_disks import small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.row(9, 21)
def test_a_start_that_takes_longer_than_its_answer_is_not_called_failed(tmp_path: Path, installed: Path) -> None:
    slow, go = "        plan = _plan(call, job)\n", tmp_path / "go"
    held = f"        while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    changes = {"agent/jobs/start.py": {"_START_SECONDS = 10.0": "_START_SECONDS = 0.0", slow: held + slow}}
    server = PretendServer(tmp_path / "home", changed_copy(installed, tmp_path / "impatient", changes))
    jobs = [server.new_job("exec sleep 60") for _ in range(5)]
    answers = server.call("start", jobs=jobs)["jobs"]
    go.touch()
    assert [answer for answer in answers if "error" in answer] == []
    assert {answer.get("state") for answer in answers} == {"starting"}
    ids = [str(job["id"]) for job in jobs]
    wait_until(lambda: all((server.jobs / job).exists() for job in ids), "their folders")
    wait_until(lambda: {server.status(job)["state"] for job in ids} == {"running"}, "the start of all")
    server.clean()


@pytest.mark.row(13, 14)
def test_a_start_answers_while_the_job_runs_and_leaves_it_no_descriptor(server: PretendServer) -> None:
    """Own session, nothing inherited, so nothing of the connection holds it."""
    begin = time.monotonic()
    job_id = server.start("exec sleep 60")
    assert time.monotonic() - begin < 30
    status = server.status(job_id)
    assert status["state"] == "running"
    assert status["alive"]
    pid = status["started"]["pid"]
    wait_until(lambda: Path(f"/proc/{pid}/exe").readlink().name == "sleep", "exec")
    folder = server.jobs / job_id
    streams = {0: "/dev/null", 1: f"{folder}/job.out", 2: f"{folder}/job.err"}
    # A program opens its libraries first, and a supervisor looks at the output now and then.
    wait_until(lambda: open_files(pid) == streams, "the command's descriptors alone")
    supervisor = server.supervisor(job_id)
    own = {"/dev/null", str(folder), f"{folder}/reserve"}
    wait_until(lambda: set(open_files(supervisor).values()) == own, "the supervisor's descriptors alone")
    assert {number: open_files(supervisor)[number] for number in (0, 1, 2)} == dict.fromkeys((0, 1, 2), "/dev/null")
    assert len({os.getsid(pid), os.getsid(supervisor), os.getsid(0)}) == 3
    assert Path(f"/proc/{pid}/cwd").readlink() == server.project


@pytest.mark.row(14)
def test_a_hangup_does_not_reach_a_job(server: PretendServer) -> None:
    job_id = server.start("until [ -e go ]; do sleep 0.01; done; echo survived")
    os.kill(server.supervisor(job_id), signal.SIGHUP)
    (server.project / "go").touch()
    assert server.wait(job_id)[job_id]["exit_code"] == 0
    assert server.output(job_id) == "survived\n"


def test_a_job_has_the_signals_of_a_fresh_process(server: PretendServer) -> None:
    job_id = server.start("grep -E '^Sig(Blk|Ign)' /proc/self/status")
    server.wait(job_id)
    # The C library keeps 32 and 33 for itself: whoever ignores them, no program can change it.
    reserved = 1 << 31 | 1 << 32
    sets = [int(line.split()[1], 16) & ~reserved for line in server.output(job_id).splitlines()]
    assert sets == [0, 0]


@pytest.mark.row(9)
def test_a_second_start_of_an_id_finds_the_first(server: PretendServer) -> None:
    """A retry after a lost answer starts nothing."""
    job = server.new_job("echo once >> counted; sleep 60")
    first = server.call("start", jobs=[job])["jobs"][0]
    second = server.call("start", jobs=[job])["jobs"][0]
    assert (first["already"], second["already"]) == (False, True)
    assert second["started"] == first["started"]
    assert second["spec"] == first["spec"]
    assert wait_for_text(server.project / "counted") == "once\n"


@pytest.mark.row(70)
def test_nothing_starts_on_half_a_project(server: PretendServer) -> None:
    running = server.new_job("true")
    server.call("start", jobs=[running])
    (server.scripts / "sync").write_text("incomplete 0123\n")
    refused = server.new_job("touch started")
    answer = server.call("start", jobs=[refused])
    assert "is incomplete: its last sync" in answer["error"]
    assert answer["hint"] == "remote-tool rsync"
    assert not (server.jobs / refused["id"]).exists()
    retried = server.call("start", jobs=[running])["jobs"][0]
    assert retried["already"], "a retry of a start that was answered finds its job"
    (server.scripts / "sync").write_text("complete 0123\n")
    server.start("true")


@pytest.mark.row(123)
def test_a_retry_that_finds_a_torn_folder_says_so_and_starts_the_other_jobs(server: PretendServer) -> None:
    torn, good = server.new_job("true"), server.new_job("true")
    (server.jobs / torn["id"]).mkdir(parents=True)
    answer = server.call("start", jobs=[torn, good])["jobs"]
    assert answer[0]["already"]
    assert "spec.json: is missing" in answer[0]["error"]
    assert answer[1]["started"]


@pytest.mark.row(10)
@pytest.mark.slow
def test_of_twenty_starts_at_once_exactly_one_runs(server: PretendServer) -> None:
    """Its folder appears once, whoever makes it."""
    job = server.new_job("echo once >> counted; exec sleep 60")
    calls = [server.open("start", jobs=[job]) for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        answers = [frames[0].header["jobs"][0] for frames in pool.map(lambda call: call.rest(), calls)]
    for call in calls:
        call.close()
    assert sorted(answer["already"] for answer in answers) == [False] + [True] * 19
    assert len({answer["started"]["pid"] for answer in answers}) == 1
    assert wait_for_text(server.project / "counted") == "once\n"
    assert len(server.members(job["id"])) == 1


def test_several_jobs_start_in_one_call(server: PretendServer) -> None:
    jobs = [server.new_job(f"exit {number}") for number in range(5)]
    answer = server.call("start", jobs=jobs)
    assert [job["id"] for job in answer["jobs"]] == [job["id"] for job in jobs]
    ended = server.wait(*(job["id"] for job in jobs))
    assert [ended[job["id"]]["exit_code"] for job in jobs] == list(range(5))


@pytest.mark.row(55, 107)
@pytest.mark.row(55)
def test_a_command_may_be_long_and_hold_any_character(server: PretendServer) -> None:
    """No argv limit, no quoting."""
    text = 'it\'s "$HOME" `x` !! \\ \u00e4 \U0001f600'
    job_id = server.start(f"cat <<'END'\n{text}\nEND\n: {'x' * 400_000}\n")
    assert server.wait(job_id)[job_id]["exit_code"] == 0
    assert server.output(job_id) == f"{text}\n"
    spec = server.record(job_id, "spec")
    assert len(spec["command"]) < spec["command_length"]


@pytest.mark.row(113)
def test_files_of_a_job_are_private_and_the_job_has_the_umask_of_the_login(server: PretendServer) -> None:
    before = os.umask(0o002)
    try:
        job_id = server.start("umask; touch made")
    finally:
        os.umask(before)
    server.wait(job_id)
    assert server.output(job_id) == "0002\n"
    assert stat.S_IMODE((server.project / "made").stat().st_mode) == 0o664
    assert stat.S_IMODE(server.jobs.stat().st_mode) == 0o700
    for path in [server.jobs / job_id, *(server.jobs / job_id).iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.row(99)
def test_the_environment_of_a_job(server: PretendServer) -> None:
    """What "Environment of a job" of the interface says, and nothing that torch would read by accident."""
    server.activate(variables={"CONDA_PREFIX": "/prefix", "LR": "activated"}, unset=["GONE"], path=["/prefix/bin"])
    strays = ["MASTER_ADDR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "PET_NNODES", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"]
    login = {**dict.fromkeys(strays, "stray"), "GONE": "1", "KEPT": "1", "PYTHONPATH": "/login", "OLDPWD": "/x"}
    job = server.new_job("env -0", environment={"LR": "0.1\n'\"$x", "RANK": "7", "PYTHONUNBUFFERED": ""})
    server.call("start", jobs=[job], login=login)
    server.wait(job["id"])
    found = dict(item.split("=", 1) for item in server.output(job["id"]).split("\0") if item)
    assert found["LR"] == "0.1\n'\"$x"
    assert found["RANK"] == "7"
    assert found["PYTHONUNBUFFERED"] == ""
    assert found["CONDA_PREFIX"] == "/prefix"
    assert found["PATH"] == f"/prefix/bin:{os.environ['PATH']}"
    hook = server.entry.parent / "remote_tool" / "agent" / "hook"
    assert found["PYTHONPATH"] == f"{hook}:{server.project}:{server.project}/src:/login"
    assert found["PWD"] == str(server.project)
    assert found["REMOTE_TOOL_JOB_ID"] == job["id"]
    assert found["REMOTE_TOOL_SERVER"] == "first"
    assert found["KEPT"] == "1"
    assert not {"GONE", "REMOTE_TOOL_SUPERVISOR", "OLDPWD", *strays} - {"RANK"} & set(found)


@pytest.mark.row(25)
def test_output_is_not_buffered_and_survives_a_hard_end(server: PretendServer) -> None:
    program = (
        "import os, time\nprint('first')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('last'); os._exit(5)"
    )
    job_id = server.start_python(program)
    server.wait_for_output(job_id, "first\n")
    (server.project / "go").touch()
    assert server.wait(job_id)[job_id]["exit_code"] == 5
    assert server.output(job_id) == "first\nlast\n"


@pytest.mark.row(111)
def test_environment_values_are_never_written_or_shown(server: PretendServer) -> None:
    """Neither in a file nor in any argument list."""
    secret = secrets.token_hex(16)
    job_id = server.start("sleep 60; : $TOKEN", environment={"TOKEN": secret})
    assert server.record(job_id, "spec")["environment_names"] == ["TOKEN"]
    for path, content in contents_below(server.home):
        assert secret.encode() not in content, path
    for process in processes.ProcessSnapshot().processes.values():
        if process.pid != os.getpid():
            assert secret.encode() not in read_of(process.pid, "cmdline")


@pytest.mark.row(107, 154)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "../x"}, "without a valid id"),
        ({"command": None}, "its command is not text"),
        ({"command": "a\0b"}, "command cannot hold a NUL"),
        ({"command": "x" * (limits.LONGEST_COMMAND + 1)}, "at most 4,194,304 are possible"),
        ({"environment": {"A": "x" * limits.LONGEST_VARIABLE}}, "A has 131,073 bytes with its name"),
        ({"environment": {"A B": "1"}}, "'A B' is not a valid environment variable name"),
        ({"environment": {"A": 1}}, "value of the environment variable A"),
        ({"environment": {"REMOTE_TOOL_JOB_ID": "x"}}, "is reserved by remote-tool"),
        ({"grace": -1}, "grace cannot be -1"),
        ({"tags": "sweep"}, "tags cannot be 'sweep'"),
        ({"tags": ["x"] * 101}, "is given 101 times"),
        ({"tags": ["x" * 1025]}, "has 1,025 characters"),
        ({"tags": [chr(0x1F600) * 1000] * 100}, "has 400,000 bytes in all tags"),
        ({"environment": {f"{'A' * 100}{n}": "" for n in range(12_000)}}, "spec.json would have"),
        ({"server": "x" * 257}, "server cannot be"),
        ({"launch_id": "../x"}, "launch_id cannot be"),
        ({"node_rank": 100_001}, "node_rank cannot be"),
        ({"rank_offset": 10_000_001}, "rank_offset cannot be"),
        ({"created_at": -1}, "created_at cannot be"),
    ],
)
def test_an_invalid_request_is_refused_and_starts_nothing(
    server: PretendServer, changes: dict[str, Any], message: str
) -> None:
    answer = server.call("start", jobs=[server.new_job("touch started"), server.new_job("true", **changes)])
    assert message in answer["error"]
    assert not server.jobs.exists()


def start_with(server: PretendServer, line: str) -> None:
    """Have a shell do something before it becomes the control program."""
    wrapper = server.home / "python"
    wrapper.write_text(f'#!/bin/sh\n{line}\nexec {server.python} "$@"\n')
    wrapper.chmod(0o700)
    server.python = str(wrapper)


def occupy(server: PretendServer, job: dict[str, Any]) -> None:
    """Have something else where the job's folder would be."""
    server.jobs.mkdir(mode=0o700)
    (server.jobs / job["id"]).write_text("")
    server.ids.remove(job["id"])


@pytest.mark.slow
@pytest.mark.row(153)
@pytest.mark.parametrize("limit", ["ulimit -Sn 48", "ulimit -n 48"], ids=["that may be raised", "that may not"])
def test_more_jobs_than_open_files_are_started_by_one_call(server: PretendServer, limit: str) -> None:
    """And each has the limit of the login again: its own programs may use select."""
    start_with(server, limit)
    jobs = [server.new_job("ulimit -Sn") for _ in range(80)]
    answers = server.call("start", jobs=jobs)["jobs"]
    assert [answer["id"] for answer in answers] == [job["id"] for job in jobs]
    assert {(answer.get("error"), answer["begun"], answer["already"]) for answer in answers} == {(None, True, False)}
    server.wait(*server.ids)
    assert {server.output(job_id) for job_id in server.ids} == {"48\n"}


@pytest.mark.slow
@pytest.mark.row(153)
def test_more_jobs_than_may_be_open_files_are_stopped_by_one_call(server: PretendServer) -> None:
    jobs = [server.new_job("exec sleep 60") for _ in range(60)]
    server.call("start", jobs=jobs)
    start_with(server, "ulimit -n 40")
    stopped = server.call("stop", ids=server.ids, signal="SIGKILL")["jobs"]
    assert {(job["state"], job.get("error")) for job in stopped} == {("killed", None)}


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(153)
def test_descriptors_over_1024_are_waited_for_when_jobs_start(server: PretendServer) -> None:
    """As with so many jobs; an entry's program is asked with such descriptors too."""
    many = "[os.set_inheritable(os.dup(2), True) for _ in range(1100)]"
    program = f"import os, sys; {many}; os.execv(sys.argv[1], sys.argv[1:])"
    start_with(server, f'ulimit -n 4096; exec {server.python} -c "{program}" {server.python} "$@"')
    assert server.wait(server.start("exit 3"))[server.ids[0]]["exit_code"] == 3


@pytest.mark.row(153)
def test_a_job_that_cannot_start_fails_alone_and_is_reported_as_not_started(server: PretendServer) -> None:
    """Its folder cannot get its name: a file of that name is there."""
    good, bad, last = (server.new_job("exec sleep 60") for _ in range(3))
    occupy(server, bad)
    answers = server.call("start", jobs=[good, bad, last])["jobs"]
    assert [answer["begun"] for answer in answers] == [True, False, True]
    assert [bool(answer.get("error")) for answer in answers] == [False, True, False]
    assert [server.status(job["id"])["state"] for job in (good, last)] == ["running"] * 2


@pytest.mark.row(153)
def test_a_job_requested_before_is_never_reported_as_not_started(server: PretendServer) -> None:
    """The first try may still be at work."""
    bad = server.new_job("true")
    occupy(server, bad)
    assert server.call("start", jobs=[bad], again=True)["jobs"][0]["begun"] is True
    (server.scripts / "activation.json").unlink()
    assert server.call("start", jobs=[bad])["begun"] is False
    assert server.call("start", jobs=[bad], again=True)["begun"] is True


@pytest.mark.picked
@pytest.mark.row(153)
def test_an_answer_that_would_be_too_long_leaves_out_jobs_which_run_all_the_same(server: PretendServer) -> None:
    tags = ["\x01" * 1000] * 100
    jobs = [server.new_job("exec sleep 60", tags=tags) for _ in range(8)]
    answers = server.call("start", jobs=jobs)["jobs"]
    assert 0 < len(answers) < len(jobs)
    assert {server.status(job_id)["state"] for job_id in server.ids} == {"running"}


def test_without_an_environment_the_answer_has_the_next_command(server: PretendServer) -> None:
    (server.scripts / "activation.json").unlink()
    answer = server.call("start", jobs=[server.new_job("true")])
    assert answer.pop("error") == "The environment is not set up on this server"
    assert answer == {"hint": "remote-tool setup", "begun": False}


@pytest.mark.row(113)
def test_a_jobs_folder_that_is_a_link_is_not_used(server: PretendServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    server.jobs.symlink_to(tmp_path / "other")
    assert "symbolic link" in server.call("start", jobs=[server.new_job("true")])["error"]
    assert not list((tmp_path / "other").iterdir())


def test_a_command_that_cannot_be_run_is_a_failed_job_with_the_reason(server: PretendServer) -> None:
    """The login's own variables are large already."""
    many = {f"MANY_{number}": "x" * 100_000 for number in range(18)}
    job = server.new_job("true", environment=many)
    with server.open("start", jobs=[job], login={f"LOGIN_{number}": "x" * 100_000 for number in range(4)}) as call:
        answer = call.rest()[0].header["jobs"][0]
    assert "Argument list too long" in answer["ended"]["reason"]
    assert server.status(job["id"])["state"] == "failed"
    assert not server.members(job["id"])


def test_leftovers_of_a_killed_start_are_removed_after_an_hour(server: PretendServer) -> None:
    server.jobs.mkdir()
    for name, age in ((".starting-old", 7200), (".starting-new", 10)):
        (server.jobs / name / "ranks").mkdir(parents=True)
        (server.jobs / name / "job.out").touch()
        os.utime(server.jobs / name, (time.time() - age,) * 2)
    server.start("true")
    assert sorted(path.name for path in server.jobs.glob(".s*")) == [".starting-new"]


@pytest.mark.picked
@pytest.mark.row(20)
def test_a_job_that_a_job_starts_is_not_ended_with_it(server: PretendServer) -> None:
    """The inner start finds the outer job's mark in its own environment and drops it."""
    inner = server.new_job("exec sleep 61")
    request = {"nonce": "0" * 16, "op": "start", **server.folders, "jobs": [inner]}
    (server.project / "start.py").write_text(
        "import json, subprocess\n"
        f"line = json.dumps({request!r}).encode() + b'\\n'\n"
        f"subprocess.run([{server.python!r}, '-I', '-S', {str(server.entry)!r}], input=line, stdout=-3)\n"
    )
    outer = server.start("python start.py; exec sleep 60")
    started = wait_until((server.jobs / inner["id"] / "started.json").exists)
    assert started
    survivor = server.record(inner["id"], "started")["pid"]
    assert server.stop(outer)["state"] == "killed"
    assert server.members(outer) == []
    assert server.status(inner["id"])["state"] == "running"
    assert server.members(inner["id"]) == [survivor]


@pytest.mark.row(20)
def test_two_jobs_are_ended_one_by_one(server: PretendServer) -> None:
    first, second = server.start("exec sleep 60"), server.start("exec sleep 60")
    server.stop(first)
    assert server.status(second)["state"] == "running"


@pytest.fixture(name="small_disk")
def small_jobs_disk(own_home: PretendServer) -> Iterator[Path]:
    """A file system of its own for the jobs folder, with little room."""
    with small_disk(own_home.jobs, "size=1m,nr_inodes=20,mode=0700") as folder:
        yield folder
        own_home.clean()


@pytest.mark.row(29)
def test_a_full_disk_at_the_start_is_named_and_nothing_stays(own_home: PretendServer, small_disk: Path) -> None:
    """Path and errno in one sentence, and no half of a job."""
    _fill(small_disk / "filler")
    job = own_home.new_job("true")
    answer = own_home.call("start", jobs=[job])["jobs"][0]
    assert answer["error"] == f"{small_disk}/{job['id']}: No space left on device (errno 28)"
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.row(29)
def test_a_disk_without_inodes_or_read_only_is_named(own_home: PretendServer, small_disk: Path) -> None:
    for number in range(16):
        (small_disk / f"filler{number}").touch()
    assert "No space left" in own_home.call("start", jobs=[own_home.new_job("true")])["jobs"][0]["error"]
    assert all(path.name.startswith(("filler", ".folder-id")) for path in small_disk.iterdir())
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert (
        "Read-only file system (errno 30)"
        in own_home.call("start", jobs=[own_home.new_job("true")])["jobs"][0]["error"]
    )


@pytest.mark.row(28)
def test_a_job_that_fills_the_disk_is_still_recorded_and_can_be_stopped(
    own_home: PretendServer, small_disk: Path
) -> None:
    """The final record has its space from the start."""
    filling = "while head -c 65536 /dev/zero; do :; done; echo full >&2; "
    ended = own_home.start(f"{filling} exit 9")
    assert own_home.wait(ended)[ended]["exit_code"] == 9
    assert own_home.status(ended)["state"] == "failed"
    (small_disk / ended / "job.out").unlink()
    running = own_home.start(f"{filling} touch 'is full'; exec sleep 60")
    wait_until((own_home.project / "is full").exists)
    _fill(small_disk / ended / "job.err")
    stopped = own_home.stop(running)
    assert stopped["state"] == "killed"
    assert stopped["ended"]["reason"] == "stopped by a signal to its supervisor"
    assert own_home.members(running) == []


def _fill(path: Path) -> None:
    with path.open("ab", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"x" * 4096)


@pytest.mark.row(28)
@pytest.mark.parametrize("when", ["before it waits", "while it waits"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_job_that_waits_on_a_full_disk_is_stopped_at_once(
    own_home: PretendServer, small_disk: Path, when: str, name: str
) -> None:
    first = own_home.start("sleep 600")
    job = own_home.new_job("true", after=[first])
    queued = small_disk / job["id"] / "queued"
    own_home.call("start", jobs=[job])
    wait_until(queued.exists)
    if when == "before it waits":
        # As if it had never been written: the disk had no room for it.
        queued.unlink()
    _fill(small_disk / "filler")
    began = time.monotonic()
    assert own_home.stop(job["id"], signal=name)["state"] == "killed"
    assert time.monotonic() - began < 10
