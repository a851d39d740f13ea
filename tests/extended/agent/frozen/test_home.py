"""Output of jobs in copies comes home into the project's folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.protocol.limits import NEW_COPY
from tests.extended.agent.artifacts.test_artifacts import listing
from tests.extended.agent.cleaning.test_clean import clean, ended, items
from tests.extended.agent.conftest import PretendServer, changed_copy, wait_until
from tests.extended.agent.frozen.test_copies import copies_of, copy_of, run, send
from tests.small_disks import small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def frozen(server: PretendServer) -> PretendServer:
    """A server with a project that was sent."""
    send(server, {"train.sh": "echo old", "src/part.txt": "old\n"})
    return server


def make_old(server: PretendServer, job_id: str) -> Path:
    """Put the output of a job where an older version left it: in the copy only. Returns the copy's code."""
    code = copy_of(server, job_id)
    shutil.rmtree(code.parent / "guests")
    for path in (code / "out", code / "src" / "run.log"):
        home = server.project / path.relative_to(code)
        path.unlink()
        home.rename(path)
    return code


@pytest.mark.row(296)
@pytest.mark.parametrize("how", ["start", "clean", "clean all"])
def test_output_that_an_older_version_left_in_a_copy_comes_home(frozen: PretendServer, how: str) -> None:
    job_id = ended(frozen, "mkdir out; echo A >out/model.pt; echo B >src/run.log", copy=NEW_COPY)
    code = make_old(frozen, job_id)
    assert not (frozen.project / "out").exists()
    if how == "start":
        send(frozen, {"train.sh": "echo new"})
        assert run(frozen, "cat out/model.pt src/run.log") == "A\nB\n"
    else:
        clean(frozen, job_id, everything=how == "clean all")
        assert not code.exists()
    assert (frozen.project / "out" / "model.pt").read_text() == "A\n"
    assert (frozen.project / "src" / "run.log").read_text() == "B\n"


@pytest.mark.row(297)
def test_unsent_files_inside_a_sent_folder_are_there_for_a_job(frozen: PretendServer) -> None:
    (frozen.project / "src" / "data").mkdir()
    (frozen.project / "src" / "data" / "a").write_text("a\n")
    assert run(frozen, "cat src/data/a; echo b >src/data/b") == "a\n"
    assert (frozen.project / "src" / "data" / "b").read_text() == "b\n"
    assert run(frozen, "ls src") == "data\npart.txt\n"


@pytest.mark.row(296)
def test_what_a_job_replaces_takes_the_place_of_the_projects_own_unless_that_has_changed(frozen: PretendServer) -> None:
    for name in ("last.pt", "other.pt"):
        (frozen.project / name).write_text("earlier\n")
    replace = "for name in last other; do echo later >new; mv new $name.pt; done"
    theirs = frozen.project / "other.pt"
    job_id = ended(frozen, f"sleep 0.05; {replace}; echo theirs >{str(theirs)!r}", copy=NEW_COPY)
    assert frozen.record(job_id, "ended")["exit_code"] == 0, frozen.output(job_id, "err")
    assert (frozen.project / "last.pt").read_text() == "later\n"
    assert theirs.read_text() == "theirs\n"
    beside = frozen.project / f"other.pt.{job_id}"
    assert beside.read_text() == "later\n"
    note = f"kept beside the project's own: {beside.name}"
    assert frozen.record(job_id, "ended")["reason"] == note
    assert f"remote-tool: {note}\n" in frozen.output(job_id, "err")
    told = {each["what"]: each["why"] for each in clean(frozen, job_id, dry_run=True)["items"]}
    assert told["outputs under a job's id"] == beside.name
    clean(frozen, job_id)
    assert beside.read_text() == "later\n"


@pytest.mark.row(296)
def test_output_is_there_while_another_job_still_runs_in_the_copy(frozen: PretendServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.01; done"
    slow = frozen.start(f"mkdir -p runs/slow; cd runs/slow; {wait}; sh ../../train.sh; echo S >s.pt", copy=NEW_COPY)
    wait_until((copy_of(frozen, slow) / "runs" / "slow").exists, "the slow job's folder")
    ended(frozen, "mkdir -p runs/quick; echo Q >runs/quick/q.pt", copy=NEW_COPY)
    assert (frozen.project / "runs" / "quick" / "q.pt").read_text() == "Q\n"
    send(frozen, {"train.sh": "echo new", "src/part.txt": "old\n"})
    artifacts = [["runs/**/*.pt", None]]
    third = ended(frozen, "sleep 0.05; sed s/Q/3/ runs/quick/q.pt >runs/t.pt", copy=NEW_COPY, artifacts=artifacts)
    assert listing(frozen, third)[0] == ["runs/t.pt"]
    with frozen.open("send", files=[{"path": "runs/t.pt", "job": third}]) as call:
        assert b"".join(frame.body for frame in call.rest()) == b"3\n"
    assert (frozen.project / "runs").is_symlink()
    go.touch()
    frozen.wait(slow)
    assert frozen.output(slow) == "old\n"
    assert not (frozen.project / "runs").is_symlink()
    found = {path.name: path.read_text() for path in (frozen.project / "runs").rglob("*.pt")}
    assert found == {"q.pt": "Q\n", "s.pt": "S\n", "t.pt": "3\n"}
    assert listing(frozen, third)[0] == ["runs/t.pt"]


@pytest.mark.row(296)
def test_the_output_of_a_lost_job_comes_home_with_a_look_at_it(frozen: PretendServer) -> None:
    job_id = frozen.start("mkdir out; echo A >out/model.pt; exec sleep 600", copy=NEW_COPY)
    wait_until((copy_of(frozen, job_id) / "out" / "model.pt").exists, "the output")
    os.kill(frozen.supervisor(job_id), signal.SIGKILL)
    wait_until(lambda: frozen.status(job_id)["state"] == "lost", "the loss")
    assert not (frozen.project / "out").exists()  # its process may write there
    for pid in frozen.members(job_id):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: frozen.status(job_id)["alive"] is False, "its end")
    wait_until((frozen.project / "out" / "model.pt").exists, "the output in the project")


@pytest.mark.row(296)
def test_output_for_a_folder_on_another_disk_stays_in_the_copy_until_there_is_room(
    frozen: PretendServer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        shutil.move(frozen.project / "src", disk / "src")
        (frozen.project / "src").symlink_to(disk / "src")
        (disk / "filler").write_bytes(bytes(900_000))
        job_id = ended(frozen, "head -c 500000 /dev/zero >src/big.bin; echo x >src/small.txt", copy=NEW_COPY)
        assert (disk / "src" / "small.txt").read_text() == "x\n"
        assert not (disk / "src" / "big.bin").exists()
        why = frozen.record(job_id, "ended")["reason"]
        assert why.endswith("and not in the project: src/big.bin: No space left on device")
        answer = clean(frozen, job_id)
        told = {each["what"]: each["why"] for each in answer["items"]}
        assert told["copies of the project"].startswith("src/big.bin in ")
        assert "No space left on device" in told["copies of the project"]
        assert len(copies_of(frozen)) == 1
        refused = clean(frozen, everything=True)["error"]
        assert "output of a job cannot be brought into the project: src/big.bin in " in refused
        (disk / "filler").unlink()
        assert items(clean(frozen))["copies of the project"] == (1, 1)
        assert (disk / "src" / "big.bin").stat().st_size == 500_000
        assert copies_of(frozen) == []


@pytest.fixture
def elsewhere(frozen: PretendServer, tmp_path: Path) -> Iterator[Path]:
    """The project's folder ``src``, on another disk."""
    with small_disk(tmp_path / "disk", "size=200m") as disk:
        shutil.move(frozen.project / "src", disk / "src")
        (frozen.project / "src").symlink_to(disk / "src")
        yield disk / "src"


@pytest.mark.row(296)
def test_modes_and_links_are_kept_on_the_way_to_another_disk(frozen: PretendServer, elsewhere: Path) -> None:
    """Also of folders, whatever the umask of our own programs."""
    make = "umask 022; mkdir -p src/out/shared; echo a >src/out/shared/a; chmod 2775 src/out/shared"
    others = "ln -s out/shared/a src/latest; echo b >src/run.sh; chmod 755 src/run.sh"
    ended(frozen, f"{make}; {others}; chmod 555 src/out", copy=NEW_COPY)
    modes = {name: stat.S_IMODE((elsewhere / name).stat().st_mode) for name in ("out", "out/shared", "run.sh")}
    assert modes == {"out": 0o555, "out/shared": 0o2775, "run.sh": 0o755}
    assert (elsewhere / "latest").readlink() == Path("out/shared/a")
    assert (elsewhere / "latest").read_text() == "a\n"


@pytest.mark.row(296)
def test_a_long_copy_to_another_disk_is_told_and_holds_up_no_sync(frozen: PretendServer, elsewhere: Path) -> None:
    name = "src/big.bin"
    job_id = frozen.start(f"head -c 150000000 /dev/zero >{name}", copy=NEW_COPY)
    told = "remote-tool: copies its output to another disk: big.bin (143 MiB)\n"
    wait_until(lambda: list(elsewhere.glob(".remote-tool-partial/*")), "the copy")
    os.kill(frozen.supervisor(job_id), signal.SIGSTOP)
    try:
        with (frozen.scripts / "sync-lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert told in frozen.output(job_id, "err")
    finally:
        os.kill(frozen.supervisor(job_id), signal.SIGCONT)
    frozen.wait(job_id)
    assert (elsewhere / "big.bin").stat().st_size == 150_000_000
    assert frozen.record(job_id, "ended")["exit_code"] == 0


@pytest.mark.row(296)
def test_a_sync_that_is_running_cannot_write_through_a_link_to_a_folder(frozen: PretendServer) -> None:
    """Rsync follows links to folders there, with an option for data on another disk."""
    job_id = frozen.start(f"{wait_for(frozen)}; mkdir out; echo A >out/a; chmod 775 out", copy=NEW_COPY)
    with (frozen.scripts / "sync-lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (frozen.home / "go").touch()
        frozen.wait(job_id)
        assert not (frozen.project / "out").is_symlink()
        assert (frozen.project / "out" / "a").is_symlink()
        assert (frozen.project / "out" / "a").read_text() == "A\n"
        assert stat.S_IMODE((frozen.project / "out").stat().st_mode) == 0o775
    ended(frozen, "true", copy=NEW_COPY)
    assert not (frozen.project / "out" / "a").is_symlink()
    assert (frozen.project / "out" / "a").read_text() == "A\n"


@pytest.mark.row(296)
@pytest.mark.parametrize("seconds", [0, 60])
def test_a_stop_ends_long_copying_to_another_disk_and_the_output_stays(
    tmp_path: Path, installed: Path, seconds: int
) -> None:
    changes = {"agent/supervisor/supervise.py": {"_COPY_SECONDS = 5.0": f"_COPY_SECONDS = {seconds}"}}
    server = PretendServer(tmp_path / "home", changed_copy(installed, tmp_path / "changed", changes))
    send(server, {"train.sh": "echo old", "src/part.txt": "old\n"})
    with small_disk(tmp_path / "disk", "size=200m") as disk:
        shutil.move(server.project / "src", disk / "src")
        (server.project / "src").symlink_to(disk / "src")
        job_id = server.start("head -c 150000000 /dev/zero >src/big.bin; touch made; exec sleep 600", copy=NEW_COPY)
        wait_until((copy_of(server, job_id) / "made").exists, "the output")
        (answer,) = server.call("stop", ids=[job_id])["jobs"]
        assert answer["state"] == "killed"
        told = "src/big.bin: the job was stopped while it was copied to another disk"
        assert (told in server.record(job_id, "ended")["reason"]) is (seconds == 0)
        assert (disk / "src" / "big.bin").exists() is (seconds > 0)
        clean(server, job_id)
        assert (disk / "src" / "big.bin").stat().st_size == 150_000_000


@pytest.mark.row(296)
def test_odd_places_and_modes_come_home(frozen: PretendServer) -> None:
    """A folder that syncs have removed meanwhile, one that is a file now, and what a job has made read-only."""
    command = "mkdir deep gone-later; echo a >src/new.txt; echo b >deep/f; chmod 500 deep; chmod 500 src; echo c >x"
    send(frozen, {"train.sh": "echo old", "src/part.txt": "old\n", "lib/code.txt": "code"})
    job_id = frozen.start(f"{command}; echo d >lib/out.txt; {wait_for(frozen)}", copy=NEW_COPY)
    wait_until((copy_of(frozen, job_id) / "lib" / "out.txt").exists, "the output")
    shutil.rmtree(frozen.project / "src")
    shutil.rmtree(frozen.project / "lib")
    (frozen.project / "lib").write_text("a file")
    (frozen.home / "go").touch()
    frozen.wait(job_id)
    assert (frozen.project / "src" / "new.txt").read_text() == "a\n"
    assert (frozen.project / "deep" / "f").read_text() == "b\n"
    assert stat.S_IMODE((frozen.project / "deep").stat().st_mode) == 0o500
    assert (frozen.project / "lib").read_text() == "a file"
    assert (frozen.project / f"lib.{job_id}" / "out.txt").read_text() == "d\n"
    assert "still in the copy" not in frozen.record(job_id, "ended")["reason"]


def wait_for(server: PretendServer) -> str:
    return f"while [ ! -e '{server.home}/go' ]; do sleep 0.01; done"
