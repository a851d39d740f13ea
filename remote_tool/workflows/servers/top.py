"""top: take samples of servers and their jobs, once or until the caller is canceled, over one channel per server."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote_tool.errors import (
    HostKeyError,
    LoginError,
    RemoteToolError,
    SomeServersFailedError,
    UsageError,
)
from remote_tool.jobs.status_values import last_values
from remote_tool.protocol.limits import DEFAULT_INTERVAL, LONGEST_INTERVAL, SHORTEST_INTERVAL
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import NoAnswerError, SupervisorMissingError, converse, provide_supervisor
from remote_tool.workflows.jobs.follow import Patience, is_interruption
from remote_tool.workflows.jobs.listing import list_jobs, refresh
from remote_tool.workflows.selection import JobSelection, choose_servers
from remote_tool.workflows.servers.samples import Sample, parse_sample
from remote_tool.workflows.status.link_news import LinkNews

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from remote_tool.config.model import Config
    from remote_tool.jobs.job import Job
    from remote_tool.transport.host import Host
    from remote_tool.workflows.context import Context

# A server is given up after this many missing samples, but not before this many seconds.
MISSING_SAMPLES, SILENCE = 3, 20.0
# A server that refuses, as it is not prepared, is asked again after this time.
REFUSED_SECONDS = 10.0
# Changes on several servers are recorded together.
TOGETHER_SECONDS = 0.2
MOST_TAILS = 8
# The jobs that have ended last stay on the screen.
MOST_ENDED = 20


@dataclass(frozen=True)
class TopAnswer:
    """One sample of each server, the running jobs, and the error of each server that could not be asked."""

    samples: Mapping[str, Sample]
    jobs: tuple[Job, ...]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """Return 0 when every server answered."""
        return SomeServersFailedError(self.errors, sorted(self.samples)).exit_code if self.errors else 0

    def raise_if_any_failed(self) -> TopAnswer:
        """Raise the errors of servers, if there are any."""
        if self.errors:
            raise SomeServersFailedError(self.errors, sorted(self.samples))
        return self


@dataclass(frozen=True)
class Sampled:
    """A server has answered."""

    server: str
    sample: Sample


@dataclass(frozen=True)
class Missed:
    """A server could not be asked; ``is_final`` if it is not asked again."""

    server: str
    error: RemoteToolError
    is_final: bool = False


@dataclass(frozen=True)
class JobsChanged:
    """The jobs that may run, as recorded now, and those that have ended last since the start."""

    jobs: tuple[Job, ...]


@dataclass(frozen=True)
class Progressed:
    """The output of a job shows new values."""

    job: str
    values: Mapping[str, str]


TopEvent = Sampled | Missed | JobsChanged | Progressed
OnTopEvent = Callable[[TopEvent], None]


async def take_samples(context: Context, servers: Sequence[str] = ()) -> TopAnswer:
    """Take one sample of each server, and list its running jobs."""
    names = choose_servers(context.config, servers)

    async def ask(server: str) -> Sample:
        found: list[Sample] = []

        def take(header: Mapping[str, Any]) -> bool:
            found.append(parse_sample(header))
            return True

        with LinkNews(context, server).waiting():
            await _take_answers(context, server, {"interval": SHORTEST_INTERVAL, "once": True}, SILENCE * 2, take)
        if not found:
            raise NoAnswerError(f"{server}: gave no sample", server=server)
        return found[0]

    sampled, listed = await asyncio.gather(
        on_every(names, ask), list_jobs(context, JobSelection(servers=tuple(names), hidden=True))
    )
    return TopAnswer(sampled.values, listed.jobs, {**listed.errors, **sampled.errors})


async def watch(
    context: Context, servers: Sequence[str], on_event: OnTopEvent, *, interval: float = DEFAULT_INTERVAL
) -> None:
    """Report samples and jobs until canceled; connect again when a connection is lost.

    Raises:
        UsageError: A server is unknown, or the interval is out of bounds.
    """
    names = choose_servers(context.config, servers)
    if not SHORTEST_INTERVAL <= interval <= LONGEST_INTERVAL:
        raise UsageError(
            f"--interval {interval:g} is out of bounds", hint=f"{SHORTEST_INTERVAL:g} to {LONGEST_INTERVAL} seconds"
        )
    jobs = _JobBoard(context, names, on_event)
    async with asyncio.TaskGroup() as group:
        group.create_task(jobs.run())
        for name in names:
            group.create_task(_ServerWatch(context, name, on_event, jobs).run(interval))


class _JobBoard:
    """Asks servers about their jobs when these have changed, and reports the jobs as recorded."""

    def __init__(self, context: Context, servers: Sequence[str], on_event: OnTopEvent) -> None:
        self._context = context
        self._servers = frozenset(servers)
        self._on_event = on_event
        self._changed: set[str] = set()
        self._has_changed = asyncio.Event()
        self._running: Iterable[str] = ()
        self._ended: list[str] = []

    def note(self, server: str) -> None:
        """Note that a server's jobs have changed."""
        self._changed.add(server)
        self._has_changed.set()

    async def run(self) -> None:
        """Report until canceled; first the jobs as recorded, without asking."""
        while True:
            self._report()
            await self._has_changed.wait()
            await asyncio.sleep(TOGETHER_SECONDS)
            self._has_changed.clear()
            changed, self._changed = self._changed, set()
            errors = await refresh(self._context, sorted(changed))
            for server, error in errors.items():
                self._on_event(Missed(server, error))

    def _report(self) -> None:
        registry = self._context.registry
        jobs = {job.id: job for job in registry.load_unfinished()[0] if job.may_run and job.server in self._servers}
        ended = registry.find(
            [job_id for job_id in dict.fromkeys([*self._ended, *self._running]) if job_id not in jobs]
        )
        self._running, self._ended = jobs.keys(), [*ended][-MOST_ENDED:]
        shown = [*jobs.values(), *(ended[job_id] for job_id in self._ended)]
        self._on_event(JobsChanged(tuple(sorted(shown, key=lambda job: job.key))))


class _ServerWatch:
    """Watches one server until the caller is canceled."""

    def __init__(self, context: Context, server: str, on_event: OnTopEvent, jobs: _JobBoard) -> None:
        self._context = context
        self._server = server
        self._on_event = on_event
        self._jobs = jobs
        # A laptop may be asleep for days.
        self._patience = Patience(math.inf)

    async def run(self, interval: float) -> None:
        """Report the answers of the server, and connect again when they end, unless the login is refused."""
        silence = max(SILENCE, MISSING_SAMPLES * interval)
        while True:
            try:
                await _take_answers(self._context, self._server, {"interval": interval}, silence, self._take)
                problem: RemoteToolError = NoAnswerError(f"{self._server}: stopped sending", server=self._server)
            except RemoteToolError as error:
                problem = error
            is_final = isinstance(problem, HostKeyError | LoginError)
            self._on_event(Missed(self._server, problem, is_final))
            if is_final:
                return
            await asyncio.sleep(self._patience.next_pause(problem) if is_interruption(problem) else REFUSED_SECONDS)

    def _take(self, header: Mapping[str, Any]) -> bool:
        self._patience.restore()
        if "machine" in header:
            self._on_event(Sampled(self._server, parse_sample(header)))
        if "jobs" in header:
            self._jobs.note(self._server)
        values = _values(header, self._context.config.status)
        if values:
            self._on_event(Progressed(str(header.get("tail")), values))
        return False


async def _take_answers(
    context: Context, server: str, request: Mapping[str, Any], silence: float, take: Callable[[Mapping[str, Any]], bool]
) -> None:
    """Pass on the headers of the answer until one is enough; send the agent if it is missing."""
    host = await context.pool.host(server)
    try:
        await _take_once(host, context.config, request, silence, take)
    except SupervisorMissingError:
        await provide_supervisor(host, context.config, "top")
        await _take_once(host, context.config, request, silence, take)


async def _take_once(
    host: Host, config: Config, request: Mapping[str, Any], silence: float, take: Callable[[Mapping[str, Any]], bool]
) -> None:
    async with converse(host, config, "top", request, silence=silence) as frames:
        async for frame in frames:
            if take(frame.header):
                return


def _values(header: Mapping[str, Any], patterns: Mapping[str, str]) -> dict[str, str]:
    texts = header.get("texts")
    tails = [text for text in texts if isinstance(text, str)][:MOST_TAILS] if isinstance(texts, list) else []
    return dict(each.split("=", 1) for each in last_values(tails, patterns, has_ended=False))
