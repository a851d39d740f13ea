"""Sync with the real rsync over a real sshd: what arrives, what stays, what is never sent."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.errors import SyncError
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.events import Event, Notice, StepEnded, StepOutput
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync
from tests.extended.configuration import make_configuration

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.transport.pool import Results
    from remote_tool.transport.sync.push import PushResult
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

PRIVATE_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"


@dataclass
class Desk:
    """A project here, its copy on one server, and what was reported."""

    config: Config
    server: TestServer
    events: list[Event] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.config.local.root

    @property
    def copy(self) -> Path:
        return self.server.home / "project"

    @property
    def state(self) -> str:
        file = self.copy / ".remote-scripts" / "sync"
        return file.read_text() if file.exists() else ""

    @property
    def notices(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Notice))

    @property
    def step_output(self) -> bytes:
        return b"".join(event.data for event in self.events if isinstance(event, StepOutput))

    def write(self, name: str | bytes, text: str = "text\n") -> Path:
        """Write a file of the project and return its path."""
        path = self.project / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def exclude(self, lines: bytes) -> None:
        self.config.local.exclude_file.write_bytes(lines)

    async def results(self, **options: Any) -> Results[PushResult]:
        async with HostPool(self.config) as pool:
            return await sync(pool, self.config, tuple(self.config.servers), SyncOptions(**options), self.events.append)

    async def sync(self, **options: bool) -> PushResult:
        results = await self.results(**options)
        results.raise_if_any_failed()
        return results.values[self.server.name]

    def names(self) -> set[str]:
        """Every file, link and folder of the server's copy, less what is our own."""
        found = {
            Path(parent, name).relative_to(self.copy)
            for parent, folders, files in os.walk(self.copy)
            for name in (*folders, *files)
        }
        return {str(path) for path in found if path.parts[0] != ".remote-scripts"}


@pytest.fixture
def desk(make_server: MakeServer, tmp_path: Path) -> Desk:
    server = make_server()
    return Desk(make_configuration([server], tmp_path / "project"), server)


async def test_a_first_sync_sends_every_file_with_its_folders_time_and_mode(desk: Desk) -> None:
    desk.write("train.py", "print(1)\n")
    script = desk.write("scripts/deep/go.sh", "#!/bin/sh\n")
    script.chmod(0o755)
    os.utime(script, (1_700_000_000, 1_700_000_000))
    (desk.project / "empty").mkdir()
    result = await desk.sync()
    assert set(result.sent) == {"train.py", "scripts/deep/go.sh"}
    assert desk.names() == {"train.py", "scripts", "scripts/deep", "scripts/deep/go.sh", "empty"}
    arrived = (desk.copy / "scripts/deep/go.sh").stat()
    assert stat.S_IMODE(arrived.st_mode) == 0o755
    assert arrived.st_mtime == 1_700_000_000
    assert desk.state == f"complete {result.snapshot}\n"


async def test_a_second_sync_sends_nothing_and_says_so(desk: Desk) -> None:
    desk.write("train.py")
    first = await desk.sync()
    second = await desk.sync()
    assert second.sent == second.removed == ()
    assert second.snapshot == first.snapshot
    assert [event.detail for event in desk.events if isinstance(event, StepEnded)][-1] == "nothing to send"


async def test_only_the_edited_file_is_sent(desk: Desk) -> None:
    desk.write("a.py")
    desk.write("sub/b.py")
    before = await desk.sync()
    desk.write("sub/b.py", "longer than it was\n")
    after = await desk.sync()
    assert after.sent == ("sub/b.py",)
    assert after.snapshot != before.snapshot
    assert (desk.copy / "sub/b.py").read_text() == "longer than it was\n"


async def test_two_servers_get_the_same_snapshot(two_servers: tuple[TestServer, TestServer], tmp_path: Path) -> None:
    config = make_configuration(two_servers, tmp_path / "project")
    (tmp_path / "project" / "a.py").write_text("a")
    results = await Desk(config, two_servers[0]).results()
    assert results.errors == {}
    assert len({result.snapshot for result in results.values.values()}) == 1
    assert [(server.home / "project" / "a.py").read_text() for server in two_servers] == ["a", "a"]


async def test_a_dry_run_says_what_it_would_do_and_changes_nothing(desk: Desk) -> None:
    desk.write("a.py")
    result = await desk.sync(dry_run=True)
    assert result.sent == ("a.py",)
    assert not desk.copy.exists()

    desk.write("gone.py")
    await desk.sync()
    state, names = desk.state, desk.names()
    (desk.project / "gone.py").unlink()
    desk.write("a.py", "changed, and longer\n")
    result = await desk.sync(dry_run=True)
    assert (result.sent, result.removed) == (("a.py",), ("gone.py",))
    assert (desk.state, desk.names()) == (state, names)
    assert (desk.copy / "a.py").read_text() == "text\n"


@pytest.mark.row(65)
async def test_an_edit_arrives_although_the_servers_file_is_newer(desk: Desk) -> None:
    """As after a laptop's clock was set back: what was sent is newer than what is sent now."""
    path = desk.write("a.py")
    os.utime(path, (4_000_000_000, 4_000_000_000))
    await desk.sync()
    desk.write("a.py", "edited\n")
    await desk.sync()
    assert (desk.copy / "a.py").read_text() == "edited\n"
    # The same where nothing is known here, and where rsync alone compares.
    for text, overwrite in (("edited again\n", False), ("and again\n", True)):
        os.utime(path, (4_000_000_000, 4_000_000_000))
        await desk.sync()
        desk.config.local.known_copy("first").unlink()
        desk.write("a.py", text)
        await desk.sync(overwrite=overwrite)
        assert (desk.copy / "a.py").read_text() == text


@pytest.mark.row(66)
async def test_checksum_finds_an_edit_of_the_same_size_and_time(desk: Desk) -> None:
    path = desk.write("a.py", "aaa\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    await desk.sync()
    desk.write("a.py", "bbb\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert (await desk.sync()).sent == ()
    assert (await desk.sync(checksum=True)).sent == ("a.py",)
    assert (desk.copy / "a.py").read_text() == "bbb\n"


@pytest.mark.row(67)
async def test_files_made_by_jobs_on_the_server_are_kept(desk: Desk) -> None:
    desk.write("a.py")
    desk.write("old/stale.py")
    await desk.sync()
    (desk.copy / "checkpoints").mkdir()
    (desk.copy / "checkpoints" / "last.pt").write_text("weights")
    (desk.copy / "old" / "output.txt").write_text("made by a job")
    (desk.copy / ".jobs" / "x").mkdir(parents=True)
    (desk.project / "old" / "stale.py").unlink()
    (desk.project / "old").rmdir()
    result = await desk.sync()
    assert result.removed == ("old/stale.py",)
    kept = {"a.py", "checkpoints", "checkpoints/last.pt", "old", "old/output.txt", ".jobs", ".jobs/x"}
    assert desk.names() == kept
    # This time rsync is not told what changed, and looks at everything.
    await desk.sync(checksum=True)
    assert desk.names() == kept


@pytest.mark.row(67)
async def test_a_stale_file_and_its_empty_folders_go(desk: Desk) -> None:
    desk.write("a.py")
    desk.write("one/two/stale.py")
    desk.write("one/two/second $(name)\n'.py")
    await desk.sync()
    for path in sorted((desk.project / "one" / "two").iterdir()):
        path.unlink()
    (desk.project / "one" / "two").rmdir()
    (desk.project / "one").rmdir()
    result = await desk.sync()
    assert set(result.removed) == {"one/two/stale.py", "one/two/second $(name)\n'.py"}
    assert desk.names() == {"a.py"}


@pytest.mark.row(67)
async def test_a_stale_file_that_the_server_changed_since_stays(desk: Desk) -> None:
    desk.write("a.py")
    desk.write("notes.txt")
    await desk.sync()
    (desk.copy / "notes.txt").write_text("a job appended this\n")
    (desk.project / "notes.txt").unlink()
    assert (await desk.sync()).removed == ()
    assert (desk.copy / "notes.txt").exists()


@pytest.mark.row(67)
async def test_a_stale_file_behind_a_folder_that_became_a_link_stays(desk: Desk) -> None:
    desk.write("a.py")
    path = desk.write("data/set.txt")
    await desk.sync()
    elsewhere = desk.server.home / "shared"
    (desk.copy / "data").rename(elsewhere)
    (desk.copy / "data").symlink_to(elsewhere)
    path.unlink()
    (desk.project / "data").rmdir()
    assert (await desk.sync()).removed == ()
    assert (elsewhere / "set.txt").exists()


async def test_a_link_that_is_gone_here_goes_there(desk: Desk) -> None:
    desk.write("a.py")
    (desk.project / "link").symlink_to("a.py")
    await desk.sync()
    (desk.project / "link").unlink()
    assert (await desk.sync()).removed == ("link",)
    assert desk.names() == {"a.py"}


@pytest.mark.row(68)
async def test_an_empty_project_removes_nothing(desk: Desk) -> None:
    path = desk.write("a.py")
    await desk.sync()
    path.unlink()
    with pytest.raises(SyncError, match="has no files, so 1 would be removed") as caught:
        await desk.sync()
    assert "right folder" in caught.value.hint
    assert desk.names() == {"a.py"}
