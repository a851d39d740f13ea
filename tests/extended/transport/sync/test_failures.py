"""When a sync does not get through: one clear cause, a copy known not to be whole, and a next sync that mends."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectError, SyncError
from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh import script
from remote_tool.transport.sync import server_script
from remote_tool.workflows.events import StepProgress
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.test_push import Desk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.events import Event
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

# Every program that a script of ours and a login need, but rsync.
TOOLS = ("sh", "bash", "cat", "mkdir", "mv", "rm", "rmdir", "head", "tail", "wc", "stat", "xargs", "sleep", "tr", "cut")


def tools(folder: Path) -> Path:
    """Make a PATH without rsync."""
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


def desk_for(server: TestServer, tmp_path: Path) -> Desk:
    desk = Desk(make_configuration([server], tmp_path / "project"), server)
    desk.write("a.py")
    return desk


@pytest.fixture
def server_without_rsync(make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestServer:
    """A server that has rsync nowhere, though this machine may have one in a place of the system's."""
    monkeypatch.setattr(script, "SYSTEM_PATH", ":")
    places = [place for place in server_script.PLACES if not place.startswith("/")]
    monkeypatch.setattr(server_script, "PLACES", tuple(places))
    return make_server(SetEnv=f"PATH={tools(tmp_path / 'tools')}")


def fake_rsync(desk: Desk, program: str) -> None:
    """Put a program before the real rsync of the server; "$@" is what it was given."""
    file = desk.server.home / "miniconda3" / "bin" / "rsync"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{program}\n")
    file.chmod(0o755)


async def failure(desk: Desk) -> RemoteToolError:
    return (await desk.results()).errors["first"]


@pytest.mark.row(55, 69)
async def test_a_server_without_rsync_says_how_to_get_it(server_without_rsync: TestServer, tmp_path: Path) -> None:
    desk = desk_for(server_without_rsync, tmp_path)
    error = await failure(desk)
    assert isinstance(error, SyncError)
    assert "rsync is not installed" in error.message
    assert "apt-get install rsync" in error.hint
    assert "conda install" in error.hint
    assert not desk.copy.exists()


@pytest.mark.row(55)
async def test_rsync_of_a_miniconda_is_found(server_without_rsync: TestServer, tmp_path: Path) -> None:
    desk = desk_for(server_without_rsync, tmp_path)
    fake_rsync(desk, f'exec {shutil.which("rsync")} "$@"')
    await desk.sync()
    assert desk.names() == {"a.py"}


@pytest.mark.row(69, 70)
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("exit 11", "disk"),
        ("exit 1", "options"),
        ("exit 14", "talk to each other"),
        ("exit 77", "status 77"),
        ("kill -KILL $$", "SIGKILL"),
        ("exit 0", "exited too early"),
    ],
)
async def test_how_the_servers_rsync_ended_is_one_sentence(
    server_without_rsync: TestServer, tmp_path: Path, program: str, expected: str
) -> None:
    desk = desk_for(server_without_rsync, tmp_path)
    fake_rsync(desk, f"echo the reason >&2; {program}")
    error = await failure(desk)
    assert isinstance(error, SyncError)
    assert error.message.startswith("first: the project was not sent: ")
    assert expected in error.message.partition("\n")[0]
    assert "the reason" in error.message
    assert error.hint
    assert desk.state.startswith("incomplete ")


ONCE = """
case $1$2 in --version) exec REAL "$@";; esac
echo one >> "$HOME/tries"
[ "$(wc -l < "$HOME/tries")" -gt 1 ] || exit STATUS
exec REAL "$@"
"""


@pytest.mark.row(69)
@pytest.mark.parametrize("status", [10, 12, 30, 35])
async def test_two_rsyncs_that_lost_each_other_are_tried_once_more(
    server_without_rsync: TestServer, tmp_path: Path, status: int
) -> None:
    desk = desk_for(server_without_rsync, tmp_path)
    fake_rsync(desk, ONCE.replace("REAL", shutil.which("rsync") or "").replace("STATUS", str(status)))
    await desk.sync()
    assert desk.names() == {"a.py"}
    assert "trying again" in desk.notices
    assert desk.state.startswith("complete ")


@pytest.mark.row(69)
@pytest.mark.parametrize("status", [1, 2, 5, 11, 14, 20, 22, 23, 25, 77, 126, 127])
async def test_an_rsync_that_would_fail_again_is_not_retried(
    server_without_rsync: TestServer, tmp_path: Path, status: int
) -> None:
    desk = desk_for(server_without_rsync, tmp_path)
    fake_rsync(desk, ONCE.replace("REAL", shutil.which("rsync") or "").replace("STATUS", str(status)))
    assert isinstance(await failure(desk), SyncError)
    assert (desk.server.home / "tries").read_text() == "one\n"


@pytest.mark.row(69)
async def test_two_rsyncs_that_lose_each_other_again_are_given_up(
    server_without_rsync: TestServer, tmp_path: Path
) -> None:
    desk = desk_for(server_without_rsync, tmp_path)
    fake_rsync(desk, 'case $1$2 in --version) exit;; esac; echo one >> "$HOME/tries"; exit 12')
    assert "exited too early" in str(await failure(desk))
    assert (desk.server.home / "tries").read_text() == "one\n" * 2


@pytest.mark.row(69)
async def test_a_file_that_cannot_be_written_is_named(make_server: MakeServer, tmp_path: Path) -> None:
    desk = desk_for(make_server(), tmp_path)
    (desk.copy / "a.py").mkdir(parents=True)
    (desk.copy / "a.py" / "output").write_text("a job's")
    error = await failure(desk)
    assert isinstance(error, SyncError)
    assert "some files were not sent: a folder on the server, with files of its own: a.py" in error.message
    assert "mv a.py a.py.old" in (error.hint or "")
    assert desk.state.startswith("incomplete ")
    assert (desk.copy / "a.py" / "output").exists()


@pytest.mark.row(52, 69)
@pytest.mark.parametrize(
    "noise", ["echo Welcome", "printf 'no newline'", "head -c 300000 /dev/zero | tr '\\0' x; echo"]
)
async def test_output_of_bashrc_does_no_harm(make_server: MakeServer, tmp_path: Path, noise: str) -> None:
    desk = desk_for(make_server(), tmp_path)
    (desk.server.home / ".bashrc").write_text(noise + "\n")
    await desk.sync()
    assert desk.names() == {"a.py"}


@pytest.mark.row(69)
async def test_a_project_folder_that_is_a_file_is_reported(make_server: MakeServer, tmp_path: Path) -> None:
    desk = desk_for(make_server(), tmp_path)
    desk.copy.write_text("no folder")
    error = await failure(desk)
    assert isinstance(error, SyncError)
    assert "folder" in error.message
    assert desk.copy.read_text() == "no folder"


async def test_one_servers_failure_leaves_the_other_alone(make_server: MakeServer, tmp_path: Path) -> None:
    good = make_server("good")
    bad = make_server("bad")
    config = make_configuration([good, bad], tmp_path / "project")
    (tmp_path / "project" / "a.py").write_text("a")
    (bad.home / "project").write_text("no folder")
    async with HostPool(config) as pool:
        results = await sync(pool, config, ("good", "bad"), SyncOptions(), lambda _event: None)
    assert set(results.values) == {"good"}
    assert set(results.errors) == {"bad"}
    assert (good.home / "project" / "a.py").exists()


async def test_a_missing_local_rsync_is_reported_with_the_command_that_installs_it(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_for(make_server(), tmp_path)
    monkeypatch.setenv("PATH", str(tools(tmp_path / "tools")))
    error = await failure(desk)
    assert isinstance(error, SyncError)
    assert "this machine" in error.message
    assert "install rsync" in error.hint


def large_desk(server: TestServer, tmp_path: Path) -> Desk:
    """A project whose sending takes a moment; a file of this second would be sent again after an interruption."""
    desk = desk_for(server, tmp_path)
    for number in range(20):
        file = desk.project / f"part{number:02}"
        file.write_bytes(os.urandom(4 * 1024 * 1024))
        os.utime(file, (1, 1))
    return desk


def arrived(desk: Desk) -> list[Path]:
    """Return what a first sync has brought so far."""
    return list((desk.copy / ".remote-scripts" / "arriving").glob("part*"))


def when_half_is_there(desk: Desk, action: Callable[[], None]) -> Callable[[Event], None]:
    """Do it once, when the server has a file."""
    done: list[bool] = []

    def report(event: Event) -> None:
        desk.events.append(event)
        if isinstance(event, StepProgress) and not done and arrived(desk):
            done.append(True)
            action()

    return report


@pytest.mark.row(70)
@pytest.mark.slow
async def test_a_link_that_goes_in_the_middle_leaves_a_copy_known_as_half_and_the_next_sync_mends(
    make_server: MakeServer, tmp_path: Path
) -> None:
    desk = large_desk(make_server(), tmp_path)
    async with HostPool(desk.config) as pool:
        report = when_half_is_there(desk, desk.server.stop)
        results = await sync(pool, desk.config, ("first",), SyncOptions(), report)
    assert isinstance(results.errors["first"], ConnectError)
    assert desk.state.startswith("incomplete ")
    assert 0 < len(arrived(desk)) < 20
    assert not any(desk.copy.glob("part*"))

    desk.server.start()
    result = await desk.sync()
    assert desk.state == f"complete {result.snapshot}\n"
    assert 0 < len([name for name in result.sent if name.startswith("part")]) < 20, "what had arrived is not sent again"
    for number in range(20):
        name = f"part{number:02}"
        assert (desk.copy / name).read_bytes() == (desk.project / name).read_bytes()


@pytest.mark.row(61)
@pytest.mark.slow
async def test_ctrl_c_in_the_middle_ends_both_rsyncs(make_server: MakeServer, tmp_path: Path) -> None:
    desk = large_desk(make_server(), tmp_path)
    async with HostPool(desk.config) as pool:
        half = asyncio.Event()
        task = asyncio.create_task(
            sync(pool, desk.config, ("first",), SyncOptions(), when_half_is_there(desk, half.set))
        )
        await asyncio.wait_for(half.wait(), 60)
        task.cancel()
        began = asyncio.get_running_loop().time()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - began < 20
    assert desk.state.startswith("incomplete ")
    assert (await desk.sync()).changed
