from __future__ import annotations

import errno
import os
import random
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.logs.followed_job import CHUNK
from tests.extended.agent.conftest import PATIENCE, PretendServer, changed_copy, wait_until
from tests.extended.sweeps.injection import STRACE, can_trace
from tests.processes import open_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.extended.agent.conftest import Call


def collect(
    call: Call, received: dict[tuple[str, str], bytes] | None = None
) -> tuple[dict[tuple[str, str], bytes], dict[str, Any]]:
    """Read a follow to its end; returns the bytes of every stream, each offset checked, and the final states."""
    received = {} if received is None else received
    states: dict[str, Any] = {}
    while (frame := call.next()) is not None:
        if frame.header.get("done"):
            assert call.next() is None
            return received, states
        job, stream = frame.header["job"], str(frame.header.get("stream"))
        if "status" in frame.header:
            states[job] = frame.header["status"]
            continue
        assert job not in states, "a byte after the end"
        assert len(frame.body) <= CHUNK
        if frame.header.get("reset"):
            received[job, stream] = b""
        else:
            before = received.setdefault((job, stream), b"")
            assert not before or frame.header["offset"] == len(before)
            received[job, stream] += frame.body
    raise AssertionError("the answer was cut")


def follow(server: PretendServer, *jobs: str, wait: bool = True) -> tuple[dict[tuple[str, str], bytes], dict[str, Any]]:
    """Follow jobs from their first byte to their end."""
    with server.open("follow", jobs=[{"id": job, "offsets": {}} for job in jobs], wait=wait) as call:
        return collect(call)


def start_with(server: PretendServer, line: str) -> None:
    """Have a shell do something before it becomes the control program."""
    wrapper = server.home / "python"
    wrapper.write_text(f'#!/bin/sh\n{line}\nexec {server.python} "$@"\n')
    wrapper.chmod(0o700)
    server.python = str(wrapper)


def make_folders(server: PretendServer, count: int) -> list[dict[str, Any]]:
    for number in range(count):
        (server.jobs / f"job-{number}").mkdir(parents=True)
    return [{"id": f"job-{number}"} for number in range(count)]


@pytest.mark.row(3)
def test_too_many_open_files_say_nothing_of_any_job(server: PretendServer) -> None:
    """An error of the call: the jobs are there."""
    jobs = make_folders(server, 60)
    start_with(server, "ulimit -n 40")
    answer = server.call("follow", jobs=jobs, wait=False)
    assert answer["errno"] == errno.EMFILE
    assert "job" not in answer


def test_as_many_jobs_as_the_system_allows_are_followed_at_once(server: PretendServer) -> None:
    jobs = make_folders(server, 520)
    start_with(server, "ulimit -Sn 256")
    with server.open("follow", jobs=jobs, wait=False) as call:
        frames = call.rest()
    assert [frame.header.get("error") for frame in frames] == [*["spec.json: is missing"] * 520, None]


def test_descriptors_with_high_numbers_are_waited_for_too(server: PretendServer) -> None:
    job_id = server.start("while [ ! -e go ]; do sleep 0.01; done; echo gone; exit 4")
    many = "[os.set_inheritable(os.dup(2), True) for _ in range(1100)]"
    program = f"import os, sys; {many}; os.execv(sys.argv[1], sys.argv[1:])"
    start_with(server, f'ulimit -n 4096; exec {server.python} -c "{program}" {server.python} "$@"')
    with server.open("follow", jobs=[{"id": job_id}]) as call:
        wait_until(lambda: any("inotify" in link for link in open_files(call.process.pid).values()), "the waiting")
        (server.project / "go").touch()
        received, states = collect(call)
    assert received[job_id, "out"] == b"gone\n"
    assert states[job_id]["ended"]["exit_code"] == 4


@pytest.mark.row(27)
def test_every_byte_comes_once_and_then_the_end(server: PretendServer) -> None:
    """NULs, carriage returns, no newline at the end, bytes that are no text."""
    data = bytes(range(256)) * 40 + b"\r50%\r100%"
    (server.project / "data").write_bytes(data)
    job_id = server.start("cat data; echo mistake >&2; sleep 0.2; cat data; exit 3")
    received, states = follow(server, job_id)
    assert received == {(job_id, "out"): data * 2, (job_id, "err"): b"mistake\n"}
    assert (states[job_id]["state"], states[job_id]["ended"]["exit_code"]) == ("failed", 3)
    assert states[job_id]["sizes"] == {"out": len(data) * 2, "err": 8}


@pytest.mark.row(25)
def test_output_comes_while_the_job_runs(server: PretendServer) -> None:
    """Visible at once."""
    job_id = server.start("echo first; while [ ! -e go ]; do sleep 0.01; done; echo second")
    with server.open("follow", jobs=[{"id": job_id, "offsets": {}}], wait=True) as call:
        frame = call.next()
        assert frame is not None
        assert frame.body == b"first\n"
        (server.project / "go").touch()
        received, _ = collect(call)
    assert received[job_id, "out"] == b"second\n"


def test_a_follow_resumes_where_the_last_one_ended(server: PretendServer) -> None:
    job_id = server.start("printf 0123456789; exit 0")
    server.wait(job_id)
    with server.open("follow", jobs=[{"id": job_id, "offsets": {"out": 4, "err": 0}}], wait=True) as call:
        frame = call.next()
        assert frame is not None
        assert (frame.header["offset"], frame.body) == (4, b"456789")


@pytest.mark.row(77)
def test_a_truncated_file_is_sent_again_from_the_start(server: PretendServer) -> None:
    job_id = server.start("printf 0123456789; while [ ! -e go ]; do sleep 0.01; done")
    server.wait_for_output(job_id, "9")
    with server.open("follow", jobs=[{"id": job_id, "offsets": {"out": 10}}], wait=True) as call:
        time.sleep(0.1)
        (server.jobs / job_id / "job.out").write_bytes(b"abc")
        reset, piece = call.next(), call.next()
        assert reset is not None
        assert piece is not None
        assert reset.header == {"job": job_id, "stream": "out", "reset": True}
        assert (piece.header["offset"], piece.body) == (0, b"abc")
        (server.project / "go").touch()
        call.rest()


def test_many_jobs_come_together_and_each_ends_by_itself(server: PretendServer) -> None:
    jobs = [server.new_job(f"for i in 1 2 3; do echo {number} $i; sleep 0.05; done") for number in range(6)]
    server.call("start", jobs=jobs)
    received, states = follow(server, *(job["id"] for job in jobs))
    for number, job in enumerate(jobs):
        assert received[job["id"], "out"] == f"{number} 1\n{number} 2\n{number} 3\n".encode()
        assert states[job["id"]]["state"] == "succeeded"


def test_without_waiting_it_sends_what_there_was_even_when_the_job_prints_faster_than_it_is_read(
    server: PretendServer,
) -> None:
    job_id = server.start("exec sleep 60")
    output = server.jobs / job_id / "job.out"
    output.write_bytes(b"a" * 1_000_000)
    with server.open("follow", jobs=[{"id": job_id, "offsets": {}}], wait=False) as call:
        first = call.next()
        assert first is not None
        with output.open("ab") as stream:
            stream.write(b"b" * 1_000_000)
        received, states = collect(call, {(job_id, "out"): first.body})
    assert received[job_id, "out"] == b"a" * 1_000_000
    assert states[job_id]["state"] == "running"


def test_it_ends_promptly_when_the_client_goes(server: PretendServer) -> None:
    job_id = server.start("exec sleep 60")
    with server.open("follow", jobs=[{"id": job_id, "offsets": {}}], wait=True) as call:
        wait_until(lambda: "anon_inode:inotify" in open_files(call.process.pid).values(), "inotify")
        begin = time.monotonic()
        assert call.close() == 0
        assert time.monotonic() - begin < 20


def test_a_client_that_reads_no_more_ends_it_quietly(server: PretendServer) -> None:
    job_id = server.start("while :; do head -c 100000 /dev/zero; sleep 0.01; done")
    with server.open("follow", jobs=[{"id": job_id, "offsets": {}}], wait=True) as call:
        assert call.next() is not None
        call.stdout.close()
        assert call.process.wait(PATIENCE) == 0
        assert call.process.stderr is not None
        assert call.process.stderr.read() == b""


@pytest.mark.row(3)
def test_a_job_that_is_lost_ends_the_follow(server: PretendServer) -> None:
    job_id = server.start("echo hello; exec sleep 60")
    server.wait_for_output(job_id, "hello")
    os.kill(server.supervisor(job_id), 9)
    received, states = follow(server, job_id)
    assert received[job_id, "out"] == b"hello\n"
    assert states[job_id]["state"] == "lost"


def test_a_job_that_is_not_there_is_an_error_of_that_job_only(server: PretendServer) -> None:
    job_id = server.start("echo hello")
    jobs = [{"id": "20261121-none", "offsets": {}}, {"id": "../.."}, 7, {"id": job_id, "offsets": {"out": "x"}}]
    with server.open("follow", jobs=jobs, wait=True) as call:
        headers = [frame.header for frame in call.rest()]
    assert [header["job"] for header in headers if "error" in header] == ["20261121-none", "../..", "None"]
    assert [header["status"]["state"] for header in headers if "status" in header] == ["succeeded"]


needs_strace = pytest.mark.skipif(not can_trace(), reason="strace is missing or may not trace")


def fail_reads(server: PretendServer, job_id: str, which: str) -> None:
    """Have the disk refuse these reads of a job's output, as strace counts them: ``1..3``, or ``1+`` for all."""
    inject = f"-e trace=pread64 -e inject=pread64:error=EIO:when={which}"
    path = shlex.quote(str(server.jobs / job_id / "job.out"))
    start_with(server, f'exec {STRACE} -qq -o /dev/null {inject} -P {path} {server.python} "$@"')


@needs_strace
@pytest.mark.row(151)
@pytest.mark.slow
def test_a_job_whose_output_cannot_be_read_for_a_moment_holds_up_no_other_and_loses_nothing(
    server: PretendServer,
) -> None:
    one, other = server.start("echo one; exit 3"), server.start("echo other")
    server.wait(one)
    server.wait(other)
    fail_reads(server, one, "1..3")
    with server.open("follow", jobs=[{"id": one}, {"id": other}], wait=True) as call:
        frames = call.rest()
    said = [frame.header["trouble"] for frame in frames if "trouble" in frame.header]
    assert said == ["Input/output error"], "once, and not at each try"
    assert [(frame.header["job"], frame.body) for frame in frames if frame.body] == [
        (other, b"other\n"),
        (one, b"one\n"),
    ]
    assert [frame.header["status"]["id"] for frame in frames if "status" in frame.header] == [other, one]
    assert frames[-1].header == {"done": True}


@needs_strace
@pytest.mark.row(151)
@pytest.mark.slow
def test_a_job_whose_output_cannot_be_read_at_all_is_given_up_by_itself(server: PretendServer) -> None:
    one, other = server.start("echo one; exit 3"), server.start("echo other")
    server.wait(one)
    server.wait(other)
    fail_reads(server, one, "1+")
    with server.open("follow", jobs=[{"id": one}, {"id": other}], wait=False) as call:
        frames = call.rest()
    about = [frame.header for frame in frames if frame.header.get("job") == one]
    assert about == [
        {"job": one, "trouble": "Input/output error"},
        {"job": one, "trouble": "Input/output error", "over": True},
    ]
    assert [frame.header["status"]["id"] for frame in frames if "status" in frame.header] == [other]


def write_rank(folder: Path, attempt: int, rank: int, text: str) -> None:
    """Write files as torchrun does with ``--log-dir ranks --redirects 3``."""
    path = folder / f"attempt_{attempt}" / str(rank)
    path.mkdir(parents=True, exist_ok=True)
    (path / "stdout.log").write_text(text)
    (path / "stderr.log").write_text("")


@pytest.mark.row(101, 103)
def test_files_of_ranks_are_found_as_they_appear(server: PretendServer) -> None:
    """One stream per rank, and the attempts of a restart apart."""
    job_id = server.start("while [ ! -e go ]; do sleep 0.01; done")
    run = server.jobs / job_id / "ranks" / "none_k3xyz"
    with server.open("follow", jobs=[{"id": job_id, "offsets": {}}], wait=True) as call:
        for attempt, rank in ((0, 0), (0, 1), (1, 0)):
            write_rank(run, attempt, rank, f"{attempt} {rank}")
            frame = call.next()
            assert frame is not None
            assert frame.header["stream"] == f"ranks/{attempt}/{rank}/out"
            assert frame.body == f"{attempt} {rank}".encode()
        (run / "attempt_1" / "0" / "error.json").write_text('{"message": "boom"}')
        (server.project / "go").touch()
        received, states = collect(call)
    assert received == {(job_id, "ranks/1/0/error"): b'{"message": "boom"}'}
    assert states[job_id]["sizes"]["ranks/0/1/out"] == 3


def test_a_second_torchrun_of_a_job_counts_its_attempts_on(server: PretendServer) -> None:
    job_id = server.start("true")
    server.wait(job_id)
    ranks = server.jobs / job_id / "ranks"
    write_rank(ranks / "none_zzz", 0, 0, "first")
    write_rank(ranks / "none_zzz", 1, 0, "first again")
    later = time.time_ns() + 10**9
    write_rank(ranks / "none_aaa", 0, 0, "second")
    os.utime(ranks / "none_aaa" / "attempt_0", ns=(later, later))
    received, _ = follow(server, job_id)
    assert {stream: body for (_, stream), body in received.items()} == {
        "ranks/0/0/out": b"first",
        "ranks/1/0/out": b"first again",
        "ranks/2/0/out": b"second",
    }


@pytest.mark.row(27, 101)
def test_what_comes_in_small_pieces_into_many_files_comes_once(server: PretendServer) -> None:
    """Files that appear while it is followed, in folders that appear, written to before anybody could look at them."""
    job_id = server.start_python(_MANY_PIECES, environment={"JOB": str(server.jobs)})
    received, states = follow(server, job_id)
    ranks = server.jobs / job_id / "ranks" / "none_k3xyz"
    expected = {(job_id, "out"): (server.jobs / job_id / "job.out").read_bytes()}
    for attempt, rank in ((attempt, rank) for attempt in range(3) for rank in range(2)):
        content = (ranks / f"attempt_{attempt}" / str(rank) / "stdout.log").read_bytes()
        assert content.count(b"\n") == 200
        expected[job_id, f"ranks/{attempt}/{rank}/out"] = content
    assert received == expected
    assert states[job_id]["state"] == "succeeded"


_MANY_PIECES = """
import os, pathlib, random, time
job = pathlib.Path(os.environ["JOB"], os.environ["REMOTE_TOOL_JOB_ID"])
for attempt in range(3):
    files = []
    for rank in range(2):
        folder = job / "ranks" / "none_k3xyz" / f"attempt_{attempt}" / str(rank)
        folder.mkdir(parents=True)
        files.append(open(folder / "stdout.log", "ab", buffering=0))
    for number in range(200):
        for file in files:
            file.write(b"%d %d\\n" % (attempt, number))
        print(attempt, number, flush=True)
        if random.random() < 0.05:
            time.sleep(0.01)
"""


@pytest.mark.row(25)
def test_following_a_silent_job_sleeps_until_inotify_wakes_it(server: PretendServer) -> None:
    job_id = server.start("echo first; while [ ! -e go ]; do sleep 0.05; done; echo second; exec sleep 60")
    with server.open("follow", jobs=[{"id": job_id, "offsets": {}}], wait=True) as call:
        first = call.next()
        assert first is not None
        wait_until(lambda: "anon_inode:inotify" in open_files(call.process.pid).values(), "inotify")
        before, began = _woken(call.process.pid), time.monotonic()
        time.sleep(1)
        # Looking again and again would be 20 times a second and more.
        assert (_woken(call.process.pid) - before) / (time.monotonic() - began) < 12
        (server.project / "go").touch()
        second = call.next()
        assert second is not None
        assert second.body == b"second\n"


def _woken(pid: int) -> int:
    """How often a process has gone to sleep by itself."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("voluntary_ctxt_switches")).split()[1])


@pytest.fixture
def changed_server(tmp_path: Path, installed: Path) -> Iterator[PretendServer]:
    """A server with a copy of the program that a test changes."""
    pretend = PretendServer(tmp_path / "home", changed_copy(installed, tmp_path / "program", {}))
    yield pretend
    pretend.clean()


def test_without_inotify_it_looks_again_and_again(changed_server: PretendServer) -> None:
    """Some Pythons lack ctypes, some systems inotify, and a user may have used up what he may watch."""
    (changed_server.entry.parent / "remote_tool" / "agent" / "logs" / "inotify.py").unlink()
    job_id = changed_server.start("exec sleep 60")
    with changed_server.open("follow", jobs=[{"id": job_id, "offsets": {}}], wait=True) as call:
        _check_that_lines_come(call, changed_server.jobs / job_id / "job.out")


@pytest.mark.row(25)
def test_without_inotify_it_polls(changed_server: PretendServer) -> None:
    """As on a network disk that another machine writes to."""
    mark = changed_server.home / "deaf"
    mark.touch()
    (changed_server.entry.parent / "remote_tool" / "agent" / "logs" / "inotify.py").write_text(
        _DEAF.format(mark=str(mark))
    )
    job_id = changed_server.start("exec sleep 60")
    with changed_server.open("follow", jobs=[{"id": job_id, "offsets": {}}], wait=True) as call:
        wait_until(lambda: str(mark) in open_files(call.process.pid).values(), "listening")
        _check_that_lines_come(call, changed_server.jobs / job_id / "job.out")
        wait_until(lambda: str(mark) not in open_files(call.process.pid).values(), "the end of the listening")


_DEAF = """
import os
class FolderChanges:
    is_complete = True
    def __init__(self):
        self.descriptor, self._end = os.pipe()
        self._mark = os.open({mark!r}, os.O_RDONLY)
    def watch(self, folder, owner):
        pass
    def take(self):
        return {{}}
    def close(self):
        for descriptor in (self.descriptor, self._end, self._mark):
            os.close(descriptor)
"""


def _check_that_lines_come(call: Call, output: Path) -> None:
    """Write six lines, each when the one before has come."""
    for number in range(6):
        with output.open("ab") as stream:
            stream.write(b"%d\n" % number)
        frame = call.next()
        assert frame is not None
        assert frame.body == b"%d\n" % number


def test_many_running_jobs_are_reported_after_one_scan_of_processes(changed_server: PretendServer) -> None:
    """A look takes as long as there are processes."""
    jobs = [changed_server.new_job("echo hello; exec sleep 60") for _ in range(5)]
    changed_server.call("start", jobs=jobs)
    for job in jobs:
        changed_server.wait_for_output(job["id"], "hello")
    scans = changed_server.home / "scans"
    with (changed_server.entry.parent / "remote_tool" / "agent" / "states.py").open("a") as module:
        module.write(_COUNTING.format(scans=str(scans)))
    _, told = follow(changed_server, *(job["id"] for job in jobs), wait=False)
    assert {state["state"] for state in told.values()} == {"running"}
    assert len(told) == 5
    assert scans.read_text() == "one\n"


_COUNTING = """
_scan = scan
def scan():
    with open({scans!r}, "a") as file:
        file.write("one\\n")
    return _scan()
"""


@pytest.mark.row(74)
def test_links_out_of_the_job_are_not_followed(server: PretendServer, tmp_path: Path) -> None:
    job_id = server.start("true")
    server.wait(job_id)
    (tmp_path / "secret").write_text("secret")
    write_rank(tmp_path / "outside", 0, 0, "secret")
    ranks = server.jobs / job_id / "ranks"
    (ranks / "linked").symlink_to(tmp_path / "outside")
    (ranks / "run" / "attempt_0" / "0").mkdir(parents=True)
    (ranks / "run" / "attempt_0" / "0" / "stdout.log").symlink_to(tmp_path / "secret")
    (server.jobs / job_id / "job.out").unlink()
    (server.jobs / job_id / "job.out").symlink_to(tmp_path / "secret")
    os.mkfifo(ranks / "run" / "attempt_0" / "0" / "stderr.log")
    received, states = follow(server, job_id)
    assert received == {}
    assert states[job_id]["state"] == "succeeded"


@pytest.mark.row(26, 27)
@pytest.mark.slow
def test_memory_stays_flat_whatever_is_printed(server: PretendServer) -> None:
    """One line without an end; neither the supervisor nor the follower grows."""
    job_id = server.start("head -c 300000000 /dev/zero; exec sleep 60")
    supervisor = server.supervisor(job_id)
    before = _resident(supervisor)
    with server.open("follow", jobs=[{"id": job_id, "offsets": {}}], wait=True) as call:
        received = 0
        highest = 0
        while received < 300_000_000:
            frame = call.next()
            assert frame is not None
            received += len(frame.body)
            highest = max(highest, _resident(call.process.pid)) if random.random() < 0.01 else highest
    assert highest < 40_000_000
    assert _resident(supervisor) < before + 4_000_000
    server.stop(job_id)


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as stream:  # noqa: PTH123
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
