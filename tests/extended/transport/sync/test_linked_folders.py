"""A folder that the user of a server has put on a larger disk, by a link in its place, stays there."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import SyncError
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.test_push import Desk
from tests.rsyncs import EACH_RSYNC, use_there

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeServer

pytestmark = pytest.mark.row(148)
BUSYBOX = shutil.which("busybox")


@pytest.fixture(params=EACH_RSYNC)
def desk(make_server: MakeServer, tmp_path: Path, request: pytest.FixtureRequest) -> Desk:
    server = make_server()
    use_there(server, request.param)
    desk = Desk(make_configuration([server], tmp_path / "project"), server)
    desk.write("train.py")
    desk.write("data/set.txt")
    desk.write("data/deep/more.txt")
    return desk


@pytest.fixture
def disk(desk: Desk) -> Path:
    """A large disk of the server, which ``data`` leads to."""
    disk = desk.server.home / "mnt" / "big disk"
    disk.mkdir(parents=True)
    desk.copy.mkdir()
    (desk.copy / "data").symlink_to(disk)
    return disk


def on_disk(disk: Path) -> dict[str, str]:
    return {str(path.relative_to(disk)): path.read_text() for path in disk.rglob("*") if path.is_file()}


async def test_files_go_to_where_the_link_leads_and_it_stays(desk: Desk, disk: Path) -> None:
    await desk.sync()
    assert (desk.copy / "data").readlink() == disk
    assert on_disk(disk) == {"set.txt": "text\n", "deep/more.txt": "text\n"}
    desk.write("data/set.txt", "edited\n")
    desk.write("data/new.txt")
    assert set((await desk.sync()).sent) == {"data/set.txt", "data/new.txt"}
    assert (await desk.sync(checksum=True)).sent == ()
    assert (desk.copy / "data").readlink() == disk
    assert on_disk(disk) == {"set.txt": "edited\n", "deep/more.txt": "text\n", "new.txt": "text\n"}


@pytest.mark.skipif(BUSYBOX is None, reason="no busybox on this machine")
async def test_a_server_whose_head_reads_ahead(desk: Desk, disk: Path) -> None:
    desk.server.programs.mkdir(parents=True, exist_ok=True)
    head = desk.server.programs / "head"
    head.write_text(f'#!/bin/sh\nexec {BUSYBOX} head "$@"\n')
    head.chmod(0o755)
    async with asyncio.timeout(100):
        await desk.sync()
    assert on_disk(disk) == {"set.txt": "text\n", "deep/more.txt": "text\n"}


async def test_links_behind_links_and_rules_hold_there_too(desk: Desk, disk: Path) -> None:
    inner, outer = desk.server.home / "mnt" / "inner", desk.server.home / "mnt" / "new\nline"
    for each in (inner, outer):
        each.mkdir(mode=0o711)
    (disk / "deep").symlink_to(inner)
    (desk.copy / "odd\nname").symlink_to(outer)
    for name in ("odd\nname/a file", "data/deep/empty/x", "data/junk.tmp", "data/kept.txt", "top"):
        desk.write(name)
    (disk / "kept.txt").write_text("a job's, and larger\n")
    desk.exclude(b"*.tmp\n")
    assert "data/kept.txt" not in (await desk.sync(dry_run=True)).sent
    result = await desk.sync()
    assert {*result.sent} == {
        *("train.py", "top", "odd\nname/a file", "data/set.txt", "data/deep/more.txt", "data/deep/empty/x")
    }
    assert len(result.sent) == len({*result.sent})
    assert on_disk(disk) == {"set.txt": "text\n", "kept.txt": "a job's, and larger\n"}
    assert on_disk(inner) == {"more.txt": "text\n", "empty/x": "text\n"}
    assert on_disk(outer) == {"a file": "text\n"}
    # As those of any other folder, so that the next sync finds no difference.
    assert [stat.S_IMODE(each.stat().st_mode) for each in (inner, outer)] == [0o755, 0o755]
    assert "kept the server's version" in desk.notices
    # Where rsync itself selects, too.
    desk.write("data/deep/more.txt", "TEXT\n")
    os.utime(desk.project / "data/deep/more.txt", (inner / "more.txt").stat()[7:9])
    assert set((await desk.sync(checksum=True)).sent) == {"data/deep/more.txt"}
    assert set((await desk.sync(overwrite=True)).sent) == {"data/kept.txt"}
    assert on_disk(inner)["more.txt"] == "TEXT\n"
    assert on_disk(disk)["kept.txt"] == "text\n"
    desk.write("data/deep/empty/x", "another\n")
    assert (await desk.sync()).sent == ("data/deep/empty/x",)
    assert all(each.is_symlink() for each in (desk.copy / "data", disk / "deep", desk.copy / "odd\nname"))


async def test_another_failure_is_reported_beside_a_link(desk: Desk, disk: Path) -> None:
    assert disk.is_dir()
    (desk.copy / "out").mkdir()
    (desk.copy / "out" / "model.pt").write_text("weights")
    desk.write("out")
    with pytest.raises(SyncError):
        await desk.sync()
    assert (desk.copy / "out" / "model.pt").read_text() == "weights"
    assert "complete" not in desk.state.split()


@pytest.fixture
def immutable(desk: Desk) -> Iterator[Path]:
    """A folder ``fixed`` on the server in which nothing can be made."""
    folder = desk.copy / "fixed"
    folder.mkdir()
    if subprocess.call("chattr +i project/fixed 2> /dev/null", shell=True, cwd=desk.server.home):
        pytest.skip("no folder can be made immutable here: this needs root, and a file system such as ext4")
    yield folder
    subprocess.run(["chattr", "-i", folder], check=True)


@pytest.mark.row(70)
async def test_a_file_that_rsync_names_but_cannot_write_is_an_error_beside_a_link(
    desk: Desk, disk: Path, immutable: Path
) -> None:
    desk.write("fixed/a.txt")
    for _ in range(2):
        with pytest.raises(SyncError, match="some files could not be sent"):
            await desk.sync()
        assert "complete" not in desk.state.split()
    subprocess.run(["chattr", "-i", immutable], check=True)
    assert "fixed/a.txt" in (await desk.sync()).sent
    assert on_disk(disk) == {"set.txt": "text\n", "deep/more.txt": "text\n"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives away a link")
async def test_a_link_of_another_user_is_named_where_rsync_refuses_it(desk: Desk, disk: Path) -> None:
    os.chown(desk.copy / "data", 65534, 65534, follow_symlinks=False)
    try:
        await desk.sync()
    except SyncError as error:
        assert "your own account" in (error.hint or "")  # noqa: PT017 - older releases follow it
        assert on_disk(disk) == {}
    else:
        assert on_disk(disk) == {"set.txt": "text\n", "deep/more.txt": "text\n"}


async def test_a_sync_with_nothing_to_send_starts_no_rsync(
    desk: Desk, disk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await desk.sync()
    program, seen = tmp_path / "tools" / "rsync", tmp_path / "seen"
    program.parent.mkdir()
    rsync = shutil.which("rsync")
    program.write_text(f'#!/bin/sh\ncase "$*" in *server:.) echo >> {seen};; esac\nexec {rsync} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert (await desk.sync()).sent == ()
    assert not seen.exists()
    # What changed there is seen through the link.
    (disk / "set.txt").unlink()
    assert (await desk.sync()).sent == ("data/set.txt",)
    assert seen.exists()


async def test_a_folder_that_becomes_a_link_later_is_used_too(desk: Desk) -> None:
    await desk.sync()
    disk = desk.server.home / "big"
    (desk.copy / "data").rename(disk)
    (desk.copy / "data").symlink_to(disk)
    desk.write("data/new.txt")
    assert (await desk.sync()).sent == ("data/new.txt",)
    assert (desk.copy / "data").readlink() == disk
    assert "new.txt" in on_disk(disk)


async def test_nothing_is_removed_behind_a_link(desk: Desk, disk: Path) -> None:
    await desk.sync()
    (disk / "output.pt").write_text("weights")
    shutil.rmtree(desk.project / "data")
    assert (await desk.sync()).removed == ()
    assert (desk.copy / "data").readlink() == disk
    assert on_disk(disk) == {"set.txt": "text\n", "deep/more.txt": "text\n", "output.pt": "weights"}


async def test_what_a_job_wrote_behind_a_link_is_kept(desk: Desk, disk: Path) -> None:
    await desk.sync()
    (disk / "set.txt").write_text("a job's\n")
    assert (await desk.sync()).sent == ()
    assert (disk / "set.txt").read_text() == "a job's\n"


async def test_a_link_whose_disk_is_away_is_not_replaced_by_a_folder(desk: Desk, disk: Path) -> None:
    """Else the data of a large disk would fill the home while it is not mounted."""
    await desk.sync()
    away = disk.rename(disk.with_name("away"))
    desk.write("data/new.txt")
    desk.write("train.py", "edited\n")
    with pytest.raises(SyncError, match="not a folder on the server: data/"):
        await desk.sync()
    assert (desk.copy / "data").is_symlink()
    assert (desk.copy / "train.py").read_text() == "edited\n"
    away.rename(disk)
    assert (await desk.sync()).sent == ("data/new.txt",)


@pytest.mark.parametrize("known", [True, False])
async def test_a_link_that_the_project_sent_is_not_followed_when_it_is_a_folder_now(desk: Desk, *, known: bool) -> None:
    """Only links that were made on the server are."""
    (desk.project / "current").symlink_to("data")
    await desk.sync()
    (desk.project / "current").unlink()
    desk.write("current/set.txt", "another\n")
    if not known:
        desk.config.local.known_copy("first").unlink()
    await desk.sync()
    assert not (desk.copy / "current").is_symlink()
    assert (desk.copy / "current" / "set.txt").read_text() == "another\n"
    assert (desk.copy / "data" / "set.txt").read_text() == "text\n"


async def test_a_link_that_leads_out_of_the_project_is_still_not_sent(desk: Desk, disk: Path) -> None:
    (desk.project / "elsewhere").symlink_to(disk)
    (desk.project / "inner").symlink_to("data/set.txt")
    await desk.sync()
    assert not (desk.copy / "elsewhere").is_symlink()
    assert (desk.copy / "inner").read_text() == "text\n"
    assert "elsewhere is a link that points outside" in desk.notices
