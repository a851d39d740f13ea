"""How a sync gets over: through any name, modes made harmless, large files taken up again, no program left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectionLostError, SyncError
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.transport.host import MEBIBYTE, Exit
from remote_tool.transport.pool import HostPool
from remote_tool.transport.sync import local_rsync, server_script
from remote_tool.transport.sync.failures import CAUSES, Ending
from remote_tool.transport.sync.project import snapshot
from remote_tool.transport.sync.project.snapshot import SelectionRules, take_snapshot
from remote_tool.transport.sync.project.workspace import own_workspace
from remote_tool.transport.sync.push import push
from remote_tool.transport.sync.push_options import PushOptions
from remote_tool.transport.sync.relayed import Relayed
from remote_tool.transport.sync.server_script import PARTIAL_FOLDER
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.project import selection_rules
from remote_tool.workflows.sync.sync import sync
from tests.below import files_below
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.test_push import Desk
from tests.figures import record_figure

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.transport.host import Host
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.push import Progress
    from remote_tool.transport.sync.relayed import Asking
    from tests.conftest import MakeServer

RSYNC = shutil.which("rsync") or "rsync"
# What a sync leaves in our folder on the server.
OWN = {"sync", "sent", "sync-lock", "sync-owner", "workspaces"}


@pytest.fixture
def desk(make_server: MakeServer, tmp_path: Path) -> Desk:
    server = make_server()
    desk = Desk(make_configuration([server], tmp_path / "project"), server)
    desk.write("a.py")
    return desk


@pytest.fixture(scope="module")
def turkish(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a language whose small I has another capital; empty where it cannot be made."""
    folder = tmp_path_factory.mktemp("languages")
    if shutil.which("localedef"):
        make = ["localedef", "-i", "tr_TR", "-f", "UTF-8", str(folder / "tr_TR.UTF-8")]
        subprocess.run(make, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    return str(folder)


async def push_of(desk: Desk, host: Host, on_progress: Callable[[Progress], None] = lambda _progress: None) -> None:
    wanted = await take_snapshot(desk.project, selection_rules(desk.config))
    await push(host, desk.config.remote, wanted, PushOptions(workspace=own_workspace(desk.config.local)), on_progress)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while True:
            # A folder that is looked through may be removed just then.
            with suppress(FileNotFoundError):
                if condition():
                    return
            await asyncio.sleep(0.01)


def programs(folder: Path) -> list[int]:
    """Every rsync of this machine that works on a folder of this test."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
            if b"rsync" in line and (os.fsencode(folder) in line or (entry / "cwd").readlink().is_relative_to(folder)):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to programs, some of which may have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def have_rsync_killed(desk: Desk) -> None:
    """Sync, and kill the server's rsync in the middle of a large file."""

    def kill(progress: Progress) -> None:
        # On a busy machine all of that may still wait in buffers on the way.
        if progress.bytes > 8_000_000 and any("big." in path.name for path in files_below(desk.copy)):
            pids = programs(desk.server.home)
            # One that sees another end would tidy up.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                signal_all(pids, number)

    async with HostPool(desk.config) as pool:
        with pytest.raises(SyncError, match=r"KILL|exited too early"):
            await push_of(desk, await pool.host("first"), kill)


@pytest.mark.row(107)
@pytest.mark.parametrize("name", ["it's a project", '"quoted" $(touch injected)', "-rf", "deep/er/project", "b\\s*[x]"])
async def test_the_project_may_have_any_name(desk: Desk, name: str) -> None:
    desk.config = replace(desk.config, name=name, remote=RemotePaths(name))
    assert (await desk.sync(dry_run=True)).sent == ("a.py",)
    await desk.sync()
    assert (desk.server.home / name / "a.py").exists()
    (desk.project / "a.py").rename(desk.project / "b.py")
    assert (await desk.sync()).removed == ("a.py",)
    assert {path.name for path in (desk.server.home / name).iterdir()} == {"b.py", ".remote-scripts"}
    assert not list(desk.server.home.rglob("injected"))


async def test_folders_of_ours_with_other_names_are_not_sent_nor_written_to(desk: Desk) -> None:
    root = desk.project
    desk.config = replace(
        desk.config,
        local=LocalPaths(root, jobs_folder="my jobs*", logs_folder="logs"),
        remote=RemotePaths("project", scripts_name="scripts", jobs_name="runs"),
    )
    for name in ("my jobs*/1/job.out", "logs/old.log", "scripts/sent", "runs/x", "sub/runs/kept", "my jobsx/kept"):
        desk.write(name)
    await desk.sync()
    names = {str(path.relative_to(desk.copy)) for path in desk.copy.rglob("*") if path.is_file()}
    assert names == {"a.py", "sub/runs/kept", "my jobsx/kept", *(f"scripts/{name}" for name in OWN)}
    assert (desk.copy / "scripts" / "sync").read_text().startswith("complete ")


@pytest.mark.row(113)
async def test_our_folder_is_closed_to_others(desk: Desk) -> None:
    await desk.sync()
    scripts = desk.copy / ".remote-scripts"
    assert stat.S_IMODE(scripts.stat().st_mode) == 0o700
    assert stat.S_IMODE((scripts / "sent").stat().st_mode) == 0o600


@pytest.mark.row(80)
async def test_owner_and_setuid_do_not_travel(desk: Desk) -> None:
    path = desk.write("tool")
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    (desk.project / "tool").chmod(0o6755)
    (desk.project / "closed").mkdir()
    desk.write("closed/b.py")
    (desk.project / "closed").chmod(0o555)
    await desk.sync()
    found = (desk.copy / "tool").stat()
    assert stat.S_IMODE(found.st_mode) == 0o755
    assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
    assert stat.S_IMODE((desk.copy / "closed").stat().st_mode) == 0o755
    assert (await desk.sync()).sent == ()


async def test_permissions_alone_are_sent_too(desk: Desk) -> None:
    await desk.sync()
    (desk.project / "a.py").chmod(0o755)
    assert (await desk.sync()).sent == ("a.py",)
    assert stat.S_IMODE((desk.copy / "a.py").stat().st_mode) == 0o755


async def test_a_folder_may_become_a_file_and_a_file_a_folder(desk: Desk) -> None:
    desk.write("model/a.py")
    desk.write("model/deep/b.py")
    desk.write("data", "text\n")
    await desk.sync()
    shutil.rmtree(desk.project / "model")
    desk.write("model", "now a file\n")
    (desk.project / "data").unlink()
    desk.write("data/set.txt")
    result = await desk.sync()
    assert desk.names() == {"a.py", "model", "data", "data/set.txt"}
    assert (desk.copy / "model").read_text() == "now a file\n"
    assert set(result.removed) == {"model/a.py", "model/deep/b.py", "data"}
    assert desk.state == f"complete {result.snapshot}\n"


@pytest.mark.row(67)
async def test_what_is_excluded_now_stays_there_and_goes_when_it_is_gone_here(desk: Desk) -> None:
    desk.write("data/big.bin")
    await desk.sync()
    desk.exclude(b"/data\n")
    assert (await desk.sync()).removed == ()
    (desk.project / "data" / "big.bin").unlink()
    desk.write("b.py")
    assert (await desk.sync()).removed == ("data/big.bin",)


@pytest.mark.row(67)
async def test_the_list_of_sent_files_comes_from_the_server_and_is_not_trusted(desk: Desk) -> None:
    outside = desk.server.home / "outside.txt"
    await desk.sync()
    outside.write_text("mine")
    found = outside.stat()
    sent = desk.copy / ".remote-scripts" / "sent"
    records = (
        f"{found.st_size} {int(found.st_mtime)} {name}\0" for name in ("../outside.txt", str(outside), "x/../..")
    )
    sent.write_bytes(sent.read_bytes() + "".join(records).encode() + b"garbage\0\0\0-1 x y\0")
    desk.write("b.py")
    assert (await desk.sync()).removed == ()
    assert outside.exists()


@pytest.mark.row(85)
async def test_two_syncs_at_once_both_end_well(desk: Desk) -> None:
    for number in range(200):
        desk.write(f"sub/{number}.py", f"{number}\n")
    async with HostPool(desk.config) as pool:
        host = await pool.host("first")
        await asyncio.gather(*(push_of(desk, host) for _ in range(3)))
    assert desk.state.startswith("complete ")
    assert len(desk.names()) == 202
    assert {path.name for path in (desk.copy / ".remote-scripts").iterdir()} == OWN


async def test_a_sync_with_nothing_to_do_is_one_command_on_the_server(desk: Desk) -> None:
    labels: list[str] = []
    await desk.sync()
    async with HostPool(desk.config, trace=lambda _server, label, _seconds: labels.append(label)) as pool:
        host = await pool.host("first")
        labels.clear()
        await push_of(desk, host)
        assert labels == ["rsync"]
        assert desk.state.startswith("complete ")
        desk.write("b.py")
        await push_of(desk, host)
        assert labels == ["rsync", "rsync"]


async def interrupt_halfway(desk: Desk, size: int) -> None:
    """Drop the connection after half of these bytes, and wait until nothing runs on the server."""
    dropped: list[bool] = []

    def drop_in_the_middle(progress: Progress) -> None:
        if progress.bytes > size // 2 and not dropped:
            dropped.append(True)
            desk.server.drop_connections()

    async with HostPool(desk.config) as pool:
        with pytest.raises(ConnectionLostError):
            await push_of(desk, await pool.host("first"), drop_in_the_middle)
    await until(lambda: not programs(desk.server.home))


@pytest.mark.row(78)
@pytest.mark.slow
async def test_an_interrupted_large_file_is_taken_up_again(desk: Desk) -> None:
    size = 48 * 1024 * 1024
    (desk.project / "big").write_bytes(os.urandom(size))
    await interrupt_halfway(desk, size)
    assert any(desk.copy.rglob(f"{PARTIAL_FOLDER}/big"))
    here = {name for name in desk.names() if not name.startswith(PARTIAL_FOLDER)}
    assert here <= {"a.py"}, "half a file is no part of the project"
    result = await desk.sync()
    assert result.bytes < size * 3 // 4
    assert (desk.copy / "big").read_bytes() == (desk.project / "big").read_bytes()
    assert not any(desk.copy.rglob("*partial*"))


def begin(desk: Desk, name: str, size: int, arrived: int) -> Path:
    """Make a large file, of which the server has the beginning since a sync that was cut off; return that part."""
    file = desk.write(name)
    file.write_bytes(os.urandom(size))
    desk.config.local.logs.mkdir(exist_ok=True)
    found = file.stat()
    desk.config.local.begun_sync("first").write_bytes(b"%d %d %b\0" % (size, found.st_mtime, os.fsencode(name)))
    part = (desk.copy / name).parent / PARTIAL_FOLDER / file.name
    part.parent.mkdir(parents=True)
    part.write_bytes(file.read_bytes()[:arrived])
    (desk.copy / ".remote-scripts" / "sync").write_text("incomplete x y\n")
    return part


def literal_bytes(desk: Desk) -> list[int]:
    """Return what each rsync sent because it found nothing like it on the server."""
    return [int(found) for found in re.findall(rb"total: .* data=([0-9]+)", desk.step_output)]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rsync print what it looked for in a large file."""
    monkeypatch.setattr(local_rsync.LocalRsync, "progress_options", ["--debug=DELTASUM1"])


@pytest.mark.row(78)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["big", "deep/it's \\ a $(name) "])
async def test_rsync_does_not_search_the_rest_of_a_large_file(desk: Desk, name: str, counting: None) -> None:
    """It takes 10 to 30 ns for each byte, more than to send it."""
    del counting
    await desk.sync()
    size, arrived = 40 * MEBIBYTE, 23 * MEBIBYTE + 17
    begin(desk, name, size, arrived)
    result = await desk.sync()
    assert literal_bytes(desk)[-1] == 0
    assert size - arrived < result.bytes < size - arrived + MEBIBYTE
    assert (desk.copy / name).read_bytes() == (desk.project / name).read_bytes()
    assert not any(desk.copy.rglob(PARTIAL_FOLDER))


@pytest.mark.row(78)
@pytest.mark.slow
async def test_a_large_file_is_taken_up_again_after_another_server_was_asked_for_files(desk: Desk) -> None:
    await desk.sync()
    size = 20 * MEBIBYTE
    begin(desk, "big", size, size - MEBIBYTE)

    async def relay(asking: Asking, _snapshot: Snapshot, _lacking: int) -> Relayed:
        await asking.ask(server_script.relay_words("of-no-version", b"{}\n"), lambda _data: None)
        return Relayed()

    async with HostPool(desk.config) as pool:
        wanted = await take_snapshot(desk.project, selection_rules(desk.config))
        options = PushOptions(begun=desk.config.local.begun_sync("first"), relay=relay)
        result = await push(await pool.host("first"), desk.config.remote, wanted, options)
    assert MEBIBYTE < result.bytes < 2 * MEBIBYTE
    assert (desk.copy / "big").read_bytes() == (desk.project / "big").read_bytes()


@pytest.mark.row(78)
@pytest.mark.slow
@pytest.mark.parametrize("beginning", [b"other", b""], ids=["another beginning", "more than all of it"])
async def test_a_part_that_is_not_the_beginning_of_the_file_does_no_harm(desk: Desk, beginning: bytes) -> None:
    await desk.sync()
    part = begin(desk, "big", 20 * MEBIBYTE, 20 * MEBIBYTE if not beginning else 18 * MEBIBYTE)
    with part.open("r+b" if beginning else "ab") as opened:
        opened.write(beginning or b"more")
    await desk.sync()
    assert (desk.copy / "big").read_bytes() == (desk.project / "big").read_bytes()


@pytest.mark.row(78)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["link", "folder"])
async def test_only_a_part_that_is_a_file_is_completed(desk: Desk, kind: str) -> None:
    await desk.sync()
    part = begin(desk, "big", 20 * MEBIBYTE, 18 * MEBIBYTE)
    other = desk.server.home / "other"
    part.rename(other)
    part.symlink_to(other) if kind == "link" else part.mkdir()
    await desk.sync()
    assert (desk.copy / "big").read_bytes() == (desk.project / "big").read_bytes()
    assert other.stat().st_size == 18 * MEBIBYTE


@pytest.mark.row(78)
@pytest.mark.parametrize("place", ["a first sync", "the project", "a folder that is a link on the server"])
async def test_an_interrupted_sync_of_a_read_only_file_is_completed(desk: Desk, place: str) -> None:
    """Only for an ordinary user a read-only file is one."""
    size = 24 * MEBIBYTE
    if place != "a first sync":
        desk.write("data/a.csv")
        await desk.sync()
    if place.startswith("a folder"):
        (desk.copy / "data").rename(desk.server.home / "disk")
        (desk.copy / "data").symlink_to(desk.server.home / "disk")
    big = desk.write("data/big")
    big.write_bytes(os.urandom(size))
    big.chmod(0o444)
    await interrupt_halfway(desk, size)
    (part,) = desk.server.home.rglob(f"{PARTIAL_FOLDER}/big")
    assert not part.stat().st_mode & stat.S_IWUSR
    assert (await desk.sync()).sent.count("data/big") == 1
    arrived = desk.copy / "data/big"
    assert arrived.read_bytes() == big.read_bytes()
    assert stat.S_IMODE(arrived.stat().st_mode) == 0o444
    assert not any(desk.server.home.rglob(PARTIAL_FOLDER))


@pytest.mark.row(78)
@pytest.mark.slow
async def test_what_a_full_disk_does_not_take_is_not_read_as_words(desk: Desk) -> None:
    """The script ends; otherwise its shell would run what the file holds."""
    await desk.sync()
    part = begin(desk, "big", 40 * MEBIBYTE, 18 * MEBIBYTE)
    injected = f"\n$(touch {desk.server.home}/injected)\n".encode()
    found = (desk.project / "big").stat()
    (desk.project / "big").write_bytes((injected * 2_000_000)[: found.st_size])
    os.utime(desk.project / "big", ns=(found.st_atime_ns, found.st_mtime_ns))
    (desk.server.home / ".bashrc").write_text(f"ulimit -f {19 * 1024}\n")
    with pytest.raises(SyncError, match="disk full"):
        await desk.sync()
    assert part.stat().st_size <= 19 * MEBIBYTE
    assert not (desk.server.home / "injected").exists()


@pytest.mark.row(78)
@pytest.mark.slow
async def test_half_a_file_in_a_folder_is_taken_up_again_and_goes_when_it_is_gone_here(desk: Desk) -> None:
    await desk.sync()
    for name in ("deep/er/big", "deep/gone"):
        (desk.project / name).parent.mkdir(parents=True, exist_ok=True)
        (desk.project / name).write_bytes(os.urandom(8 * 1024 * 1024))
        half = desk.copy / Path(name).parent / PARTIAL_FOLDER / Path(name).name
        half.parent.mkdir(parents=True)
        half.write_bytes((desk.project / name).read_bytes()[: 6 * 1024 * 1024])
    (desk.project / "deep/gone").unlink()
    (desk.copy / ".remote-scripts" / "sync").write_text("incomplete x y\n")
    result = await desk.sync()
    assert result.bytes < 4 * 1024 * 1024
    assert (desk.copy / "deep/er/big").read_bytes() == (desk.project / "deep/er/big").read_bytes()
    assert desk.names() == {"a.py", "deep", "deep/er", "deep/er/big"}


@pytest.mark.row(69)
@pytest.mark.slow
async def test_a_link_that_goes_once_is_made_again(desk: Desk) -> None:
    (desk.project / "big").write_bytes(os.urandom(32 * 1024 * 1024))
    async with HostPool(desk.config) as pool:
        report = desk.events.append
        task = asyncio.create_task(sync(pool, desk.config, ("first",), SyncOptions(), report))
        await until(lambda: any((desk.copy / ".remote-scripts" / "arriving").glob(".big.*")))
        desk.server.drop_connections()
        results = await task
    assert results.errors == {}
    assert "trying again" in desk.notices
    assert (desk.copy / "big").read_bytes() == (desk.project / "big").read_bytes()


@pytest.mark.row(61)
@pytest.mark.slow
async def test_no_program_is_left_after_an_interruption(desk: Desk) -> None:
    (desk.project / "big").write_bytes(os.urandom(48 * 1024 * 1024))
    async with HostPool(desk.config) as pool:
        host = await pool.host("first")
        half = asyncio.Event()

        def tell(progress: Progress) -> None:
            if progress.bytes > 1_000_000:
                half.set()

        task = asyncio.create_task(push_of(desk, host, tell))
        await asyncio.wait_for(half.wait(), 60)
        for pid in programs(desk.project):
            assert os.getpgid(pid) != os.getpgrp(), "a Ctrl-C of the terminal is ours to handle"
            os.kill(pid, signal.SIGSTOP)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)
        await until(lambda: not programs(desk.project) and not programs(desk.server.home))


@pytest.mark.row(69)
@pytest.mark.slow
async def test_a_killed_local_rsync_is_reported_and_ends_the_remote_one(desk: Desk) -> None:
    (desk.project / "big").write_bytes(os.urandom(48 * 1024 * 1024))

    def kill(progress: Progress) -> None:
        if progress.bytes > 1_000_000:
            signal_all(programs(desk.project), signal.SIGKILL)

    async with HostPool(desk.config) as pool:
        host = await pool.host("first")
        with pytest.raises(SyncError, match=r"killed by signal 9|exited too early"):
            await push_of(desk, host, kill)
        assert (await host.run("echo on")).stdout == b"on\n"
    await until(lambda: not programs(desk.server.home))
    assert desk.state.startswith("incomplete ")


@pytest.mark.row(69, 79)
@pytest.mark.slow
async def test_a_file_that_vanishes_while_others_are_sent_is_a_warning(desk: Desk) -> None:
    for name in ("big", "z"):
        (desk.project / name).write_bytes(os.urandom(24 * 1024 * 1024))
    wanted = await take_snapshot(desk.project, selection_rules(desk.config))

    def vanish(progress: Progress) -> None:
        if progress.bytes > 1_000_000:
            (desk.project / "z").unlink(missing_ok=True)

    async with HostPool(desk.config) as pool:
        host = await pool.host("first")
        result = await push(host, desk.config.remote, wanted, PushOptions(), vanish)
    assert result.warnings == ("some local files disappeared before they were sent",)
    assert desk.names() == {"a.py", "big"}
    assert desk.state == f"complete {wanted.id}\n"


@pytest.mark.row(70)
async def test_a_failed_sync_marks_the_copy_incomplete(desk: Desk) -> None:
    """The server's own rsync ends well when a file cannot be read here, so the server must be told."""
    desk.write("b.py")
    await desk.sync()
    wanted = await take_snapshot(desk.project, selection_rules(desk.config))
    (desk.copy / "b.py").unlink()
    wrapper = desk.project.parent / "tools" / "rsync"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\n{RSYNC} "$@" || exit\ncase "$*" in *server:*) exit 23;; esac\n')
    wrapper.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
        async with HostPool(desk.config) as pool:
            host = await pool.host("first")
            with pytest.raises(SyncError, match="some files could not be sent"):
                await push(host, desk.config.remote, wanted, PushOptions())
    assert desk.state.startswith(f"incomplete {wanted.id} ")


@pytest.mark.row(58)
@pytest.mark.parametrize("language", ["C", "C.UTF-8", "tr_TR.UTF-8"])
async def test_the_users_settings_of_rsync_and_languages_do_not_matter(
    make_server: MakeServer, tmp_path: Path, turkish: str, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    server = make_server(SetEnv=f"LC_ALL={language} LOCPATH={turkish}")
    desk = Desk(make_configuration([server], tmp_path / "project"), server)
    monkeypatch.setenv("RSYNC_PROTECT_ARGS", "1")
    monkeypatch.setenv("RSYNC_RSH", "/bin/false")
    monkeypatch.setenv("RSYNC_PARTIAL_DIR", ".half")
    monkeypatch.setenv("RSYNC_ICONV", "utf-8,latin1")
    monkeypatch.setenv("LC_ALL", language)
    monkeypatch.setenv("LOCPATH", turkish)
    (Path.home() / ".popt").write_text("rsync alias -O -O --secluded-args\n")
    names = {"I i.py", "\u00fc.py", os.fsdecode(b"caf\xe9.py")}
    for name in names:
        desk.write(name, "\u00fc\r\n")
    assert set((await desk.sync()).sent) == names == desk.names()
    assert {(desk.copy / name).read_bytes() for name in names} == {"\u00fc\r\n".encode()}
    assert (await desk.sync()).sent == ()


OPENRSYNC = """#!/bin/sh
for each; do
  case $each in
    --version) printf 'openrsync: protocol version 29\nrsync version 2.6.9 compatible\n'; exit;;
    --out-format*|--info*|--no-s|--secluded-args) echo "openrsync: unrecognized option $each" >&2; exit 1;;
  esac
done
"""


@pytest.mark.row(81)
async def test_openrsync_of_macos_gets_only_options_that_it_knows(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    program = desk.project.parent / "tools" / "rsync"
    program.parent.mkdir()
    program.write_text(OPENRSYNC + f'exec {RSYNC} --protocol=29 "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    desk.write("sub/with blank.py")
    (desk.project / "link").symlink_to("a.py")
    (desk.project / "out").symlink_to("/")
    assert set((await desk.sync()).sent) == {"a.py", "sub/with blank.py", "link"}
    assert desk.names() == {"a.py", "sub", "sub/with blank.py", "link"}
    assert (await desk.sync()).sent == ()


@pytest.mark.row(82)
@pytest.mark.parametrize("version", ["2.6.9  protocol version 29", "3.1.3  protocol version 31", "v3.4.2  protocol 32"])
async def test_nothing_rests_on_the_version_of_rsync(desk: Desk, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Its known holes are on the side that receives from a stranger; we receive nothing by rsync, whatever it is."""
    program = desk.project.parent / "tools" / "rsync"
    program.parent.mkdir()
    seen = desk.project.parent / "arguments"
    program.write_text(
        f"#!/bin/sh\n[ \"$1\" != --version ] || {{ echo 'rsync  version {version}'; exit; }}\n"
        f'echo "$*" >> {seen}\nexec {RSYNC} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    desk.write(".env", "SECRET=1")
    (desk.project / "out").symlink_to("/")
    assert (await desk.sync()).sent == ("a.py",)
    assert desk.names() == {"a.py"}
    *_, last = seen.read_text().splitlines()
    assert last.endswith(f"{desk.project}/ server:."), "from here to there, never the other way"
    assert "--safe-links" in last


@pytest.mark.row(81)
@pytest.mark.parametrize(
    ("banner", "expected"),
    [
        (b"rsync  version 3.2.7  protocol version 31\n", ((3, 2), "3.2.7")),
        (b"rsync  version v3.4.1  protocol version 32\n", ((3, 4), "3.4.1")),
        (b"rsync  version 2.6.9  protocol version 29\n", ((2, 6), "2.6.9")),
        (b"openrsync: protocol version 29\nrsync version 2.6.9 compatible\n", ((), "openrsync")),
        (b"", ((), "openrsync")),
    ],
)
def test_versions(banner: bytes, expected: tuple[tuple[int, ...], str]) -> None:
    assert local_rsync._parse_version(banner) == expected


@pytest.mark.row(73)
def test_a_project_with_an_unreadable_file_and_folder_is_sent_without_them() -> None:
    """Root reads everything, so this runs as somebody else, who may not read this Python's modules any more."""
    script = """
import asyncio, concurrent.futures.thread, json, os, sys
from pathlib import Path
from remote_tool.transport.sync.project.snapshot import SelectionRules, take_snapshot
root = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([])
os.setresuid(*[int(sys.argv[2])] * 3)
for name in ("a.py", "closed", "folder/x"):
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("text")
for name in ("closed", "folder"):
    (root / name).chmod(0)
snapshot = asyncio.run(take_snapshot(root, SelectionRules(root / "none")))
(root / "folder").chmod(0o700)
print(json.dumps([[os.fsdecode(entry.name) for entry in snapshot.entries], snapshot.skipped]))
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        user = 65534 if os.geteuid() == 0 else os.geteuid()
        os.chown(name, user, -1)
        answer = subprocess.run(
            [sys.executable, "-c", script, name, str(user)],
            check=True,
            capture_output=True,
            cwd="/",
            env=plain_environment(),
        )
    names, skipped = json.loads(answer.stdout)
    assert sorted(names) == ["a.py", "folder/"]
    assert dict(skipped)["closed"] == "cannot be read"
    assert any("folder" in name and "Permission denied" in name for name, _ in skipped)


def plain_environment() -> dict[str, str]:
    root = str(Path(snapshot.__file__).parents[2])
    return {"PATH": os.environ["PATH"], "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": "/tmp"}


@pytest.mark.row(68)
async def test_a_missing_project_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SyncError, match="does not exist"):
        await take_snapshot(tmp_path / "gone", SelectionRules(tmp_path / "none"))


@pytest.mark.row(83)
async def test_exclude_txt_of_another_editor_is_understood(desk: Desk) -> None:
    for name in ("a.bin", "b b.txt", "c.txt"):
        desk.write(name)
    desk.exclude(b"\xef\xbb\xbf*.bin\rb b.txt\t \r\n!\0x\n")
    await desk.sync()
    assert desk.names() == {"a.py", "c.txt"}


@pytest.mark.row(112)
async def test_a_configured_key_that_does_not_look_like_one_stays(desk: Desk) -> None:
    desk.write("key.der", "binary")
    server = replace(desk.config.servers["first"], private_key=desk.project / "key.der")
    rules = selection_rules(replace(desk.config, servers={"first": server}))
    wanted = await take_snapshot(desk.project, rules)
    assert [entry.name for entry in wanted.entries] == [b"a.py"]
    assert wanted.skipped == (("key.der", "is a private key"),)


@pytest.mark.row(83)
async def test_an_unreadable_exclude_txt_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SyncError, match="cannot be read: Is a directory"):
        await take_snapshot(tmp_path, SelectionRules(tmp_path))


@pytest.mark.row(69)
@pytest.mark.parametrize("status", sorted({1, 2, 3, 5, 10, 11, 12, 13, 14, 20, 22, 23, 30, 35, 127, 255}))
def test_each_exit_status_is_one_clear_cause(status: int) -> None:
    error = Ending("first", status, Exit(0), b"", b"").failure()
    assert error is not None
    assert error.message == f"first: the project was not sent: {CAUSES[status]}"
    assert error.hint


@pytest.mark.row(69)
@pytest.mark.parametrize(
    ("local", "remote", "expected"),
    [
        (0, Exit(0), None),
        (24, Exit(0), None),
        (12, Exit(11), CAUSES[11]),
        (127, Exit(127), CAUSES[127]),
        (12, Exit(12), CAUSES[12]),
        (11, Exit(12), CAUSES[11]),
        (255, Exit(None, "KILL"), "the server's rsync was killed by SIGKILL"),
        (137, Exit(137), "the server's rsync was killed by SIGKILL"),
        (-15, Exit(12), "rsync was killed by signal 15"),
        (99, Exit(0), "rsync ended with status 99"),
        (12, None, CAUSES[12]),
    ],
)
def test_the_end_that_tells_more_is_the_cause(local: int, remote: Exit | None, expected: str | None) -> None:
    error = Ending("first", local, remote, b"", b"").failure()
    assert (error.message.removeprefix("first: the project was not sent: ") if error else None) == expected


@pytest.mark.row(72, 112)
async def test_a_secret_that_appears_after_the_listing_stays_too(desk: Desk) -> None:
    wanted = await take_snapshot(desk.project, selection_rules(desk.config))
    for name in (".env", "sub/.env.local", "id_rsa", ".aws/credentials", ".env.example"):
        desk.write(name)
    (desk.project / "out").symlink_to("/")
    async with HostPool(desk.config) as pool:
        options = PushOptions(workspace=own_workspace(desk.config.local))
        await push(await pool.host("first"), desk.config.remote, wanted, options)
    assert desk.names() == {"a.py", "sub", ".env.example"}


async def test_all_of_a_first_sync_gets_into_the_project(desk: Desk) -> None:
    """It is received beside and moved: whatever its names are, with the permissions of the folder itself."""
    names = {".hidden", "..two", "...three", "-rf", "a b*", "sub/deep/x", ".folder/y"}
    for name in names:
        desk.write(name)
    (desk.project / "link").symlink_to("a.py")
    (desk.project / "gone").symlink_to("not-there")
    (desk.project / "empty").mkdir()
    desk.project.chmod(0o751)
    await desk.sync()
    assert {str(path.relative_to(desk.copy)) for path in files_of(desk.copy)} == names | {"a.py", "link", "gone"}
    assert (desk.copy / "empty").is_dir()
    assert stat.S_IMODE(desk.copy.stat().st_mode) == 0o751
    assert {path.name for path in (desk.copy / ".remote-scripts").iterdir()} == OWN


def files_of(copy: Path) -> list[Path]:
    """Return the files and links of a copy."""
    ours = copy / ".remote-scripts"
    return [path for path in copy.rglob("*") if ours not in path.parents and (path.is_symlink() or path.is_file())]


@pytest.mark.row(78)
@pytest.mark.slow
async def test_an_interrupted_first_sync_resumes_with_the_files_that_arrived(desk: Desk) -> None:
    (desk.project / "big").write_bytes(os.urandom(48 * 1024 * 1024))
    arriving = desk.copy / ".remote-scripts" / "arriving"

    await have_rsync_killed(desk)
    assert (arriving / "a.py").exists()
    assert desk.names() == set()
    (arriving / ".big.AbC123").write_text("half, of a rsync that could not tidy up")
    assert (await desk.sync()).sent == ("big",)
    assert desk.names() == {"a.py", "big"}
    assert not arriving.exists()


@pytest.mark.row(70, 72)
@pytest.mark.slow
async def test_what_somebody_makes_there_during_a_first_sync_stays_and_the_next_one_has_all(desk: Desk) -> None:
    desk.write("sub/ours")
    (desk.project / "big").write_bytes(os.urandom(24 * 1024 * 1024))
    theirs = desk.copy / "sub" / "theirs"

    def write(progress: Progress) -> None:
        if progress.bytes > 8_000_000 and not theirs.exists():
            theirs.parent.mkdir()
            theirs.write_text("kept")

    async with HostPool(desk.config) as pool:
        with pytest.raises(SyncError, match="other files appeared in the project during the sync"):
            await push_of(desk, await pool.host("first"), write)
    assert (desk.copy / ".remote-scripts" / "sync").read_text().startswith("incomplete ")
    await desk.sync()
    assert {str(path.relative_to(desk.copy)) for path in files_of(desk.copy)} == {
        *("a.py", "big", "sub/ours", "sub/theirs")
    }
    assert theirs.read_text() == "kept"


@pytest.mark.row(78)
@pytest.mark.slow
async def test_what_a_killed_rsync_of_the_server_leaves_is_not_in_the_project_and_goes(desk: Desk) -> None:
    await desk.sync()
    (desk.project / "big").write_bytes(os.urandom(48 * 1024 * 1024))
    new = desk.copy / ".remote-scripts" / "partial"

    await have_rsync_killed(desk)
    assert list(new.iterdir()), "what it was writing"
    assert desk.names() <= {"a.py"}
    await desk.sync()
    assert desk.names() == {"a.py", "big"}
    assert not new.exists()


@pytest.mark.row(78)
@pytest.mark.slow
async def test_a_file_of_a_sync_that_was_cut_off_goes_when_it_is_gone_here(desk: Desk) -> None:
    """Though the server never heard what all was to be sent; what somebody else has there stays."""
    desk.write("b.py", "half way")
    (desk.project / "big").write_bytes(os.urandom(24 * 1024 * 1024))
    (desk.project / "z.py").write_text("as here")
    desk.copy.mkdir()
    (desk.copy / "z.py").write_text("a job's own")
    os.utime(desk.copy / "z.py", (1, 1))
    async with HostPool(desk.config) as pool:
        task = asyncio.create_task(sync(pool, desk.config, ("first",), SyncOptions(), desk.events.append))
        await until(lambda: any((desk.copy / ".remote-scripts" / "partial").glob("big.*")))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert {"a.py", "b.py", "z.py"} <= desk.names()
    await until(lambda: not programs(desk.server.home))
    for name in ("b.py", "big", "z.py"):
        (desk.project / name).unlink()
    assert (await desk.sync()).removed == ("b.py",)
    assert desk.names() == {"a.py", "z.py"}
    assert not desk.config.local.begun_sync("first").exists()


@pytest.mark.row(201)
@pytest.mark.parametrize("overwrite", [False, True])
async def test_an_edit_that_looks_like_what_a_failed_sync_sent_is_sent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """Both versions have the same size and second; rsync compares no more than these."""
    os.utime(desk.project / "a.py", (1, 1))
    await desk.sync()
    file, second = desk.write("new.py", "one\n"), int(time.time()) + 3600
    os.utime(file, ns=(0, second * 10**9 + 1))
    with monkeypatch.context() as patch:
        patch.setattr(server_script, "commit_words", lambda *_sizes, **_flags: b"")
        assert "could not be completed" in str((await desk.results()).errors["first"])
    assert (desk.copy / "new.py").read_text() == "one\n"
    file.write_text("two\n")
    os.utime(file, ns=(0, second * 10**9 + 2))
    assert (await desk.sync(overwrite=overwrite)).sent == ("new.py",)
    assert (desk.copy / "new.py").read_text() == "two\n"
    assert (await desk.sync()).sent == ()


@pytest.mark.row(78)
async def test_the_note_of_a_sync_that_was_cut_off_holds_only_names_in_the_project(desk: Desk) -> None:
    """The project may come from somebody else, with a note in it."""
    outside = desk.server.home / "outside.txt"
    outside.write_text("mine")
    found = outside.stat()
    file = desk.config.local.begun_sync("first")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"%d %d ../outside.txt\0%d %d %b\0" % (*(found.st_size, int(found.st_mtime)) * 2, bytes(outside)))
    assert (await desk.sync()).removed == ()
    assert outside.exists()
    file.symlink_to(outside)
    desk.write("b.py")
    await desk.sync()
    assert outside.read_text() == "mine"
    assert not file.is_symlink()


@pytest.mark.row(79)
@pytest.mark.slow
async def test_files_that_grow_and_change_meanwhile_do_not_stop_a_sync_and_the_next_one_has_all(desk: Desk) -> None:
    (desk.project / "growing").write_bytes(os.urandom(24 * 1024 * 1024))
    changes = 0

    def change(progress: Progress) -> None:
        nonlocal changes
        if progress.bytes > 1_000_000 and changes < 20:
            changes += 1
            with (desk.project / "growing").open("ab") as growing:
                growing.write(b"more" * 1000)
            desk.write("a.py", "changed " * changes)
            desk.write(f"new{changes}.py")

    async with HostPool(desk.config) as pool:
        host = await pool.host("first")
        await push_of(desk, host, change)
        assert changes
        await push_of(desk, host)
    for path in desk.project.glob("*.py"):
        assert (desk.copy / path.name).read_bytes() == path.read_bytes()
    assert (desk.copy / "growing").read_bytes() == (desk.project / "growing").read_bytes()
    assert desk.state.startswith("complete ")


@pytest.mark.row(86)
@pytest.mark.slow
async def test_twenty_thousand_small_files_cost_few_bytes_when_nothing_changed(desk: Desk) -> None:
    """The budget of docs/reliability.md: one command, and less than 100 bytes a file on the wire."""
    count = 20_000
    for number in range(count):
        path = desk.project / f"package{number % 100}" / f"module_{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"x = {number}\n")
    labels: list[str] = []
    began = time.monotonic()
    first = await desk.sync()
    record_figure("20,000 small files, first sync, seconds", round(time.monotonic() - began, 1))
    assert len(first.sent) == count + 1
    async with HostPool(desk.config, trace=lambda _server, label, _seconds: labels.append(label)) as pool:
        host = await pool.host("first")
        labels.clear()
        began = time.monotonic()
        wanted = await take_snapshot(desk.project, selection_rules(desk.config))
        result = await push(host, desk.config.remote, wanted, PushOptions())
        record_figure("20,000 small files, nothing changed, seconds", round(time.monotonic() - began, 1))
    record_figure("20,000 small files, nothing changed, bytes to the server", result.bytes)
    assert labels == ["rsync"]
    assert result.sent == ()
    assert result.bytes < 100 * count
    assert first.bytes < 300 * count
