"""Edits, touches, removals, branches and syncs of two laptops and a server, drawn at random, against the rule.

The rule, in the model's words: what a sync has put there is replaced or removed. Of what the server wrote nothing is
lost, whatever its time says, and whatever was removed and made again here.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pytest

from remote_tool.errors import SyncError
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.test_push import Desk
from tests.figures import record_figure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeServer

SEED = int(os.environ.get("TESTS_SEED", "7"))
RUNS = int(os.environ.get("TESTS_EXAMPLES", "4"))
STEPS = 60
PATHS = ("a.py", "results.csv", "out/last.pt", "sub/deep/b.txt")
EARLIEST = 1_600_000_000


class File(NamedTuple):
    text: str
    modified: int


@dataclass
class Laptop:
    """A checkout, what of it was there at its last sync, and the branch that is not checked out."""

    desk: Desk
    base: dict[str, File] = field(default_factory=dict)
    branch: dict[str, str] = field(default_factory=dict)


@dataclass
class World:
    """Two laptops and a server; what syncs have put there, and what the server's list has of it."""

    laptops: list[Laptop]
    draw: random.Random
    clock: int = EARLIEST + 1_000_000
    ours: dict[str, File] = field(default_factory=dict)
    listed: dict[str, File] = field(default_factory=dict)
    syncs: int = 0

    @property
    def server(self) -> Path:
        return self.laptops[0].desk.copy

    def time(self) -> int:
        """Later than all before; now and then some time in the past that nothing else has."""
        self.clock += 10
        return self.clock if self.draw.random() < 0.8 else self.clock - 900_005

    def text(self) -> str:
        return "".join(self.draw.choices("abc\n", k=self.draw.randint(1, 12)))

    def change(self, root: Path) -> None:
        path = root / self.draw.choice(PATHS)
        what = self.draw.choice(("write", "write", "append", "touch", "remove"))
        if what == "write":
            put(path, File(self.text(), self.time()))
        elif path.is_file():
            if what == "remove":
                path.unlink()
            else:
                put(path, File(path.read_text() + (self.text() if what == "append" else ""), self.time()))

    def switch_branch(self, laptop: Laptop) -> None:
        """Check out the other branch, as git does: what differs gets the present time."""
        root, other = laptop.desk.project, laptop.branch
        laptop.branch = {name: found.text for name in PATHS if (found := read(root / name)) is not None}
        for name in PATHS:
            if name not in other:
                (root / name).unlink(missing_ok=True)
            elif laptop.branch.get(name) != other[name]:
                put(root / name, File(other[name], self.time()))

    def copy_home(self, laptop: Laptop) -> None:
        name = self.draw.choice(PATHS)
        if (found := read(self.server / name)) is not None:
            keeps_time = self.draw.random() < 0.5
            put(laptop.desk.project / name, found if keeps_time else File(found.text, self.time()))

    def expect(self, laptop: Laptop, *, overwrite: bool) -> tuple[dict[str, File], set[str]]:
        """Return what the server has after a sync, and what is refused; remember what the sync will have done."""
        after, refused, listed, base = {}, set(), {}, {}
        for name in PATHS:
            here, there = read(laptop.desk.project / name), read(self.server / name)
            if here is None:
                # Gone here: it goes there when it is as it was sent, and is remembered as sent when it is not.
                if there is not None and self.listed.get(name) != there:
                    after[name] = there
                    listed.update({name: self.listed[name]} if name in self.listed else {})
                continue
            verdict = "send" if overwrite else self._judge(laptop, name, here, there)
            if verdict != "send":
                assert there is not None
                after[name] = there
                listed.update({name: self.listed[name]} if name in self.listed else {})
                before = {name: laptop.base[name]} if name in laptop.base else {}
                base.update({name: here} if verdict == "keep" else before)
                refused |= {name} if verdict == "refuse" else set()
            else:
                after[name] = listed[name] = base[name] = here
        self.listed, laptop.base = listed, base
        return after, refused

    def _judge(self, laptop: Laptop, name: str, here: File, there: File | None) -> str:
        if there is None or there == self.listed.get(name) or there.text == here.text:
            return "send"
        if name in laptop.base:
            return "keep" if laptop.base[name] == here else "refuse"
        if name in self.listed:
            return "keep" if self.listed[name] == here else "refuse"
        return "keep"


def put(path: Path, file: File) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text)
    os.utime(path, (file.modified, file.modified))


def read(path: Path) -> File | None:
    return File(path.read_text(), int(path.stat().st_mtime)) if path.is_file() else None


async def sync_and_compare(world: World, laptop: Laptop, pool: HostPool) -> None:
    overwrite = world.draw.random() < 0.08
    after, refused = world.expect(laptop, overwrite=overwrite)
    world.syncs += 1
    options = SyncOptions(overwrite=overwrite, checksum=world.draw.random() < 0.1)
    desk = laptop.desk
    desk.events.clear()
    results = await sync(pool, desk.config, ("first",), options, desk.events.append)
    there = {name: found for name in PATHS if (found := read(world.server / name)) is not None}
    assert there == after
    for name in refused:
        assert isinstance(results.errors["first"], SyncError)
        assert name in str(results.errors["first"])
    if refused:
        assert desk.state.startswith("incomplete ")
        return
    assert results.errors == {}
    assert desk.state.startswith("complete ")
    desk.events.clear()
    again = (await sync(pool, desk.config, ("first",), SyncOptions(), desk.events.append)).values["first"]
    assert (again.sent, again.removed, desk.notices) == ((), (), "")


@pytest.fixture
def laptops(make_server: MakeServer, tmp_path: Path) -> Iterator[list[Laptop]]:
    server = make_server()
    folders = (tmp_path / "one", tmp_path / "two")
    laptops = [Laptop(Desk(make_configuration([server], folder), server)) for folder in folders]
    for laptop in laptops:
        put(laptop.desk.project / "train.py", File("the same on both", EARLIEST))
    yield laptops
    for folder in folders:
        assert (folder / "train.py").exists()


@pytest.mark.picked_case("0")
@pytest.mark.row(146)
@pytest.mark.slow
@pytest.mark.parametrize("run", range(RUNS))
async def test_nothing_that_the_server_wrote_is_lost_and_every_edit_arrives_or_is_named(
    laptops: list[Laptop], run: int
) -> None:
    world = World(laptops, random.Random(f"{SEED} {run}"))
    async with HostPool(laptops[0].desk.config) as first, HostPool(laptops[1].desk.config) as second:
        for _ in range(STEPS):
            number = world.draw.randrange(2)
            laptop = laptops[number]
            what = world.draw.choices(("here", "there", "copy home", "branch", "sync"), weights=(3, 3, 1, 1, 3))[0]
            if what == "here":
                world.change(laptop.desk.project)
            elif what == "there":
                world.change(world.server)
            elif what == "copy home":
                world.copy_home(laptop)
            elif what == "branch":
                world.switch_branch(laptop)
            else:
                await sync_and_compare(world, laptop, (first, second)[number])
    record_figure(f"syncs of two laptops and a server, run {run}: syncs that were as the rule says", world.syncs)
