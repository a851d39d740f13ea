"""A frozen job runs the code that its record says, however long it waits and whoever syncs meanwhile."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import PATIENCE, HeldRequest, until
from tests.small_disks import small_disk
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.promises.conftest import Desk


@pytest.fixture
def one_gpu(desk: Desk) -> Iterator[Path]:
    """The folder of the server's nvidia-smi, which reports one free GPU."""
    folder = desk.servers["first"].programs
    put_nvidia_smi(folder, gpu_line(0, load=0, used=1))
    yield folder
    # The server is shared.
    shutil.rmtree(folder)


@pytest.mark.row(291)
def test_a_launch_that_waits_for_gpus_runs_the_code_that_it_sent(desk: Desk, one_gpu: Path) -> None:
    assert one_gpu.exists()
    go = desk.there().parent / f"go-{desk.there().name}"
    (desk.root / "code.sh").write_text("echo old\n")
    desk.does("job-run", "--gpus", "1", "--cmd", f"until [ -e {go} ]; do sleep 0.1; done")
    desk.waits_for(1, "running")
    launch = desk.runs_meanwhile("helper-launch", "--server", "first", "--gpus", "1", "--wait", "--cmd", "sh code.sh")
    assert launch.stdout is not None
    said = ""
    try:
        while "the launch waits" not in said:
            line = launch.stdout.readline()
            assert line, said
            said += line
        (desk.root / "code.sh").write_text("echo newer\n")
        desk.does("rsync")
        desk.does("clean", "--yes")
        go.touch()
        rest = launch.communicate(timeout=PATIENCE)[0]
        assert launch.returncode == 0, said + rest
    finally:
        go.touch()
        launch.kill()
        launch.wait()
    desk.waits_for(2, "succeeded")
    assert desk.does("job-tail", "2", "--no-follow").strip().endswith("old")
    assert (desk.there() / "code.sh").read_text() == "echo newer\n"
    until(lambda: desk.job(1)["state"] == "succeeded", "the end of the first job")
    desk.does("clean", "--yes")
    assert list((desk.there() / ".remote-scripts" / "copies").iterdir()) == []


@pytest.mark.row(291)
def test_a_shard_that_starts_after_another_sync_runs_the_code_of_its_fan_out(desk: Desk) -> None:
    go = desk.there().parent / f"go-{desk.there().name}"
    (desk.root / "code.sh").write_text("echo old\n")
    (desk.root / "items.txt").write_text("one\ntwo\n")
    command = f"sh code.sh; echo {{item}}; until [ -e {go} ]; do sleep 0.1; done"
    words = ("--server", "first", "--frozen", "--items", "items.txt", "--per-server", "1", "--follow")
    work = desk.runs_meanwhile("helper-fan-out", *words, "--cmd", command)
    try:
        until(lambda: any(job["state"] == "running" for job in desk.jobs()), "the first shard")
        (desk.root / "code.sh").write_text("echo newer\n")
        desk.does("rsync")
        go.touch()
        said = work.communicate(timeout=PATIENCE)[0]
        assert work.returncode == 0, said
    finally:
        go.touch()
        work.kill()
        work.wait()
    keys = [job["key"] for job in desk.jobs()]
    assert len(keys) == 2
    for key in keys:
        said = desk.does("job-tail", str(key), "--no-follow")
        assert ("old" in said, "newer" in said) == (True, False)


@pytest.mark.row(294)
def test_a_large_file_of_a_frozen_job_survives_a_sync_that_replaces_it(desk: Desk) -> None:
    (desk.root / "large").write_bytes(b"a" * 5_000_000)
    desk.does("job-run", "--frozen", "--cmd", f"until [ -e {desk.root}/go ]; do sleep 0.05; done; sha256sum < large")
    (desk.root / "large").write_bytes(b"b" * 5_000_000)
    desk.does("rsync")
    (desk.root / "go").touch()
    desk.waits_for(1, "succeeded")
    assert desk.does("job-tail", "1").split()[0] == hashlib.sha256(b"a" * 5_000_000).hexdigest()


@pytest.mark.row(292)
def test_a_start_that_is_killed_while_it_copies_leaves_nothing_that_is_taken_for_a_copy(
    desk: Desk, tmp_path: Path
) -> None:
    (desk.root / "many").mkdir()
    names = {f"{number}.txt" for number in range(1000)}
    for name in names:
        (desk.root / "many" / name).touch()
    copies = desk.there() / ".remote-scripts" / "copies"

    def half() -> list[Path]:
        return [copy for copy in copies.glob("*") if len([*copy.glob("code/many/*")]) < len(names)]

    # The pid of what answers each request is written down.
    HeldRequest(desk, f"! echo $$ > {tmp_path}/pid")
    for attempt in range(20):
        (desk.root / "attempt.txt").write_text(f"{attempt}\n")
        desk.does("rsync")
        before = {*copies.glob("*")}
        with desk.runs_meanwhile("job-run", "--no-sync", "--frozen", "--cmd", "true") as start:
            # Copying takes a fraction of a second, and now and then it is over before it is seen.
            while start.poll() is None and not any([*new.glob("code/many/*")] for new in {*copies.glob("*")} - before):
                pass
            with suppress(ProcessLookupError):
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
            start.communicate()
        if half():
            break
    else:
        pytest.fail("no start was killed while it copied")
    desk.does("job-run", "--no-sync", "--frozen", "--follow", "--cmd", "ls many > there.txt")
    assert {*(desk.there() / "there.txt").read_text().split()} == names
    assert half() == []


@pytest.mark.row(291)
def test_everything_that_leads_to_the_project_leads_into_the_copy(desk: Desk) -> None:
    go = desk.there().parent / f"go-{desk.there().name}"
    desk.configure(setup=f"until [ -e {go} ]; do sleep 0.05; done; cat code.txt")
    for name in ("code.txt", "inside.py"):
        (desk.root / name).write_text("print('old')\n")
    show = 'pwd -P; echo "$REMOTE_TOOL_PROJECT"; cd /; cat "$REMOTE_TOOL_PROJECT/code.txt"; python -m inside'
    desk.does("job-run", "--frozen", "--cmd", show)
    for name in ("code.txt", "inside.py"):
        (desk.root / name).write_text("print('newer')\n")
    desk.does("rsync")
    go.touch()
    desk.waits_for(1, "succeeded")
    assert (desk.there() / "inside.py").read_text() == "print('newer')\n"
    said = desk.does("job-tail", "1", "--no-follow").split("\n")
    (copy,) = (desk.there() / ".remote-scripts" / "copies").glob("*/code")
    assert said[:5] == ["print('old')", str(copy), str(copy), "print('old')", "old"]


@pytest.mark.row(292)
def test_a_disk_without_room_for_a_copy_refuses_the_start_and_has_no_part_of_one(desk: Desk) -> None:
    for number in range(3):
        (desk.root / f"{number}.bin").write_bytes(os.urandom(900_000))
    desk.does("rsync")
    copies = desk.there() / ".remote-scripts" / "copies"
    with small_disk(copies, "size=2m"):
        said = desk.refuses("job-run", "--no-sync", "--frozen", "--cmd", "touch began")
        assert "No space left on device" in said
        assert list(copies.iterdir()) == []
    assert not (desk.there() / "began").exists()


@pytest.mark.row(294)
def test_a_job_whose_large_file_was_changed_in_place_while_it_waited_fails_and_names_it(desk: Desk) -> None:
    go = desk.there().parent / f"go-{desk.there().name}"
    (desk.root / "large").write_bytes(bytes(5_000_000))
    desk.does("job-run", "--cmd", f"until [ -e {go} ]; do sleep 0.05; done")
    desk.does("job-run", "--frozen", "--after", "1", "--no-sync", "--cmd", "touch began")
    (copied,) = (desk.there() / ".remote-scripts" / "copies").glob("*/code/large")
    is_shared = copied.stat().st_nlink > 1
    with (desk.there() / "large").open("r+b") as file:
        file.write(b"x")
    go.touch()
    if not is_shared:
        pytest.skip("this file system has reflinks")
    assert "large changed since the job was given" in desk.waits_for(2, "failed", "succeeded")["reason"]
    assert not (desk.there() / "began").exists()


@pytest.mark.row(295)
def test_a_copy_stays_while_a_start_may_need_it_or_a_record_cannot_be_read(desk: Desk) -> None:
    copies = desk.there() / ".remote-scripts" / "copies"
    desk.does("job-run", "--frozen", "--cmd", "true")
    desk.does("job-run", "--no-sync", "--no-frozen", "--cmd", "true")
    for key in (1, 2):
        desk.waits_for(key, "succeeded")
    record = desk.there() / ".jobs" / desk.job(2)["id"] / "spec.json"
    text = record.read_text()
    record.write_text("{")
    said = desk.does("clean", "1", "--yes")
    assert len(list(copies.iterdir())) == 1, said
    record.write_text(text)
    # As a start does until its jobs are recorded.
    folder = os.open(copies, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_SH)
        desk.does("clean", "--yes")
        assert len(list(copies.iterdir())) == 1
    finally:
        os.close(folder)
    desk.does("clean", "--yes")
    assert list(copies.iterdir()) == []


@pytest.mark.row(296)
def test_jobs_in_different_copies_do_not_share_a_file_because_it_has_the_same_name(desk: Desk) -> None:
    write, go = (desk.there().parent / f"{name}-{desk.there().name}" for name in ("write", "go"))
    wait = "until [ -e {} ]; do sleep 0.05; done"
    command = f"{wait.format(write)}; echo $REMOTE_TOOL_JOB_ID >out.txt; {wait.format(go)}"
    for version in ("old", "newer"):
        (desk.root / "code.txt").write_text(version)
        desk.does("job-run", "--frozen", "--artifact", "out.txt", "--cmd", command)
    write.touch()
    copies = desk.there() / ".remote-scripts" / "copies"
    until(lambda: len({path.read_text() for path in copies.glob("*/code/out.txt")} - {""}) == 2, "their files", 30)
    ran = desk.tries("job-pull", "1", "2")
    go.touch()
    assert ran.returncode == 0, ran.stderr
    assert "another job" not in ran.stderr
    for job in desk.jobs():
        pulled = desk.root / ".remote" / "jobs" / job["id"] / "artifacts" / "out.txt"
        assert pulled.read_text() == f"{job['id']}\n"


@pytest.mark.row(296)
def test_folders_that_come_home_to_another_disk_keep_their_permissions(desk: Desk, tmp_path: Path) -> None:
    (desk.root / "src").mkdir()
    (desk.root / "src" / "code.txt").write_text("code\n")
    desk.does("rsync")
    with small_disk(tmp_path / "disk", "size=20m") as disk:
        shutil.move(desk.there() / "src" / "code.txt", disk)
        (desk.there() / "src").rmdir()
        (desk.there() / "src").symlink_to(disk)
        command = "umask 022; mkdir -p src/out/shared; echo a >src/out/shared/a; chmod 2775 src/out/shared"
        desk.does("job-run", "--no-sync", "--frozen", "--cmd", f"{command}; chmod 555 src/out")
        desk.waits_for(1, "succeeded")
        modes = [stat.S_IMODE((disk / name).stat().st_mode) for name in ("out", "out/shared")]
        assert modes == [0o555, 0o2775]
        assert (disk / "out" / "shared" / "a").read_text() == "a\n"


@pytest.fixture
def other_disk(desk: Desk, tmp_path: Path) -> Iterator[Path]:
    """The project's folder ``src`` on the server, which is on another disk."""
    (desk.root / "src").mkdir()
    (desk.root / "src" / "part.txt").write_text("old\n")
    with small_disk(tmp_path / "disk", "size=200m") as disk:
        (desk.there() / "src").symlink_to(disk)
        desk.does("rsync")
        yield disk


@pytest.mark.row(296)
def test_output_that_is_long_on_its_way_to_another_disk_holds_up_no_sync(
    desk: Desk, other_disk: Path, tmp_path: Path
) -> None:
    # The job ends only when this test watches: on a busy machine, the copy was over before job-run returned.
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    desk.does("job-run", "--frozen", "--cmd", f"head -c 150000000 /dev/zero >src/big; {wait}")
    (started,) = (desk.there() / ".jobs").glob("2*/started.json")
    supervisor = json.loads(started.read_text())["supervisor"]["pid"]
    (tmp_path / "go").touch()
    deadline = time.monotonic() + PATIENCE
    while not any(other_disk.glob(".remote-tool-partial/*")):
        assert time.monotonic() < deadline
    with ExitStack() as stack:
        os.kill(supervisor, signal.SIGSTOP)
        stack.callback(os.kill, supervisor, signal.SIGCONT)
        syncs = stack.enter_context(desk.runs_meanwhile("rsync"))
        assert syncs.wait(timeout=60) == 0
    desk.waits_for(1, "succeeded")
    assert (other_disk / "big").stat().st_size == 150_000_000
