"""rsync --relay: what one server was sent the others get from it, and all is as if each had been sent it from here."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from remote_tool.workflows.events import Event, Notice, StepEnded, StepProgress
from remote_tool.workflows.sync import relay
from remote_tool.workspace import Hooks
from tests.program import remote_tool
from tests.project import make_project
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool.transport.pool import Results
    from remote_tool.transport.sync.push import PushResult

pytestmark = pytest.mark.slow

LARGE = 2_000_000
NAMES = ("a.py", "sub/deep/it's\n$(c).py", "-", "4 5 6", "large.bin")


@dataclass
class Desk:
    """A project here, its servers, and what was told."""

    root: Path
    servers: list[TestServer]
    events: list[Event] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)

    def sync(self, *servers: str, relay: bool = True, checksum: bool = False) -> Results[PushResult]:
        self.events.clear()
        self.commands.clear()
        hooks = Hooks(self.events.append, lambda server, label, _seconds: self.commands.append((server, label)))
        results = Workspace.find(self.root, hooks).rsync(servers, relay=relay, checksum=checksum, check=False)
        results.raise_if_any_failed()
        return results

    def copy(self, number: int) -> Path:
        return self.servers[number].home / "project"

    def contents(self, folder: Path) -> dict[str, tuple[int, int, bytes]]:
        """Permissions, time and content of every file, by name; less what is ours."""
        files = {
            path.relative_to(folder): path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
        }
        ours = {".remote", ".remote-scripts", ".jobs"}
        kept = {str(name): path for name, path in files.items() if name.parts[0] not in ours}
        return {
            name: (path.stat().st_mode, int(path.stat().st_mtime), path.read_bytes()) for name, path in kept.items()
        }

    @property
    def notices(self) -> list[str]:
        return [f"{event.server}: {event.text}" for event in self.events if isinstance(event, Notice)]

    @property
    def shares(self) -> list[str]:
        """Who was asked to hand the project on."""
        return [server for server, label in self.commands if label == "supervisor: share"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[list[TestServer]]:
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        yield [stack.enter_context(TestServer(name, folder / name, ssh_key)) for name in ("one", "two", "three")]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, servers: list[TestServer]) -> list[Path]:
    """What ``prepare`` leaves on each server."""
    root = make_project(tmp_path_factory.mktemp("first") / "project", servers, host_keys="accept-new")
    (root / "hello.py").unlink()
    (root / "empty").mkdir()
    Workspace.find(root).prepare()
    kept = tmp_path_factory.mktemp("kept")
    for server in servers:
        scripts = server.home / "project" / ".remote-scripts"
        for name in ("sync", "sent"):
            (scripts / name).unlink()
        shutil.copytree(scripts, kept / server.name, symlinks=True)
    return [kept / server.name for server in servers]


@pytest.fixture
def desk(servers: list[TestServer], prepared: list[Path], tmp_path: Path) -> Desk:
    """A project that none of the three prepared servers has."""
    for server, scripts in zip(servers, prepared, strict=True):
        shutil.rmtree(server.home / "project")
        shutil.copytree(scripts, server.home / "project" / ".remote-scripts", symlinks=True)
    root = make_project(tmp_path / "project", servers, host_keys="accept-new")
    for number, name in enumerate(NAMES):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(LARGE) if name == "large.bin" else b"print(%d)\n" % number)
    (root / "a.py").chmod(0o750)
    (root / "link").symlink_to("a.py")
    (root / "empty").mkdir()
    return Desk(root, servers)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine has its time to say what it has."""
    monkeypatch.setattr(relay, "PATIENCE", 60.0)


def lists_and_states(desk: Desk) -> set[tuple[bytes, bytes]]:
    folders = [desk.copy(number) / ".remote-scripts" for number in range(len(desk.servers))]
    return {((folder / "sent").read_bytes(), (folder / "sync").read_bytes()) for folder in folders}


@pytest.mark.row(67)
def test_what_one_was_sent_the_others_get_and_nobody_can_tell_the_difference(desk: Desk) -> None:
    (desk.root / ".remote" / "exclude.txt").write_text("*.secret\n")
    (desk.root / "mine.secret").write_text("stays here\n")
    (desk.copy(0) / "outputs").mkdir()
    (desk.copy(0) / "outputs" / "model.ckpt").write_bytes(bytes(300_000))
    results = desk.sync().values
    relayed = [result for result in results.values() if result.relayed]
    assert len(relayed) == 2
    assert sum(result.bytes for result in results.values()) < 1.2 * LARGE
    assert {result.relayed_by for result in relayed} <= set(results)
    assert all(set(NAMES) <= set(result.sent) for result in results.values())
    here = {name: each for name, each in desk.contents(desk.root).items() if name != "mine.secret"}
    for number in range(3):
        there = {name: each for name, each in desk.contents(desk.copy(number)).items() if "outputs" not in name}
        assert there == here
        assert (desk.copy(number) / "link").readlink() == Path("a.py")
        assert (desk.copy(number) / "empty").is_dir()
        assert not (desk.copy(number) / ".remote-scripts" / "partial").exists()
    assert [(desk.copy(number) / "outputs").exists() for number in range(3)] == [True, False, False]
    assert len(lists_and_states(desk)) == 1
    assert [result.sent for result in desk.sync(relay=False).values.values()] == [(), (), ()]


def test_what_is_gone_here_goes_everywhere_and_what_changed_is_relayed(desk: Desk) -> None:
    desk.sync()
    (desk.root / "4 5 6").unlink()
    (desk.root / "large.bin").write_bytes(os.urandom(LARGE))
    results = desk.sync().values
    assert [result.removed for result in results.values()] == [("4 5 6",)] * 3
    assert sorted(result.relayed for result in results.values()) == [0, LARGE, LARGE]
    assert [desk.contents(desk.copy(number)) for number in range(3)] == [desk.contents(desk.root)] * 3
    assert len(lists_and_states(desk)) == 1


def test_who_has_it_already_hands_it_on_and_nothing_large_goes_from_here(desk: Desk) -> None:
    desk.sync("one", relay=False)
    results = desk.sync().values
    assert [results[name].relayed > LARGE for name in ("one", "two", "three")] == [False, True, True]
    assert sum(result.bytes for result in results.values()) < LARGE / 10
    assert desk.shares == ["one"]


@pytest.mark.row(146)
def test_what_a_server_has_changed_is_not_replaced_by_what_another_one_brings(desk: Desk) -> None:
    desk.sync()
    changed = desk.copy(1) / "a.py"
    changed.write_bytes(b"a job's, and longer than what was sent")
    for _ in range(2):
        (desk.root / "large.bin").write_bytes(os.urandom(LARGE))
        desk.sync()
        assert changed.read_bytes() == b"a job's, and longer than what was sent"
        assert (desk.copy(1) / "large.bin").read_bytes() == (desk.root / "large.bin").read_bytes()
    assert (desk.copy(2) / "a.py").read_bytes() == (desk.root / "a.py").read_bytes()


def test_what_is_little_goes_from_here_and_nobody_is_asked_to_hand_it_on(desk: Desk) -> None:
    desk.sync()
    assert desk.sync().values["one"].sent == ()
    (desk.root / "a.py").write_text("print('new')\n")
    results = desk.sync().values
    assert [result.sent for result in results.values()] == [("a.py",)] * 3
    assert desk.shares == []
    assert not any(result.relayed for result in results.values())


def test_one_server_is_sent_to_as_always(desk: Desk) -> None:
    result = desk.sync("two").values["two"]
    assert (result.relayed, result.relayed_by, desk.shares) == (0, "", [])
    assert result.bytes > LARGE


@pytest.mark.row(65)
def test_two_edits_in_one_second_are_sent_though_a_server_cannot_see_the_difference(desk: Desk) -> None:
    (desk.root / "large.bin").write_bytes(bytes(LARGE))
    os.utime(desk.root / "large.bin", ns=(0, 1_700_000_000_100_000_000))
    desk.sync()
    (desk.root / "large.bin").write_bytes(b"\1" * LARGE)
    os.utime(desk.root / "large.bin", ns=(0, 1_700_000_000_200_000_000))
    desk.sync()
    assert [(desk.copy(number) / "large.bin").read_bytes()[:1] for number in range(3)] == [b"\1"] * 3


def test_checksum_finds_what_kept_size_and_time(desk: Desk) -> None:
    desk.sync()
    for number in (1, 2):
        path = desk.copy(number) / "large.bin"
        found = path.stat()
        path.write_bytes(bytes(LARGE))
        os.utime(path, ns=(found.st_mtime_ns, found.st_mtime_ns))
    results = desk.sync(checksum=True).values
    assert [desk.contents(desk.copy(number)) for number in range(3)] == [desk.contents(desk.root)] * 3
    assert sum(result.bytes for result in results.values()) < 1.2 * LARGE


def test_a_server_without_our_python_is_sent_to_from_here_and_it_is_said(desk: Desk) -> None:
    (desk.copy(2) / ".remote-scripts" / "python").unlink()
    desk.sync("one", relay=False)
    results = desk.sync().values
    assert [results[name].relayed > LARGE for name in ("two", "three")] == [True, False]
    assert "three: the project is sent from here, not fetched from one: three is not prepared" in desk.notices
    assert desk.contents(desk.copy(2)) == desk.contents(desk.root)


def test_where_nobody_can_hand_it_on_all_are_sent_to_from_here(desk: Desk) -> None:
    for number in range(3):
        (desk.copy(number) / ".remote-scripts" / "python").unlink()
    results = desk.sync().values
    assert not any(result.relayed for result in results.values())
    assert [text for text in desk.notices if "cannot pass the project on: " in text]
    assert [desk.contents(desk.copy(number)) for number in range(3)] == [desk.contents(desk.root)] * 3


def test_a_supervisor_that_is_missing_is_brought(desk: Desk) -> None:
    for number in range(3):
        for folder in (desk.copy(number) / ".remote-scripts").glob("supervisor-*"):
            shutil.rmtree(folder)
    results = desk.sync().values
    assert sum(bool(result.relayed) for result in results.values()) == 2


def test_a_server_that_is_away_holds_up_no_other(desk: Desk) -> None:
    configuration = desk.root / ".remote" / "configs.yaml"
    port = str(desk.servers[0].port)
    configuration.write_text(configuration.read_text().replace(f"port: {port}", "port: 1"))
    results = Workspace.find(desk.root).rsync(relay=True, check=False)
    assert set(results.errors) == {"one"}
    assert sorted(bool(result.relayed) for result in results.values.values()) == [False, True]


def test_the_program_says_what_went_over_the_line_and_what_did_not(desk: Desk) -> None:
    ended = remote_tool("rsync", "--relay", cwd=desk.root)
    assert ended.returncode == 0, ended.stderr
    assert "1.9 MiB sent from here, 3.8 MiB from server to server" in ended.stderr
    assert ended.stderr.count(" from here, 1.9 MiB from ") == 2


def test_steps_say_where_it_came_from(desk: Desk) -> None:
    desk.sync("one", relay=False)
    desk.sync("one", "two")
    (detail,) = [event.detail for event in desk.events if isinstance(event, StepEnded) and event.server == "two"]
    assert detail.startswith("sent 7 files (")
    assert detail.endswith(" from here, 1.9 MiB from one)")
    progress = [event.text for event in desk.events if isinstance(event, StepProgress) and event.server == "two"]
    assert progress[0] == "waiting for a server that has it"


def test_prepare_relays_too(desk: Desk) -> None:
    for number in (1, 2):
        shutil.rmtree(desk.copy(number))
    ended = remote_tool("prepare", "--relay", cwd=desk.root)
    assert ended.returncode == 0, ended.stderr
    assert "1.9 MiB sent from here, 3.8 MiB from server to server" in ended.stderr
    assert [desk.contents(desk.copy(number)) for number in range(3)] == [desk.contents(desk.root)] * 3
