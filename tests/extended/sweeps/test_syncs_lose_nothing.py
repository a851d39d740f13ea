"""Two laptops and jobs write, remove and replace files and folders; syncs are killed: what jobs wrote stays.

No model of the rule: whatever the syncs do, a file that a job has written last is there after each of them, and after
a sync that succeeds, every file of the laptop is there with the same hash, or it is one that a job has written.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import string
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import RemoteToolError
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.test_push import Desk
from tests.figures import record_figure

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.sshd import TestServer

SEED = int(os.environ.get("TESTS_SEED", "7"))
RUNS = int(os.environ.get("TESTS_EXAMPLES", "2"))
STEPS = 40
OURS = {".remote", ".remote-scripts", ".jobs"}
BEGINNINGS = (string.digits + string.ascii_letters + string.punctuation + " ").replace("/", "")
# Larger than what laptops write: of what no sync has sent, a smaller and older file is replaced.
OF_JOBS = 2000
EARLIEST = 1_600_000_000


@dataclass
class World:
    """The laptops, the server, and what jobs have written last."""

    server: TestServer
    laptops: list[Desk]
    draw: random.Random
    of_jobs: dict[str, bytes] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    count: int = 0
    names: tuple[str, ...] = ()
    settled: list[dict[str, str]] = field(default_factory=lambda: [{}, {}])
    named: list[set[str]] = field(default_factory=lambda: [set(), set()])

    @property
    def there(self) -> Path:
        return self.laptops[0].copy

    def note(self, *words: object) -> None:
        self.told.append(" ".join(map(str, words)))

    def text(self, who: str, least: int) -> bytes:
        """No two have the same size."""
        self.count += 1
        return f"{who} {self.count}".encode().ljust(least + self.count, b".")

    def write(self, root: Path, name: str, text: bytes) -> None:
        """Write a file, in place of whatever is in its way."""
        path = root / name
        for parent in reversed([each for each in path.parents if root in each.parents]):
            if parent.is_file() or parent.is_symlink():
                self.remove(root, str(parent.relative_to(root)))
        if path.is_dir():
            self.remove(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Some programs replace a file, others write into it.
        if self.draw.random() < 0.5:
            path.unlink(missing_ok=True)
        path.write_bytes(text)
        if self.draw.random() < 0.2:
            os.utime(path, (EARLIEST + self.count, EARLIEST + self.count))
        if root == self.there:
            self.of_jobs[name] = text

    def remove(self, root: Path, name: str) -> None:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            with suppress(NotADirectoryError):
                path.unlink(missing_ok=True)
        if root == self.there:
            self.of_jobs = {
                each: text for each, text in self.of_jobs.items() if f"{each}/".startswith(f"{name}/") is False
            }

    def change(self, root: Path, who: str, least: int) -> None:
        name = self.draw.choice(self.names)
        if self.draw.random() < 0.3:
            name = self.draw.choice([name, name.split("/", maxsplit=1)[0]])
            self.note(who, "removes", repr(name))
            self.remove(root, name)
        else:
            # A file that a sync has sent is known, and so may shrink; of any other one, an older and smaller one goes.
            is_known = root == self.there and (root / name).is_file() and name not in self.of_jobs
            text = self.text(who, 50 if is_known else least)
            self.note(who, "writes", repr(name), len(text))
            self.write(root, name, text)

    def files(self, root: Path) -> dict[str, str]:
        found = (path for path in root.rglob("*") if path.is_file() and path.relative_to(root).parts[0] not in OURS)
        return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}

    def check_jobs(self, when: str) -> None:
        lost = {}
        for name, text in self.of_jobs.items():
            path = self.there / name
            now = path.read_bytes() if path.is_file() else None
            if now != text:
                lost[name] = now and now[:30]
        assert not lost, "\n".join([*self.told[-60:], f"lost {when}: {lost}"])

    def check_arrived(self, number: int) -> None:
        desk = self.laptops[number]
        # What another laptop's killed sync has left counts as the server's version, which is named.
        self.named[number] |= {name for name in self.names if name in desk.notices}
        here, there = self.files(desk.project), self.files(self.there)
        missing = {name for name in here if there.get(name) != here[name] and name not in self.of_jobs}
        missing = {
            name
            for name in missing
            if not any(f"{name}/".startswith(f"{each}/") or f"{each}/".startswith(f"{name}/") for each in self.of_jobs)
        }
        missing -= self.named[number]
        assert not missing, "\n".join([*self.told[-60:], f"did not arrive: {missing}"])

    def untouched(self, number: int) -> list[str]:
        """Names of files that this laptop has as they were when its last sync succeeded, and the server too."""
        here, there = self.files(self.laptops[number].project), self.files(self.there)
        return [name for name, text in self.settled[number].items() if here.get(name) == there.get(name) == text]

    def settle(self, desk: Desk) -> None:
        """What is the same here and there counts as sent from now on."""
        here = {name: text for name in [*self.of_jobs] if (text := _read(desk.project / name)) is not None}
        self.of_jobs = {name: text for name, text in self.of_jobs.items() if here.get(name) != text}


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


async def disturbed_sync(world: World, number: int, pool: HostPool, options: SyncOptions) -> Exception | None:
    """Sync while a job makes a file, or the connection breaks; return what the sync says."""
    desk, draw = world.laptops[number], world.draw
    kill_after = draw.random() * 0.5 if draw.random() < 0.4 else None
    meanwhile = draw.random() < 0.3
    task = asyncio.ensure_future(sync(pool, desk.config, ("first",), options, desk.events.append))
    if meanwhile:
        await asyncio.sleep(draw.random() * 0.3)
        untouched = world.untouched(number) if not (options.overwrite or options.checksum) else []
        name = draw.choice([f"made/{world.count} by a job", *untouched])
        world.note("meanwhile a job writes", repr(name))
        world.write(world.there, name, world.text("job", OF_JOBS))
    if kill_after is not None:
        await asyncio.sleep(kill_after)
        world.note("the connection breaks after", kill_after)
        world.server.drop_connections()
    try:
        results = await task
    except RemoteToolError as error:
        return error
    if "first" in results.values:
        result = results.values["first"]
        world.note("-> sent", result.sent, "removed", result.removed)
    return results.errors.get("first")


async def sync_once(world: World, number: int, pools: list[HostPool]) -> None:
    desk, draw = world.laptops[number], world.draw
    overwrite, checksum = draw.random() < 0.05, draw.random() < 0.1
    world.note("laptop", number, "syncs", "overwriting" * overwrite, "checksum" * checksum)
    desk.events.clear()
    options = SyncOptions(overwrite=overwrite, checksum=checksum)
    world.settle(desk)
    problem = await disturbed_sync(world, number, pools[number], options)
    world.note("->", problem or "done", "|", desk.notices)
    if overwrite:
        here = world.files(desk.project)
        world.of_jobs = {
            name: text
            for name, text in world.of_jobs.items()
            if name not in here and not any(each.startswith(f"{name}/") for each in here)
        }
    world.check_jobs("by this sync")
    if problem is None:
        world.check_arrived(number)
        here, there = world.files(desk.project), world.files(world.there)
        world.settled[number] = {name: text for name, text in here.items() if there.get(name) == text}


@pytest.mark.picked
@pytest.mark.row(146)
@pytest.mark.slow
@pytest.mark.parametrize("run", range(RUNS))
async def test_what_jobs_wrote_stays_whatever_syncs_do(make_server: MakeServer, tmp_path: Path, run: int) -> None:
    server = make_server()
    laptops = [Desk(make_configuration([server], tmp_path / name), server) for name in ("one", "two")]
    draw = random.Random(f"{SEED} {run}")
    world = World(server, laptops, draw)
    first = draw.sample(BEGINNINGS, 4)
    world.names = (
        f"{first[0]}a",
        f"{first[1]}b",
        f"{first[2]}sub/c",
        f"{first[2]}sub/d",
        f"{first[3]}x",
        f"{first[3]}x/y",
        f"{first[3]}x/y/z",
    )
    for laptop in laptops:
        (laptop.project / "train.py").write_text("the same on both")
        os.utime(laptop.project / "train.py", (EARLIEST, EARLIEST))
    world.there.mkdir()
    syncs = 0
    async with HostPool(laptops[0].config) as one, HostPool(laptops[1].config) as two:
        for _ in range(STEPS):
            number = draw.randrange(2)
            what = draw.choices(("here", "there", "copy home", "sync"), weights=(4, 3, 0.5, 3))[0]
            if what == "here":
                world.change(laptops[number].project, f"laptop {number}", 100)
            elif what == "there":
                world.change(world.there, "job", OF_JOBS)
            elif what == "copy home" and world.of_jobs:
                name = draw.choice(sorted(world.of_jobs))
                world.note("laptop", number, "takes", repr(name), "home")
                world.write(laptops[number].project, name, world.of_jobs[name])
            else:
                await sync_once(world, number, [one, two])
                syncs += 1
    record_figure(f"syncs of two laptops, some killed, run {run}: syncs after which everything was there", syncs)
