"""100 starts and 100 kills, each with its connection cut at another byte: one process each, and none left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from remote_tool.errors import RemoteToolError
from remote_tool.jobs.job import Job, JobSpec, JobState, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import ignore
from remote_tool.workflows.jobs.listing import list_jobs
from remote_tool.workflows.jobs.stop import stop_jobs
from remote_tool.workflows.selection import JobSelection
from remote_tool.workflows.start.start_specs import start_specs
from tests.extended.configuration import make_configuration
from tests.extended.sweeps.relay import CLIENT, SERVER, Relay, spread
from tests.figures import record_figure
from tests.processes import environments, processes_of
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote_tool.config.model import Config
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

COUNT = 100
# So many jobs at once are looked at by every question to the server.
PARTS = 5
AT_ONCE = 8

Work = Callable[[Context], Awaitable[object]]
Place = tuple[int, int]
# Each job says once that it runs.
COMMAND = 'echo "$REMOTE_TOOL_JOB_ID" >> ran; exec sleep 600'
EVERYTHING = JobSelection(stopped=True, hidden=True)


class Laptop:
    """A project here and a server behind relays, of which each can cut its connection."""

    def __init__(self, server: TestServer, root: Path) -> None:
        make_project(root, [server])
        Workspace.find(root).prepare()
        self.server = server
        self.config = make_configuration([server], root)
        self.registry = Registry(self.config.local.jobs)

    async def do(self, port: int, work: Work) -> RemoteToolError | None:
        """Do something over new connections to a port; return the error it ended with."""
        (server,) = self.config.servers.values()
        config: Config = replace(self.config, servers={server.name: replace(server, port=port)})
        try:
            async with HostPool(config) as pool:
                await work(Context(config=config, pool=pool, registry=self.registry, report=ignore))
        except RemoteToolError as error:
            return error
        return None

    def jobs(self) -> list[Job]:
        return self.registry.load()[0]

    def ran(self) -> list[str]:
        path = self.server.home / "project" / "ran"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def laptop(make_server: MakeServer, tmp_path: Path) -> Iterator[Laptop]:
    found = Laptop(make_server("first"), tmp_path / "project")
    yield found
    if not any(processes_of(job.id) for job in found.jobs()):
        return
    Workspace.find(found.config.local.root).stop_jobs(
        JobSelection(jobs=tuple(job.id for job in found.jobs())), signal="SIGKILL"
    )


async def count_bytes(laptop: Laptop, work: Work) -> list[int]:
    """Do something without a cut; return the bytes that each side sent."""
    with Relay(laptop.server.port) as relay:
        assert await laptop.do(relay.port, work) is None
        return list(relay.passed)


async def sweep(laptop: Laptop, works: list[Work], places: list[Place]) -> tuple[int, list[str]]:
    """Do each work with a cut at another byte of one side; return how many were cut, and why some failed."""
    cuts, errors = 0, list[str]()
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(work: Work, place: Place) -> None:
        nonlocal cuts
        async with limit:
            with Relay(laptop.server.port) as relay:
                relay.cut_after(*place)
                error = await laptop.do(relay.port, work)
                cuts += relay.cuts
                if error is not None:
                    errors.append(f"{place}: {error!r}")

    await asyncio.gather(*map(one, works, places))
    return cuts, errors


def places_of(totals: list[int], part: int) -> list[Place]:
    """Return where the connections of one part are cut: all parts together cover the bytes of both sides evenly."""
    every = [(count, side) for side in (CLIENT, SERVER) for count in spread(totals[side], COUNT // 2)]
    return every[part::PARTS]


@pytest.mark.row(9, 36)
@pytest.mark.slow
async def test_100_starts_and_100_kills_with_a_cut_each(laptop: Laptop) -> None:
    spec = new_spec()
    start_bytes = await count_bytes(laptop, starting(spec))
    kill_bytes = await count_bytes(laptop, killing(spec.id))
    started = killed = 0
    not_started, not_killed = list[str](), list[str]()
    for part in range(PARTS):
        specs = [new_spec() for _ in range(COUNT // PARTS)]
        ids = {spec.id for spec in specs}
        cuts, errors = await sweep(laptop, [starting(spec) for spec in specs], places_of(start_bytes, part))
        started += cuts
        not_started += errors
        await see_that_each_runs_once(laptop, ids)
        cuts, errors = await sweep(laptop, [killing(job) for job in ids], places_of(kill_bytes, part))
        killed += cuts
        not_killed += errors
        # What was not confirmed is asked for again, as a user would.
        assert await laptop.do(laptop.server.port, lambda context, ids=ids: stop_again(context, ids)) is None  # type: ignore[misc]
        assert [pid for job in ids for pid in processes_of(job)] == []
        ends = {(job.state, job.reason) for job in laptop.jobs() if job.id in ids}
        assert {state for state, _ in ends} == {JobState.KILLED}, ends
    # We leave with the answer: what a server says after it, or not any more, is one part in a hundred.
    assert started > COUNT * 0.95
    assert not_started == []
    assert killed > COUNT * 0.8
    assert not_killed == []
    record_figure("starts cut at any byte: cut, not started, running twice", f"{started}, {len(not_started)}, 0")
    record_figure("kills cut at any byte: cut, to be repeated, processes left", f"{killed}, {len(not_killed)}, 0")


async def see_that_each_runs_once(laptop: Laptop, ids: set[str]) -> None:
    assert await laptop.do(laptop.server.port, lambda context: list_jobs(context, EVERYTHING)) is None
    states = {job.id: job.state for job in laptop.jobs() if job.id in ids}
    assert states == dict.fromkeys(ids, JobState.RUNNING)
    # A shell that was started writes its line when it gets its turn, and shows no variables while it becomes the sleep.
    deadline = time.monotonic() + 300
    once = dict.fromkeys(ids, (1, 1))
    while (seen := runs_and_processes(laptop, ids)) != once:
        assert time.monotonic() < deadline, {job: count for job, count in seen.items() if count != (1, 1)}
        await asyncio.sleep(0.1)


def runs_and_processes(laptop: Laptop, ids: set[str]) -> dict[str, tuple[int, int]]:
    """Count how often each job has begun, and the processes that it has now."""
    ran, marked = laptop.ran(), b"".join(environment for _, environment in environments())
    return {job: (ran.count(job), marked.count(b"REMOTE_TOOL_JOB_ID=%b\0" % job.encode())) for job in ids}


def new_spec() -> JobSpec:
    return JobSpec(id=new_job_id(), server="first", command=COMMAND)


def starting(spec: JobSpec) -> Work:
    async def work(context: Context) -> None:
        (await start_specs(context, [spec])).raise_if_any_failed()

    return work


def killing(job_id: str) -> Work:
    async def work(context: Context) -> None:
        (await stop_jobs(context, JobSelection(jobs=(job_id,)), grace=5)).raise_if_any_failed()

    return work


async def stop_again(context: Context, ids: set[str]) -> None:
    running = [job.id for job in (await list_jobs(context, JobSelection(hidden=True))).jobs if job.id in ids]
    if running:
        (await stop_jobs(context, JobSelection(jobs=tuple(running)), grace=5)).raise_if_any_failed()
