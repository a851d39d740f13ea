"""Two syncs to one place, and a sync while jobs run there (rows 70, 71 and 85)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import SyncError
from remote_tool.paths import RemotePaths
from remote_tool.protocol.records import encode_record
from remote_tool.transport.pool import HostPool
from remote_tool.transport.sync import push as push_module
from remote_tool.transport.sync import server_script
from remote_tool.transport.sync.project.snapshot import take_snapshot
from remote_tool.transport.sync.push import PushResult, push
from remote_tool.transport.sync.push_options import PushOptions
from remote_tool.workflows.sync.project import selection_rules
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.test_push import Desk

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.server_state import Attempt
    from tests.conftest import MakeServer

JOB = "20261121-053000-0123456789abcdef0123456789abcdef"


@pytest.fixture
def laptops(make_server: MakeServer, tmp_path: Path) -> tuple[Desk, Desk]:
    """Two checkouts of one project that are sent to one server."""
    server = make_server()
    desks = (
        Desk(make_configuration([server], tmp_path / "a"), server),
        Desk(make_configuration([server], tmp_path / "b"), server),
    )
    for number, desk in enumerate(desks):
        for name in range(50):
            desk.write(f"file_{name}.py", f"{number}" * (1000 + number))
    return desks


async def send(desk: Desk, waiting: list[str] | None = None) -> PushResult:
    wanted = await take_snapshot(desk.project, selection_rules(desk.config))
    said = waiting if waiting is not None else []
    async with HostPool(desk.config) as pool:
        host = await pool.host("first")
        return await push(host, desk.config.remote, wanted, PushOptions(on_waiting=said.append))


def content(desk: Desk) -> set[str]:
    return {path.read_text() for path in desk.copy.glob("file_*.py")}


@pytest.mark.row(70, 85)
async def test_of_many_syncs_at_once_one_after_the_other_is_whole(laptops: tuple[Desk, Desk]) -> None:
    waiting: list[str] = []
    results = await asyncio.gather(*(send(desk, waiting) for desk in laptops * 3))
    last = {(desk.copy.parent / "project" / ".remote-scripts" / "sync").read_text() for desk in laptops}
    assert last <= {f"complete {result.snapshot}\n" for result in results}
    assert len(last) == 1
    # No mixture of the two.
    assert len(content(laptops[0])) == 1
    assert waiting
    assert all(text.startswith("waiting: ") for text in waiting)


@pytest.mark.row(85)
async def test_a_sync_that_waits_names_the_one_it_waits_for(laptops: tuple[Desk, Desk]) -> None:
    first, second = laptops
    waiting: list[str] = []
    scripts = first.copy / ".remote-scripts"
    await send(first)
    owner = (scripts / "sync-owner").read_text()
    with (scripts / "sync-lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sending = asyncio.create_task(send(second, waiting))
        async with asyncio.timeout(300):
            while not waiting:  # noqa: ASYNC110 - another program's doing
                await asyncio.sleep(0.01)
        assert not sending.done()
    assert (await sending).changed
    (text,) = waiting
    assert owner.split()[1] in text
    assert "has been syncing here for" in text


@pytest.mark.row(85)
async def test_a_lock_is_not_waited_for_for_ever(laptops: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_script, "PATIENCE", 1)
    await send(laptops[0])
    with (laptops[0].copy / ".remote-scripts" / "sync-lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SyncError, match="another sync has been running there") as caught:
            await send(laptops[1])
    assert "has been syncing here for" in str(caught.value)


@pytest.mark.row(70, 85)
async def test_a_sync_that_was_overtaken_does_not_say_that_the_copy_is_whole(
    laptops: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server has no flock nobody waits."""
    await send(laptops[0])
    state = laptops[0].copy / ".remote-scripts" / "sync"
    original = server_script.commit_words

    def overtaken(attempt: Attempt, sent_size: int, stale_size: int, *, all_sent: bool) -> bytes:
        state.write_text("incomplete other mark\n")
        return original(attempt, sent_size, stale_size, all_sent=all_sent)

    monkeypatch.setattr(server_script, "commit_words", overtaken)
    with pytest.raises(SyncError, match="has started another sync here"):
        await send(laptops[1])
    assert state.read_text() == "incomplete other mark\n"


def tell_of_comparisons(desk: Desk) -> Path:
    """Have the server make a file whenever it has compared its copy."""
    compared, digest = desk.project.parent / "compared", desk.server.programs / "sha256sum"
    digest.parent.mkdir(exist_ok=True)
    digest.write_text(f'#!/bin/sh\n{shutil.which("sha256sum")} "$@"\ntouch "{compared}"\n')
    digest.chmod(0o755)
    return compared


async def appearance(file: Path) -> None:
    async with asyncio.timeout(300):
        while not file.exists():  # noqa: ASYNC110 - another program's doing
            await asyncio.sleep(0.01)


@pytest.mark.row(249)
async def test_an_edit_on_the_server_during_a_long_listing_is_seen(
    laptops: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_module, "FRESH_SECONDS", 0.0)
    desk = laptops[0]
    await desk.sync()
    compared = tell_of_comparisons(desk)

    async def list_slowly() -> Snapshot:
        await appearance(compared)
        (desk.copy / "file_1.py").write_text("edited there")
        desk.write("file_1.py", "edited here, too")
        return await take_snapshot(desk.project, selection_rules(desk.config))

    options = PushOptions(known=desk.config.local.known_copy("first"))
    async with HostPool(desk.config) as pool:
        with pytest.raises(SyncError, match="changed both here and on the server"):
            await push(await pool.host("first"), desk.config.remote, list_slowly, options)
    assert (desk.copy / "file_1.py").read_text() == "edited there"


@pytest.mark.row(247, 248)
async def test_a_sync_that_lists_its_project_holds_up_no_other_and_sees_what_that_one_sent(
    laptops: tuple[Desk, Desk],
) -> None:
    first, second = laptops
    await first.sync()
    compared, listed, waiting = tell_of_comparisons(first), asyncio.Event(), list[str]()

    async def list_slowly() -> Snapshot:
        await listed.wait()
        return await take_snapshot(first.project, selection_rules(first.config))

    options = PushOptions(known=first.config.local.known_copy("first"), on_waiting=waiting.append)
    async with HostPool(first.config) as pool:
        sending = asyncio.create_task(push(await pool.host("first"), first.config.remote, list_slowly, options))
        await appearance(compared)
        assert (await send(second, waiting)).changed
        assert content(first) == {"1" * 1001}
        listed.set()
        assert len((await sending).sent) == 50
    assert waiting == []
    assert content(first) == {"0" * 1000}


@pytest.mark.row(247)
async def test_a_project_that_cannot_be_listed_leaves_the_server_as_it_is(laptops: tuple[Desk, Desk]) -> None:
    first, second = laptops
    await first.sync()
    files = {path: path.stat().st_mtime_ns for path in (first.copy / ".remote-scripts").glob("sync*")}
    first.config.local.exclude_file.unlink(missing_ok=True)
    first.config.local.exclude_file.mkdir()
    with pytest.raises(SyncError, match=r"exclude\.txt cannot be read"):
        await first.sync()
    assert {path: path.stat().st_mtime_ns for path in (first.copy / ".remote-scripts").glob("sync*")} == files
    waiting: list[str] = []
    assert (await send(second, waiting)).changed
    assert waiting == []


@pytest.mark.row(85)
async def test_the_lock_is_free_at_once_after_a_sync(laptops: tuple[Desk, Desk]) -> None:
    await send(laptops[0])
    scripts = laptops[0].copy / ".remote-scripts"
    async with asyncio.timeout(300):
        while True:
            with (scripts / "sync-lock").open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.01)
    assert not list(scripts.glob("sync-lock.*"))


@pytest.mark.row(71)
@pytest.mark.parametrize("lost", [3, 40])
def test_running_jobs_are_told_apart_from_lost_ones_with_few_processes(tmp_path: Path, lost: int) -> None:
    """A flock for each of 2,000 lost jobs takes three seconds. Jobs in copies of the project do not matter to it."""
    remote = RemotePaths("proj ect")
    calls = tmp_path / "calls"
    flock = tmp_path / "bin" / "flock"
    flock.parent.mkdir()
    flock.write_text(f'#!/bin/sh\necho >> "{calls}"\nexec {shutil.which("flock")} "$@"\n')
    flock.chmod(0o755)
    ids = [f"20261121-053000-{number:032x}" for number in range(lost + 2)]
    for job_id in ids:
        folder = tmp_path / remote.jobs / job_id
        folder.mkdir(parents=True)
        (folder / "reserve").write_text("")
    environment = {"HOME": str(tmp_path), "PATH": f"{flock.parent}:{os.environ['PATH']}"}
    in_copy = tmp_path / remote.jobs / ids[0]
    (in_copy / "spec.json").write_bytes(encode_record({"command": '"copy":"b"', "copy": "0123456789abcdef"}))
    (tmp_path / remote.jobs / ids[-1] / "spec.json").write_bytes(encode_record({"command": '"copy":"b"', "copy": ""}))
    with (tmp_path / remote.jobs / ids[-1] / "reserve").open("rb") as held, (in_copy / "reserve").open("rb") as other:
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)
        script = ["sh", "-c", server_script.running_script(remote)]
        done = subprocess.run(script, env=environment, check=True, capture_output=True)
    assert server_script.parse_finish(done.stdout) == ([], ids[-1:])
    assert done.stderr == b""
    assert len(calls.read_text().splitlines() if calls.exists() else []) <= 16


@pytest.mark.row(71)
async def test_changing_files_under_a_running_job_gives_a_notice(laptops: tuple[Desk, Desk]) -> None:
    first, _ = laptops
    await send(first)
    reserve = first.copy / ".jobs" / JOB / "reserve"
    reserve.parent.mkdir(parents=True)
    reserve.write_text("")
    ended = first.copy / ".jobs" / JOB.replace("0123", "4567") / "reserve"
    ended.parent.mkdir()
    ended.write_text("")
    with reserve.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert (await send(first)).warnings == ()
        first.write("file_1.py", "changed")
        (warning,) = (await send(first)).warnings
    assert "a job is running in the folder that was updated" in warning
    assert JOB in warning
    assert ended.parent.name not in warning
    os.utime(first.project / "file_2.py", (1, 1))
    assert (await send(first)).warnings == ()
