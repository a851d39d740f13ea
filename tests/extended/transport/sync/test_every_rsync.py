"""The rules of a sync hold between every two releases of rsync, one here and one on the server."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import SyncError
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.test_push import Desk
from tests.rsyncs import PAIRS, use_here, use_there

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer


NAMES = {
    *("train.py", "a b/deep/file", "new\nline", "-v", "'quoted' $(x)", "back\\slash", "[x]*?", "#a", ";b"),
    os.fsdecode(b"\xff"),
}


@pytest.fixture(params=PAIRS)
def desk(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Desk:
    server = make_server()
    here, there = request.param
    use_here(monkeypatch, here)
    use_there(server, there)
    desk = Desk(make_configuration([server], tmp_path / "project"), server)
    for name in NAMES:
        desk.write(name)
    desk.write("run.sh").chmod(0o755)
    return desk


async def test_what_arrives_and_what_is_removed(desk: Desk) -> None:
    for name in ("gone.py", "junk.tmp"):
        desk.write(name)
    (desk.project / "inner").symlink_to("a b/deep")
    (desk.project / "outside").symlink_to("/etc/hostname")
    desk.exclude(b"*.tmp\n")
    expected = {*NAMES, "run.sh", "gone.py", "inner"}
    assert {*(await desk.sync(dry_run=True)).sent} == expected
    assert not desk.copy.exists()
    assert {*(await desk.sync()).sent} == expected
    assert stat.S_IMODE((desk.copy / "run.sh").stat().st_mode) == 0o755
    assert (desk.copy / "inner").readlink().name == "deep"
    assert (await desk.sync()).sent == ()
    desk.write("train.py", "edited\n")
    desk.write("new\nline", "edited\n")
    desk.write("#a", "edited\n")
    (desk.project / "gone.py").unlink()
    (desk.copy / "output.pt").write_text("weights")
    result = await desk.sync()
    assert ({*result.sent}, result.removed) == ({"train.py", "new\nline", "#a"}, ("gone.py",))
    assert (desk.copy / "output.pt").read_text() == "weights"


async def test_what_a_job_changed_stays_and_is_refused_if_it_changed_here_too(desk: Desk) -> None:
    await desk.sync()
    (desk.copy / "train.py").write_text("by a job\n")
    desk.write("-v", "edited\n")
    assert (await desk.sync()).sent == ("-v",)
    desk.write("train.py", "by me and by a job\n")
    with pytest.raises(SyncError, match=r"changed both here and on the server since the last sync: train\.py"):
        await desk.sync()
    assert (desk.copy / "train.py").read_text() == "by a job\n"
    assert (await desk.sync(overwrite=True)).sent == ("train.py",)


async def test_checksum_finds_other_contents_of_the_same_size_and_time(desk: Desk) -> None:
    await desk.sync()
    times = (desk.project / "run.sh").stat()
    desk.write("run.sh", "TEXT\n")
    os.utime(desk.project / "run.sh", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (await desk.sync(checksum=True)).sent == ("run.sh",)


async def test_a_folder_becomes_a_file_and_a_file_a_folder(desk: Desk) -> None:
    (desk.project / "inner").symlink_to("a b/deep")
    await desk.sync()
    (desk.project / "a b/deep/file").unlink()
    (desk.project / "a b/deep").rmdir()
    (desk.project / "inner").unlink()
    desk.write("a b/deep", "a file\n")
    (desk.project / "-v").unlink()
    desk.write("-v/file")
    await desk.sync()
    assert (desk.copy / "a b/deep").read_text() == "a file\n"
    assert (desk.copy / "-v/file").read_text() == "text\n"


async def test_a_folder_on_another_disk_is_filled_there(desk: Desk) -> None:
    await desk.sync()
    disk = desk.server.home / "disk"
    (desk.copy / "a b").rename(disk)
    (desk.copy / "a b").symlink_to(disk)
    desk.write("a b/deep/more", "more\n")
    assert (await desk.sync()).sent == ("a b/deep/more",)
    assert (disk / "deep/more").read_text() == "more\n"
    assert (desk.copy / "a b").is_symlink()
