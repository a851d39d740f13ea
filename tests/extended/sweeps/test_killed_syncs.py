"""SIGKILL of syncing programs and of their rsync, at any moment, from two laptops: what jobs wrote stays.

The programs are real ones, at times two at once. After each, whatever has become of it, a file that a job has written
last is there, and after a sync that succeeds, so is every file of the laptop.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.loading import load
from tests.extended.sweeps.test_syncs_lose_nothing import BEGINNINGS, EARLIEST, OF_JOBS, SEED, World
from tests.extended.transport.sync.test_push import Desk
from tests.figures import record_figure
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeServer

RUNS = int(os.environ.get("TESTS_EXAMPLES", "1"))
ROUNDS = int(os.environ.get("TESTS_KILLED_SYNCS", "8"))
PATIENCE = 120.0
LARGE = 1_500_000
# About as long as a sync takes here.
LATEST = 0.8


@dataclass
class Laptop(Desk):
    """A checkout in which the real program runs."""

    said: str = ""

    @property
    def notices(self) -> str:
        return self.said


class Client:
    """A program that syncs."""

    def __init__(self, laptop: Laptop, output: Path, options: list[str]) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "remote_tool", "rsync", *options],
                cwd=laptop.project,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def kill(self) -> None:
        self.process.kill()

    def rsync(self) -> int | None:
        """Return the pid of its rsync, if there is one now."""
        with suppress(OSError):
            return next((pid for pid in _children(self.process.pid) if _name(pid) == "rsync"), None)
        return None

    def end(self) -> tuple[int, str]:
        return self.process.wait(PATIENCE), self._output.read_text(errors="replace")


def _children(parent: int) -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - numbers
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - see above
            if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                yield int(name)


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:  # noqa: PTH123 - of the kernel
        return file.read().strip()


def wait_until_quiet(world: World) -> None:
    """Wait until what a killed program has left on the server has ended."""
    lock = world.there / ".remote-scripts" / "sync-lock"
    deadline = time.monotonic() + PATIENCE
    while lock.exists():
        with lock.open("ab") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        assert time.monotonic() < deadline, "a sync is still running"
        time.sleep(0.02)


def edit(world: World) -> None:
    for _ in range(world.draw.randint(1, 4)):
        number = world.draw.randrange(3)
        if number == len(world.laptops):
            world.change(world.there, "job", OF_JOBS)
        else:
            least = LARGE if world.draw.random() < 0.3 else 100
            world.change(world.laptops[number].project, f"laptop {number}", least)


def disturb(world: World, clients: list[Client]) -> None:
    """Let a job write and kill something, at some moment."""
    draw = world.draw
    time.sleep(draw.random() * LATEST / 3)
    if draw.random() < 0.3:
        name = f"made/{world.count} by a job"
        world.note("meanwhile a job writes", repr(name))
        world.write(world.there, name, world.text("job", OF_JOBS))
    what = draw.choices(("nothing", "client", "rsync", "connection"), weights=(3, 5, 3, 2))[0]
    later = draw.random() * LATEST
    if what == "rsync":
        _kill_an_rsync(draw.choice(clients), later / 10)
    elif what != "nothing":
        time.sleep(later)
        draw.choice(clients).kill() if what == "client" else world.server.drop_connections()
    world.note("killed:", what, round(later, 3))


def _kill_an_rsync(client: Client, later: float) -> None:
    """Kill the rsync of a client alone, some time after it has begun."""
    pid = None
    while client.process.poll() is None and pid is None:
        pid = client.rsync()
        time.sleep(0.001)
    time.sleep(later)
    if pid is not None and pid == client.rsync():
        os.kill(pid, signal.SIGKILL)


def _laptop(world: World, number: int) -> Laptop:
    found = world.laptops[number]
    assert isinstance(found, Laptop)
    return found


def sync_once(world: World, folder: Path) -> list[int]:
    """Sync from one laptop or from both at once, and check what is there; return the exit statuses."""
    draw = world.draw
    numbers = draw.sample((0, 1), 2 if draw.random() < 0.25 else 1)
    clients = []
    for number in numbers:
        laptop = _laptop(world, number)
        overwrites = draw.random() < 0.1
        options = [*["--overwrite"] * overwrites, *["--checksum"] * (draw.random() < 0.1)]
        world.note("laptop", number, "syncs", *options)
        world.settle(laptop)
        if overwrites:
            here = world.files(laptop.project)
            for name in [each for each in world.of_jobs if any(f"{own}/".startswith(f"{each}/") for own in here)]:
                del world.of_jobs[name]
        clients.append(Client(laptop, folder / f"output-{number}", options))
    disturb(world, clients)
    ends = [client.end() for client in clients]
    wait_until_quiet(world)
    for number, (status, said) in zip(numbers, ends, strict=True):
        world.note("-> laptop", number, "ends with", status, said[-600:])
        _laptop(world, number).said = said
        world.named[number] |= {name for name in world.names if name in said}
    world.check_jobs("by this sync")
    if len(numbers) == 1 and ends[0][0] == 0:
        world.check_arrived(numbers[0])
        parts = [path for path in world.there.rglob(".remote-tool-partial") if path.exists()]
        assert not parts, "\n".join([*world.told[-20:], str(parts)])
    return [status for status, _ in ends]


@pytest.mark.picked
@pytest.mark.row(146)
@pytest.mark.slow
@pytest.mark.parametrize("run", range(RUNS))
def test_a_killed_sync_loses_nothing(make_server: MakeServer, tmp_path: Path, run: int) -> None:
    server = make_server()
    laptops: list[Desk] = []
    for name, kept in (("one", "10m"), ("two", 0)):
        root = make_project(tmp_path / name, [server], keep_connections=kept)
        os.utime(root / "hello.py", (EARLIEST, EARLIEST))
        laptops.append(Laptop(load(root), server))
    draw = random.Random(f"killed {SEED} {run}")
    world = World(server, laptops, draw)
    first = draw.sample(BEGINNINGS, 3)
    world.names = (
        f"{first[0]}a",
        f"{first[1]}sub/c",
        f"{first[1]}sub/d",
        *(f"{first[2]}x{end}" for end in ("", "/y", "/y/z")),
    )
    statuses = []
    for _ in range(ROUNDS):
        edit(world)
        statuses += sync_once(world, tmp_path)
    told = f"{statuses.count(0)} succeeded, {statuses.count(-signal.SIGKILL)} killed, others failed"
    record_figure(f"syncs of real programs, run {run}, {told}: without a loss", len(statuses))
