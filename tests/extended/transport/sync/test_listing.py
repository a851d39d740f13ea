"""A listing that is kept tells the same as one that looks at everything, whatever happened in between."""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import SyncError
from remote_tool.transport.sync import blocks
from remote_tool.transport.sync.blocks import Blocks
from remote_tool.transport.sync.local_rsync import scratch_file
from remote_tool.transport.sync.project import found_files, listing, snapshot
from remote_tool.transport.sync.project.snapshot import SelectionRules, take_snapshot
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.test_push import Desk
from tests.unit.transport.sync.test_secrets import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.sync.project.contents import Snapshot
    from tests.conftest import MakeServer

RSYNC = shutil.which("rsync") or "rsync"
FOLDERS = ("", "a", "a/b", "data", "x.log", "it's\nodd", "[k]", "venv/lib")
NAMES = ("m.py", "n.log", "4 5 6", "-", "line\nend", "back\\slash", "st*r", "caf\xe9", ".env", "id_rsa", "p -> q")
EXCLUDED = b"*.log\n/data/\n+ /a/b/keep\n/a/b/*\nvenv\n"


class Project:
    """A project that is listed twice each time: as it is kept, and by a look at everything."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.root.mkdir()
        self.logs = folder / "logs"
        (folder / "exclude.txt").write_bytes(EXCLUDED)
        self.exclude_file = folder / "exclude.txt"

    @property
    def listing(self) -> Path:
        return self.logs / "listing"

    async def take(self) -> Snapshot:
        rules = SelectionRules(self.exclude_file, looked=self.logs / "looked", listing=self.listing)
        return await take_snapshot(self.root, rules)

    async def take_both(self) -> Snapshot:
        """Return the kept one, after it was compared with the other one."""
        kept = await self.take()
        with pytest.MonkeyPatch.context() as patch:
            # As it is where there is no GNU find.
            patch.setattr(sys, "platform", "other")
            fresh = await take_snapshot(self.root, SelectionRules(self.exclude_file))
        assert kept.copy.columns == fresh.copy.columns
        assert kept.id == fresh.id
        assert sorted(kept.skipped) == sorted(fresh.skipped)
        assert sorted(kept.rules.split(b"\0")) == sorted(fresh.rules.split(b"\0"))
        return kept

    def write(self, name: str, text: str = "text\n") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def names_of(taken: Snapshot) -> set[str]:
    return {os.fsdecode(entry.name) for entry in taken.entries}


def _write(path: Path, chance: random.Random) -> None:
    if not path.is_fifo():
        path.write_text(chance.choice(["text\n", "longer text\n" * chance.randrange(9), KEYS["openssh"]]))


def _move_folder(path: Path, chance: random.Random) -> None:
    if path.parent.name != "project":
        path.parent.rename(path.parents[1] / chance.choice(["moved", "data", "b"]))


def _remove_folder(path: Path, _chance: random.Random) -> None:
    if path.parent.name != "project":
        shutil.rmtree(path.parent)


HAPPENINGS: tuple[Callable[[Path, random.Random], object], ...] = (
    *(_write, _write, _write, _move_folder, _remove_folder),
    lambda path, _chance: path.unlink(),
    lambda path, chance: path.chmod(chance.choice([0o600, 0o644, 0o755])),
    lambda path, chance: path.symlink_to(chance.choice(["m.py", "../m.py", "../../../out", "/etc"])),
    lambda path, _chance: os.mkfifo(path),
)


def _something_happens(root: Path, chance: random.Random) -> None:
    path = root / chance.choice(FOLDERS) / chance.choice(NAMES)
    # Nothing is there, or something else is.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        chance.choice(HAPPENINGS)(path, chance)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.row(185)
async def test_a_kept_listing_is_the_same_as_a_new_one(
    project: Project, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    if seed % 2:
        monkeypatch.setattr(snapshot, "WORTH_A_SEARCH", 0)
    if seed > 1:
        monkeypatch.setattr(blocks, "_BLOCK", 300)
        monkeypatch.setattr(blocks, "_RANGE", 700)
    chance = random.Random(seed)
    for number in range(20):
        for _ in range(1 + 20 * (number == 0)):
            _something_happens(project.root, chance)
        await project.take_both()


@pytest.mark.skipif(sys.platform != "linux", reason="this is done with GNU find")
async def test_a_project_that_is_as_it_was_is_not_listed_by_rsync(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.py")
    await project.take()
    calls = tmp_path / "calls"
    program = tmp_path / "tools" / "rsync"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncase "$*" in *-rln*) echo >> {calls};; esac\nexec {RSYNC} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    project.write("a.py", "edited\n")
    assert (await project.take()).difference is not None
    assert (await project.take()).difference is None
    assert not calls.exists()


@pytest.mark.picked
@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.row(185)
async def test_what_appears_while_the_project_is_listed_is_sent_by_the_next_sync(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_folder: bool
) -> None:
    """It comes after rsync has selected and before find: that it was not selected must not be remembered."""
    project.write("a.py")
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "sub" / "old.py").write_text("text\n")
    made = (outside / "sub" / "old.py").stat().st_ctime_ns
    monkeypatch.setattr(listing, "clock", lambda _folder: _clock_after(made, tmp_path / "probe"))
    original = found_files.find_files

    async def find(*arguments: object) -> Blocks | None:
        if outside.exists() and is_folder:
            outside.rename(project.root / "moved")
        elif outside.exists():
            outside.rename(tmp_path / "gone")
            project.write("new.py")
        return await original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "find_files", find)
    await project.take()
    expected = {"moved/", "moved/sub/", "moved/sub/old.py"} if is_folder else {"new.py"}
    assert names_of(await project.take()) == {"a.py"} | expected


def _clock_after(moment: int, probe: Path) -> int:
    """Return the time of the disk once it is later than that."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        probe.write_text("")
        if (now := probe.stat().st_ctime_ns) > moment:
            return now
    raise TimeoutError


@pytest.mark.row(186)
async def test_without_gnu_find_each_file_is_looked_at(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.py", "sub/b.py", "c.log"):
        project.write(name)
    with_find = await project.take_both()
    monkeypatch.setattr(sys, "platform", "darwin")
    without = await take_snapshot(project.root, SelectionRules(project.exclude_file))
    assert without.id == with_find.id
    project.write("d.py")
    assert "d.py" in names_of(await project.take())


@pytest.mark.parametrize("damage", [b"", b"\n", b"0" * 64, os.urandom(3000), b"x 1 2 3 " + b"9" * 30 + b"\n"])
@pytest.mark.row(185)
async def test_a_kept_listing_that_is_nonsense_is_none(project: Project, damage: bytes) -> None:
    project.write("a.py")
    await project.take()
    project.listing.write_bytes(damage)
    await project.take_both()
    whole = project.listing.read_bytes()
    project.listing.write_bytes(whole[: len(whole) // 2])
    await project.take_both()


@pytest.mark.row(185)
async def test_other_rules_judge_everything_again(project: Project) -> None:
    project.write("a.py")
    project.write("b.txt")
    assert names_of(await project.take_both()) == {"a.py", "b.txt"}
    project.exclude_file.write_bytes(b"*.txt\n")
    assert names_of(await project.take_both()) == {"a.py"}
    project.exclude_file.write_bytes(b"")
    assert names_of(await project.take_both()) == {"a.py", "b.txt"}


@pytest.mark.parametrize("has_grep", [True, False])
@pytest.mark.row(186)
async def test_no_key_among_many_files_is_sent(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_grep: bool
) -> None:
    """Many files are searched by grep; one that does not find what it must find is not trusted."""
    if not has_grep:
        stub = tmp_path / "tools" / "grep"
        stub.parent.mkdir()
        stub.write_text("#!/bin/sh\nexit 1\n")
        stub.chmod(0o755)
        monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    for number in range(snapshot.WORTH_A_SEARCH + 20):
        project.write(f"files/f{number}", f"{number}\n" * 40)
    keys = {f"files/{kind}{how}": text.encode(how) for kind, text in KEYS.items() for how in ("utf-8", "utf-16")}
    for name, data in keys.items():
        (project.root / name).write_bytes(data)
    project.write("files/mentions", "PRIVATE KEY, in a text about keys\n" * 5)
    taken = await project.take()
    assert {name for name, why in taken.skipped if why == "is a private key"} == keys.keys()
    assert names_of(taken).isdisjoint(keys)
    assert "files/mentions" in names_of(taken)
    # What was harmless turns into a key of the same size and time.
    path = project.root / "files" / "mentions"
    found = path.stat()
    path.write_text(KEYS["openssh"].ljust(found.st_size)[: found.st_size])
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert "files/mentions" not in names_of(await project.take())


def as_blocks(records: bytes) -> Blocks:
    with scratch_file() as file:
        file.write(records)
        file.flush()
        return Blocks(file.fileno(), b"\0\0")


@pytest.mark.row(188)
def test_differences_of_two_lists_are_whole_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared block by block, also where blocks begin at other records."""
    monkeypatch.setattr(blocks, "_BLOCK", 7)
    chance = random.Random(1)
    for _ in range(3000):
        before = {bytes(chance.choices(b"ab", k=chance.randrange(1, 6))) for _ in range(chance.randrange(9))}
        now = {each for each in before if chance.random() < 0.8} | {b"c%d" % n for n in range(chance.randrange(3))}
        one, other = (
            b"".join(each + b"\0\0" for each in chance.sample([*names], len(names))) for names in (before, now)
        )
        gone, come = listing._differences(as_blocks(one), as_blocks(other))
        assert (gone - {b""}, come - {b""}) == (before - now, now - before)


@pytest.mark.row(187)
async def test_a_file_that_changed_and_vanished_while_it_was_sent_is_sent_when_it_is_back(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server()
    desk = Desk(make_configuration([server], tmp_path / "project"), server)
    path = desk.write("a.py")
    await desk.sync()
    path.write_text("edited\n")
    program = tmp_path / "tools" / "rsync"
    program.parent.mkdir()
    changed = (
        f'case "$*" in *server:.) echo changed, and longer > {path}; {RSYNC} "$@"; s=$?; rm {path}; exit $s;; esac'
    )
    program.write_text(f'#!/bin/sh\n{changed}\nexec {RSYNC} "$@"\n')
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        await desk.sync()
    assert (desk.copy / "a.py").read_text() == "changed, and longer\n"
    path.write_text("back\n")
    assert (await desk.sync()).sent == ("a.py",)
    assert (desk.copy / "a.py").read_text() == "back\n"


@pytest.mark.slow
@pytest.mark.row(187)
async def test_files_that_come_change_and_go_during_syncs_are_as_here_at_the_end(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server()
    desk = Desk(make_configuration([server], tmp_path / "project"), server)
    for number in range(600):
        desk.write(f"d{number % 10}/f{number}", f"{number}\n")
    stop = threading.Event()

    def churn(number: int) -> None:
        chance = random.Random(number)
        # Every write has another size: two of one size in one second look the same to a sync that follows a failed one.
        sizes = count(number + 10, 2)
        while not stop.is_set():
            path = desk.project / f"d{chance.randrange(12)}" / f"f{chance.randrange(720)}"
            path.parent.mkdir(exist_ok=True)
            if chance.random() < 0.4:
                path.unlink(missing_ok=True)
            else:
                path.write_text("x" * next(sizes))

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            # rsync may miss a file that is gone, or meet one that it has sent otherwise: then the copy is incomplete.
            with suppress(SyncError):
                await desk.sync()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    await desk.sync(overwrite=True)
    there = _texts(desk.copy)
    assert {name: there.get(name) for name in _texts(desk.project)} == _texts(desk.project)
    assert (await desk.sync()).sent == ()


def _texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.glob("d*/f*")}


def test_blocks_of_a_file_that_cannot_be_opened_once_more_end_with_that_error_alone() -> None:
    """As with too many open files: their end has nothing to close, and adds no message."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        Blocks(-1, b"\n")
