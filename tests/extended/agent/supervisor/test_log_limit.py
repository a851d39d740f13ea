"""The output of a job is bounded, the job is not held up, and what was dropped is said (rows 26 and 76)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.protocol.sparse_files import KEPT_BEGINNING, bytes_on_disk, end_of_hole, give_back
from tests.extended.agent.conftest import PretendServer, wait_until
from tests.figures import record_figure
from tests.small_disks import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1024 * 1024
# The figure of docs/reliability.md is that of a minute.
YES_SECONDS = int(os.environ.get("TESTS_YES_SECONDS", "10"))
YES_DISK = 256 * MIB
SECONDS = 8
# Writes as fast as a disk does, never faster to catch up on a pause, and says how much at the end.
WRITER = f"""
import os, sys, time
line = b"y" * 1023 + b"\\n"
began = last = time.monotonic()
written = 0
while time.monotonic() - began < {SECONDS} or written < {128 * MIB}:
    written += os.write(1, line * 256)
    last += len(line) * 256 / 300e6
    if last > time.monotonic():
        time.sleep(max(0.0, last - time.monotonic()))
    last = max(last, time.monotonic())
os.write(2, b"%d" % written)
"""


@pytest.fixture(name="small_disk")
def small_home(tmp_path: Path, installed: Path) -> Iterator[PretendServer]:
    """A server whose home is a disk of 64 MB."""
    with server_on_disk(tmp_path / "small", installed, 64 * MIB) as server:
        yield server


@contextmanager
def server_on_disk(folder: Path, installed: Path, size: int) -> Iterator[PretendServer]:
    """A server whose home is a disk of so many bytes."""
    with small_disk(folder, f"size={size}") as home:
        server = PretendServer(home, installed)
        try:
            yield server
        finally:
            server.clean()


def memory_of(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def watch(
    server: PretendServer, job: str, is_enough: Callable[[], bool] = lambda: False
) -> tuple[list[int], list[int]]:
    """Return the memory of a job's supervisor and the disk space of its output, looked at until it ends."""
    supervisor = server.supervisor(job)
    out = server.jobs / job / "job.out"
    memory, disk = [], []
    while not (server.jobs / job / "ended.json").exists() and not is_enough():
        with suppress(OSError, IndexError):
            memory.append(memory_of(supervisor))
        disk.append(out.stat().st_blocks * 512)
        time.sleep(0.02)
    return memory, disk


@pytest.mark.row(26)
@pytest.mark.slow
def test_a_job_that_prints_300_megabytes_a_second_fills_no_small_disk_and_is_not_held_up(
    small_disk: PretendServer,
) -> None:
    (small_disk.project / "writer.py").write_text(WRITER)
    # When nobody else runs, so that other tests do not hold up the supervisor more than it.
    job = small_disk.start("exec chrt --idle 0 python -S writer.py")
    out = small_disk.jobs / job / "job.out"
    memory, disk = watch(small_disk, job)
    end = small_disk.record(job, "ended")
    assert end["exit_code"] == 0, (small_disk.jobs / job / "job.err").read_text()
    written = int((small_disk.jobs / job / "job.err").read_text())
    assert written == out.stat().st_size
    assert written > 100 * MIB
    assert max(disk) < 60 * MIB
    found = re.fullmatch(r"([0-9,]+) bytes of older output were dropped by log_limit", end["reason"])
    assert found
    # All of it but what is still there.
    assert written - 64 * MIB < int(found[1].replace(",", "")) < written
    record_figure("supervisor's memory under 300 MB/s of output (MB)", round(max(memory) / 1e6, 1))
    record_figure("output of a job on a 64 MB disk (MB)", round(written / 1e6))
    grown = max(memory) - memory[len(memory) // 4]
    assert grown < 2 * MIB


@pytest.mark.row(26)
@pytest.mark.slow
def test_yes_fills_no_small_disk_and_no_memory(tmp_path: Path, installed: Path) -> None:
    """On one CPU with its supervisor, when nobody else runs there: what delays the supervisor delays it too.

    It may not run for a second, after which a supervisor checks every 50 ms: the disk has room for what it can print
    meanwhile.
    """
    with server_on_disk(tmp_path / "home", installed, YES_DISK) as server:
        cpu = min(os.sched_getaffinity(0))
        wait = "until test -e go; do sleep 0.01; done"
        job = server.start(f"{wait}; exec chrt --idle 0 taskset --cpu-list {cpu} yes")
        out = server.jobs / job / "job.out"
        os.sched_setaffinity(server.supervisor(job), {cpu})
        (server.project / "go").touch()
        began = time.monotonic()
        memory, disk = watch(
            server, job, lambda: time.monotonic() - began > YES_SECONDS and out.stat().st_size > 2 * YES_DISK
        )
        server.stop(job)
        assert server.record(job, "ended")["killed"], (server.jobs / job / "job.err").read_text()
        assert max(disk) < YES_DISK - 16 * MIB
    assert max(memory) - memory[len(memory) // 4] < 2 * MIB
    record_figure(f"supervisor's memory under {YES_SECONDS} s of yes on a small disk (MB)", round(max(memory) / 1e6, 1))


@pytest.mark.row(149)
@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, MIB])
def test_output_that_grows_slowly_is_looked_at_seldom_though_little_room_is_left(
    small_disk: PretendServer, tmp_path: Path, limit: int | None
) -> None:
    """On a disk that others have filled up to 4 MB, and with a small limit."""
    with (small_disk.home / "others").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 60 * MIB)
    fields = {} if limit is None else {"log_limit": limit}
    job = small_disk.start("while :; do head -c 6000 /dev/zero; sleep 0.3; done", **fields)
    out = small_disk.jobs / job / "job.out"
    wait_until(lambda: out.stat().st_size > 6000 * 5, "output for more than a second")
    log = tmp_path / "calls"
    before, began = out.stat().st_size, time.monotonic()
    with trace_until_left(small_disk.supervisor(job), "trace=fstatfs", log):
        wait_until(lambda: out.stat().st_size > before + 6000 * 6, "more of it")
    looks = log.read_text().count("fstatfs(") / (time.monotonic() - began)
    record_figure("looks a second at output that grows slowly on a disk with 4 MB left", round(looks))
    assert 0 < looks < 40


@contextmanager
def trace_until_left(pid: int, what: str, log: Path) -> Iterator[None]:
    """Write down system calls of a process for a while."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is missing")
    arguments = [strace, "-e", what, "-o", str(log), "-p", str(pid)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        if "attached" not in process.stderr.readline():
            pytest.skip("strace may not look at processes here")
        try:
            yield
        finally:
            process.terminate()


@pytest.mark.row(26)
@pytest.mark.slow
def test_yes_is_bounded_by_its_log_limit(server: PretendServer) -> None:
    job = server.start("exec timeout 4 yes", log_limit=8 * MIB)
    out = server.jobs / job / "job.out"
    assert server.wait(job)[job]["exit_code"] == 124
    assert out.stat().st_size > 64 * MIB
    # Beyond its limit by what is written between two looks.
    wait_until(lambda: out.stat().st_blocks * 512 < out.stat().st_size / 2, "the hole")
    with out.open("rb") as file:
        assert file.read(KEPT_BEGINNING) == b"y\n" * (KEPT_BEGINNING // 2)
        file.seek(-4, os.SEEK_END)
        assert file.read() in {b"y\ny\n", b"\ny\ny"}


@pytest.mark.row(26)
@pytest.mark.slow
def test_a_follower_gets_no_zeros_for_what_is_dropped_while_it_reads(server: PretendServer) -> None:
    job = server.start("exec timeout 3 yes", log_limit=MIB)
    position = 0
    with server.open("follow", jobs=[{"id": job, "offsets": {}}]) as call:
        while (frame := call.next()) is not None:
            if frame.header.get("stream") != "out":
                continue
            assert frame.header["offset"] == position + frame.header.get("skipped", 0)
            position = frame.header["offset"] + len(frame.body)
            assert frame.body.count(b"y") + frame.body.count(b"\n") == len(frame.body)
    assert position == (server.jobs / job / "job.out").stat().st_size > 64 * MIB


@pytest.mark.row(26)
def test_a_hole_in_the_middle_of_a_piece_is_not_sent_as_zeros(server: PretendServer) -> None:
    job = server.start("true")
    server.wait(job)
    out = server.jobs / job / "job.out"
    out.write_bytes(b"y" * 2 * MIB)
    with out.open("rb+") as file:
        give_back(file.fileno(), MIB)
    with server.open("follow", jobs=[{"id": job, "offsets": {"out": KEPT_BEGINNING - 10}}]) as call:
        frames = [frame for frame in call.rest() if frame.header.get("stream") == "out"]
    assert frames[0].body == b"y" * 10
    assert all(set(frame.body) <= set(b"y") for frame in frames)


@pytest.mark.row(26)
def test_a_follower_skips_what_was_dropped_and_gets_every_other_byte(server: PretendServer) -> None:
    job = server.start("true")
    server.wait(job)
    out = server.jobs / job / "job.out"
    content = os.urandom(4 * MIB)
    out.write_bytes(content)
    with out.open("rb+") as file:
        dropped = give_back(file.fileno(), MIB)
    assert dropped > 2 * MIB
    with server.open("follow", jobs=[{"id": job, "offsets": {}}]) as call:
        frames = [frame for frame in call.rest() if frame.header.get("stream") == "out"]
    received = bytearray(len(content))
    position = 0
    for frame in frames:
        assert frame.header["offset"] == position + frame.header.get("skipped", 0)
        position = frame.header["offset"] + len(frame.body)
        received[frame.header["offset"] : position] = frame.body
    assert position == len(content)
    (skipped,) = [frame for frame in frames if "skipped" in frame.header]
    hole = slice(KEPT_BEGINNING, KEPT_BEGINNING + skipped.header["skipped"])
    assert skipped.header["skipped"] == dropped
    assert bytes(received[: hole.start]) == content[: hole.start]
    assert bytes(received[hole.stop :]) == content[hole.stop :]


@pytest.mark.row(26)
@pytest.mark.slow
def test_without_holes_in_files_the_output_stays_complete_with_a_notice(server: PretendServer) -> None:
    """Such as NFS before 4.2; the answer of such a one is put into the calls of the supervisor."""
    if shutil.which("strace") is None:
        pytest.skip("strace is missing")
    wrapper = server.home / "python"
    refuse = "strace -D -f --seccomp-bpf -qq -o /dev/null -e trace=fallocate -e inject=fallocate:error=EOPNOTSUPP"
    wrapper.write_text(f'#!/bin/sh\nexec {refuse} {server.python} "$@"\n')
    wrapper.chmod(0o700)
    server.python = str(wrapper)
    job = server.start(f"head -c {4 * MIB} /dev/zero | tr '\\0' y; sleep 5", log_limit=MIB)
    end = server.wait(job)[job]
    assert end["exit_code"] == 0
    assert end["reason"] == (
        "its output exceeds log_limit, and the oldest part could not be dropped: Operation not supported"
    )
    assert server.output(job) == "y" * 4 * MIB


@pytest.mark.row(76)
def test_a_sparse_bomb_is_skipped_and_not_sent(server: PretendServer) -> None:
    job = server.start("echo before; truncate -s 1T .jobs/$REMOTE_TOOL_JOB_ID/job.out; echo after")
    server.wait(job)
    with server.open("follow", jobs=[{"id": job, "offsets": {}}]) as call:
        frames = [frame for frame in call.rest() if frame.header.get("stream") == "out"]
    sent = b"".join(frame.body for frame in frames)
    assert sent.startswith(b"before\n")
    assert sent.endswith(b"after\n")
    assert len(sent) < MIB
    assert sum(frame.header.get("skipped", 0) for frame in frames) > 2**40 - MIB


def test_the_beginning_and_the_newest_part_stay(tmp_path: Path) -> None:
    content = os.urandom(6 * MIB)
    path = tmp_path / "file"
    path.write_bytes(content)
    with path.open("rb+") as file:
        assert give_back(file.fileno(), 8 * MIB) == 0
        dropped = give_back(file.fileno(), 2 * MIB)
        assert bytes_on_disk(file.fileno()) <= 2 * MIB
        assert path.stat().st_size == len(content)
        assert file.read(KEPT_BEGINNING) == content[:KEPT_BEGINNING]
        assert end_of_hole(file.fileno(), KEPT_BEGINNING, len(content)) == KEPT_BEGINNING + dropped
        file.seek(KEPT_BEGINNING + dropped)
        assert file.read() == content[KEPT_BEGINNING + dropped :]
        assert give_back(file.fileno(), 2 * MIB) == 0


@pytest.mark.parametrize("limit", ["8", 1.5, -1, True])
def test_an_invalid_limit_is_refused(server: PretendServer, limit: object) -> None:
    answer = server.call("start", jobs=[server.new_job("true", log_limit=limit)])
    assert "its log_limit cannot be" in answer["error"]
