"""What the last sync left is looked at by the server itself: rsync sends what is not so any more, and nothing else."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from remote_tool.transport.pool import HostPool
from remote_tool.transport.sync import last_sync, server_script
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.server_tools import rename
from tests.extended.transport.sync.test_push import Desk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import MakeServer

RSYNC = shutil.which("rsync") or "rsync"


@pytest.fixture
def desk(make_server: MakeServer, tmp_path: Path) -> Desk:
    server = make_server()
    desk = Desk(make_configuration([server], tmp_path / "project"), server)
    for name in ("a.py", "sub/b.py", "sub/deep/it's\n$(c).py", "-", "z -> a.py", "4 5 6"):
        desk.write(name)
    (desk.project / "empty").mkdir()
    (desk.project / "link").symlink_to("sub/b.py")
    return desk


@pytest.fixture
def sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return the arguments of each rsync that was started here to send, since the last time."""
    seen = tmp_path / "sends"
    program = tmp_path / "tools" / "rsync"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncase "$*" in *server:.) echo "$*" >> {seen};; esac\nexec {RSYNC} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def since() -> list[str]:
        lines = seen.read_text().splitlines() if seen.exists() else []
        seen.unlink(missing_ok=True)
        return lines

    return since


async def labels_of(desk: Desk) -> list[str]:
    """Sync; return what was run on the server."""
    labels: list[str] = []
    async with HostPool(desk.config, trace=lambda _server, label, _seconds: labels.append(label)) as pool:
        (await sync(pool, desk.config, ("first",), SyncOptions(), desk.events.append)).raise_if_any_failed()
    return [label for label in labels if not label.startswith("log in")]


@pytest.mark.row(86)
async def test_no_rsync_is_started_when_nothing_changed(desk: Desk, sends: Callable[[], list[str]]) -> None:
    first = await desk.sync()
    assert len(sends()) == 1
    assert (await desk.sync()).sent == ()
    assert (await desk.sync(dry_run=True)).sent == ()
    assert sends() == []
    assert desk.state == f"complete {first.snapshot}\n"


async def test_rsync_gets_only_the_locally_changed_files(desk: Desk, sends: Callable[[], list[str]]) -> None:
    await desk.sync()
    sends()
    desk.write("sub/deep/it's\n$(c).py", "changed, and longer\n")
    desk.write("new folder/d.py")
    (desk.project / "link").unlink()
    (desk.project / "link").symlink_to("a.py")
    (desk.project / "4 5 6").chmod(0o600)
    result = await desk.sync()
    assert set(result.sent) == {"sub/deep/it's\n$(c).py", "new folder/d.py", "link", "4 5 6"}
    (arguments,) = sends()
    assert "--files-from=-" in arguments
    assert "-r" not in arguments.split()[0]
    assert (desk.copy / "new folder" / "d.py").exists()
    assert (desk.copy / "link").readlink().name == "a.py"
    assert (await desk.sync()).sent == ()
    assert sends() == []


async def test_removals_alone_are_synced_without_rsync(desk: Desk, sends: Callable[[], list[str]]) -> None:
    await desk.sync()
    sends()
    for name in ("sub/deep/it's\n$(c).py", "z -> a.py", "link"):
        (desk.project / name).unlink()
    (desk.project / "sub" / "deep").rmdir()
    assert set((await desk.sync(dry_run=True)).removed) == {"sub/deep/it's\n$(c).py", "z -> a.py", "link"}
    result = await desk.sync()
    assert set(result.removed) == {"sub/deep/it's\n$(c).py", "z -> a.py", "link"}
    assert sends() == []
    assert desk.names() == {"a.py", "sub", "sub/b.py", "-", "4 5 6", "empty"}
    assert desk.state == f"complete {result.snapshot}\n"


def _touch(copy: Path) -> None:
    os.utime(copy / "a.py", (1, 1))


def _close(copy: Path) -> None:
    (copy / "sub" / "b.py").chmod(0o600)


def _close_folder(copy: Path) -> None:
    (copy / "sub").chmod(0o700)


def _remove(copy: Path) -> None:
    (copy / "-").unlink()


def _remove_folder(copy: Path) -> None:
    (copy / "empty").rmdir()


def _lead_elsewhere(copy: Path) -> None:
    found = (copy / "link").lstat()
    (copy / "link").unlink()
    (copy / "link").symlink_to("sub/c.py")
    os.utime(copy / "link", ns=(found.st_mtime_ns, found.st_mtime_ns), follow_symlinks=False)


@pytest.mark.row(65)
@pytest.mark.parametrize(
    "change",
    [_touch, _close, _close_folder, _remove, _remove_folder, _lead_elsewhere],
)
@pytest.mark.parametrize("edited", [False, True])
async def test_files_changed_since_they_were_sent_are_restored(
    desk: Desk, change: Callable[[Path], None], *, edited: bool
) -> None:
    """As rsync itself would find it, whether something changed here or not."""
    await desk.sync()
    expected = _content(desk.copy)
    change(desk.copy)
    assert _content(desk.copy) != expected
    if edited:
        desk.write("new.py")
    await desk.sync()
    (desk.copy / "new.py").unlink(missing_ok=True)
    assert _content(desk.copy) == expected


def _content(copy: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in copy.rglob("*"):
        name = str(path.relative_to(copy))
        if not name.startswith(".remote-scripts"):
            status = path.lstat()
            folder = path.is_dir() and not path.is_symlink()
            what = "" if folder else str(path.readlink()) if path.is_symlink() else path.read_text()
            found[name] = (status.st_mode, what, 0 if folder else int(status.st_mtime))
    return found


async def test_a_copy_that_somebody_else_sent_is_compared_by_what_the_server_tells(
    desk: Desk, sends: Callable[[], list[str]], tmp_path: Path
) -> None:
    await desk.sync()
    other = Desk(make_configuration([desk.server], tmp_path / "other"), desk.server)
    other.write("theirs.py")
    await other.sync()
    sends()
    desk.write("a.py", "changed, and longer\n")
    assert (await desk.sync()).removed == ("theirs.py",)
    (arguments,) = sends()
    assert "--files-from=-" in arguments
    assert desk.names() >= {"a.py", "sub/b.py"}


async def test_a_server_without_the_tools_for_a_hash_tells_of_each_file(
    desk: Desk, sends: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename(monkeypatch, "receive", "sha256sum", "no-such-program")
    await desk.sync()
    sends()
    assert (await desk.sync()).sent == ()
    desk.write("a.py", "changed, and longer\n")
    assert (await desk.sync()).sent == ("a.py",)
    assert ["--files-from=-" in arguments for arguments in sends()] == [True, True]


async def test_where_a_shell_cannot_read_behind_rsync_the_end_is_a_session_of_its_own(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await labels_of(desk) == ["rsync"]
    monkeypatch.setattr(server_script, "STREAMS", "/no/such/folder")
    desk.write("a.py", "changed, and longer\n")
    (desk.project / "link").unlink()
    assert sorted(await labels_of(desk)) == ["record the sent files", "rsync"]
    assert "link" not in desk.names()
    assert desk.state.startswith("complete ")


async def test_a_note_that_is_nonsense_is_none(desk: Desk) -> None:
    await desk.sync()
    file = desk.config.local.known_copy("first")
    known = last_sync.recall(file)
    assert known is not None
    for text in (b"", b"\n", b"x 5\n", b"0" * 32 + b" -1\nabc", b"0" * 32 + b" 99999999999\nabc", os.urandom(1000)):
        file.write_bytes(text)
        desk.write("a.py", f"changed {text!r}\n")
        assert (await desk.sync()).sent == ("a.py",)
        assert last_sync.recall(file) is not None


@pytest.mark.row(86)
@pytest.mark.parametrize("job_writes", [False, True])
async def test_an_edit_in_the_second_of_the_last_one_is_sent(desk: Desk, *, job_writes: bool) -> None:
    """Of the same size too: a script that edits, starts and edits again is quicker than rsync's look."""
    path = desk.project / "a.py"
    for number in range(3):
        if job_writes and number:
            (desk.copy / "-").write_text("a job's line\n" * number)
        path.write_text(f"rate = {number}\n")
        os.utime(path, ns=(0, 1_700_000_000_000_000_000 + number))
        await desk.sync()
        assert (desk.copy / "a.py").read_text() == f"rate = {number}\n"
