"""job-tail, job-wait and --follow: follow jobs until they end, and reconnect when needed."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from remote_tool.errors import (
    ConnectError,
    HostKeyError,
    LoginError,
    RemoteCommandError,
    RemoteToolError,
    SomeServersFailedError,
)
from remote_tool.jobs.job import Job, JobState
from remote_tool.jobs.logs import LogFolder
from remote_tool.jobs.records import must_return_to_queue
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import (
    NoAnswerError,
    NotPreparedError,
    ServerTroubleError,
    SupervisorMissingError,
    provide_supervisor,
)
from remote_tool.workflows.events import Notice
from remote_tool.workflows.jobs.failures import RankFailure, first_failure
from remote_tool.workflows.jobs.listing import (
    fetch_artifacts,
    load_matching,
    recorded_jobs,
    refresh,
    servers_of_jobs,
)
from remote_tool.workflows.jobs.log_streams import (
    JobMissingError,
    LogListener,
    Viewer,
    WaitsAgainError,
    fetch_logs,
    stream_logs,
)
from remote_tool.workflows.selection import (
    JobsAnswer,
    JobSelection,
    StillRunningError,
    choose_job_to_follow,
    choose_jobs,
)
from remote_tool.workflows.slurm.scheduler import is_scheduled
from remote_tool.workflows.status.link_news import LinkNews
from remote_tool.workflows.status.query import ask_about_jobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from remote_tool.workflows.context import Context

# These say nothing about a job: the server's home or our folder may be unavailable for a moment.
_INTERRUPTIONS = (
    ConnectError,
    JobMissingError,
    RemoteCommandError,
    NoAnswerError,
    NotPreparedError,
    ServerTroubleError,
    SupervisorMissingError,
)
# Seconds until a server that does not answer is given up; its jobs run on.
GIVE_UP_AFTER = 600.0
LONGEST_PAUSE = 15.0
FIRST_QUESTION = 2.0
# A connection that lasted this long counts as restored.
WORKED_SECONDS = 30.0
# After a job has been put back: before its server is asked again.
WAITS_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Chunk:
    """A piece of a job's output.

    Attributes:
        job: The job.
        stream: ``out``, ``err``, or ``ranks/<attempt>/<local rank>/out`` or ``…/err``.
        data: The exact bytes.
        label: ``server`` or ``server:rank``; ``server#key`` if several jobs of one server are followed; empty if
            nothing else is shown. If torchrun assigns new ranks at each restart, the rank is the local one.
    """

    job: Job
    stream: str
    data: bytes
    label: str

    @property
    def rank(self) -> int | None:
        """The global rank that wrote it; None for the job itself."""
        return global_rank(self.job, self.stream)


@dataclass(frozen=True)
class FollowOptions:
    """Options for following jobs.

    Attributes:
        lines: Start with the last N lines; None: from the beginning.
        wait: Follow until the jobs end.
        rank: Show only this rank.
        started: The jobs have just been started, so their servers are not asked about them again.
    """

    lines: int | None = None
    wait: bool = True
    rank: int | None = None
    started: bool = False


@dataclass(frozen=True)
class FollowAnswer:
    """The jobs at the end, the error of each server that could not be followed, and the first failure of a rank."""

    jobs: tuple[Job, ...]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    first_failure: RankFailure | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of a job that failed by itself, else of a stopped one, else that of following."""
        ended = [job for job in self.jobs if job.state.is_finished and job.program_exit_code != 0]
        for job in sorted(ended, key=lambda job: (job.stopped_with_launch, job.state is JobState.KILLED)):
            return job.program_exit_code
        return self.own_exit_code

    @property
    def own_exit_code(self) -> int:
        """0 if all jobs could be followed, even if they failed, else the exit code of the errors."""
        followed = sorted({job.server for job in self.jobs} - self.errors.keys())
        return SomeServersFailedError(self.errors, followed).exit_code if self.errors else 0


# If it returns an awaitable, that is awaited before more is read.
OnChunk = Callable[[Chunk], object]


def global_rank(job: Job, stream: str) -> int | None:
    """Return the global rank of a stream; None for the output of the job itself."""
    parts = stream.split("/")
    if parts[0] != "ranks":
        return None
    return (job.rank_offset or 0) + int(parts[2])


async def follow_selected(
    context: Context, selection: JobSelection, on_chunk: OnChunk, options: FollowOptions
) -> FollowAnswer:
    """Follow the selected jobs; without a selection, the most likely one."""
    errors = {} if options.started else await refresh(context, servers_of_jobs(context, selection))
    known = context.registry.load()[0]
    jobs = _latest(context, choose_job_to_follow(known, selection))
    if not selection.jobs and all(job.state.is_finished for job in jobs):
        selected, last = "selected " if selection.is_explicit else "", "launch" if jobs[0].is_master else "one"
        context.report(Notice("", f"no {selected}job is running; showing the last {last}, job {jobs[0].key}"))
    if options.rank is not None:
        jobs = _jobs_of_rank(known, jobs, options.rank)
    reachable = [job for job in jobs if job.server not in errors]
    answer = await follow_jobs(context, reachable, on_chunk, options)
    failed = {job.server: errors[job.server] for job in jobs if job.server in errors}
    return FollowAnswer(answer.jobs, {**answer.errors, **failed}, answer.first_failure)


def _jobs_of_rank(known: Sequence[Job], chosen: list[Job], rank: int) -> list[Job]:
    """Return the job that has a rank of the chosen launch; it may run on another server."""
    launches = {job.launch_id for job in chosen if job.launch_id}
    nodes = [job for job in known if job.launch_id in launches]
    holders = [job for job in nodes if job.rank_offset is not None and job.rank_offset <= rank]
    return [max(holders, key=lambda job: job.rank_offset or 0)] if holders else nodes or chosen


async def follow_jobs(context: Context, jobs: Sequence[Job], on_chunk: OnChunk, options: FollowOptions) -> FollowAnswer:
    """Show local output, then new output, until the jobs have ended and all of it was shown."""
    errors: dict[str, RemoteToolError] = {}
    if options.lines is not None or not options.wait:
        errors = await fetch_logs(context, jobs)
    viewer = _make_viewer(jobs, on_chunk, options)
    for job in jobs:
        _begin_with_last_lines(context, job, viewer, options)
        await viewer.catch_up(context, job)
    if options.wait:
        followed = [job for job in jobs if job.server not in errors]
        errors |= await _follow_servers(context, followed, LogListener(viewer), logs=True)
    current = _latest(context, jobs)
    failure = None if _failed_elsewhere(context, current) else first_failure(current, context.registry.folder)
    return FollowAnswer(tuple(current), errors, failure)


def _failed_elsewhere(context: Context, jobs: Sequence[Job]) -> bool:
    """Return whether these nodes were only stopped, because of a node of their launch that is not followed."""
    failed = [job for job in jobs if job.state in {JobState.FAILED, JobState.LOST}]
    if not failed or not all(job.stopped_with_launch and job.lost_node is None for job in failed):
        return False
    followed, launches = {job.id for job in jobs}, {job.launch_id for job in failed}
    return any(job.launch_id in launches and job.id not in followed for job in context.registry.load()[0])


async def wait_for_jobs(context: Context, selection: JobSelection, *, timeout: float | None = None) -> JobsAnswer:  # noqa: ASYNC109
    """Wait until the selected jobs have ended.

    Raises:
        StillRunningError: They have not ended within the timeout, in seconds.
    """
    errors = await refresh(context, servers_of_jobs(context, selection))
    chosen = _latest(context, choose_jobs(load_matching(context, selection)[0], selection))
    # A lost job with processes left counts as running, but there is no end to wait for.
    jobs = [job for job in chosen if selection.may_have_ended or not job.state.is_finished]
    waiting = [job for job in jobs if not job.state.is_finished and job.server not in errors]
    try:
        async with asyncio.timeout(timeout):
            errors |= await _follow_servers(context, waiting, LogListener(), logs=False)
    except TimeoutError:
        raise StillRunningError(_recorded(context, jobs, errors), timeout or 0.0) from None
    jobs = _latest(context, jobs)
    ended = [job for job in jobs if job.state.is_finished and job.server not in errors]
    pulled = await fetch_artifacts(context, ended)
    answer = _recorded(context, jobs, errors)
    return replace(answer, errors={**pulled, **answer.errors})


def _recorded(context: Context, jobs: Sequence[Job], errors: Mapping[str, RemoteToolError]) -> JobsAnswer:
    relevant = {name: error for name, error in errors.items() if any(job.server == name for job in jobs)}
    chosen = JobSelection(jobs=tuple(job.id for job in jobs), hidden=True)
    return recorded_jobs(context, chosen, relevant) if jobs else JobsAnswer(())


def _make_viewer(jobs: Sequence[Job], on_chunk: OnChunk, options: FollowOptions) -> Viewer:
    """Return the viewer for some jobs, which filters the output, and labels it if there are several writers."""
    count = Counter(job.server for job in jobs)
    names = {job.id: job.server if count[job.server] == 1 else f"{job.server}#{job.key}" for job in jobs}
    is_alone = len(jobs) == 1 and (not jobs[0].launch_id or options.rank is not None)

    def show(job: Job, stream: str, data: bytes) -> object:
        rank = global_rank(job, stream)
        # A job that was moved replaces another, and has no name here.
        name = names.get(job.id, job.server)
        label = name if rank is None else f"{name}:{rank}"
        return on_chunk(Chunk(job, stream, data, "" if is_alone else label))

    return Viewer(show, lambda job, stream: _is_shown(job, stream, options))


def _begin_with_last_lines(context: Context, job: Job, viewer: Viewer, options: FollowOptions) -> None:
    if options.lines is None:
        return
    logs = LogFolder(context.registry.folder / job.id)
    for stream in logs.sizes():
        if _is_shown(job, stream, options):
            viewer.begin_at(job, stream, logs.start_of_last_lines(stream, options.lines))


def _is_shown(job: Job, stream: str, options: FollowOptions) -> bool:
    if stream.endswith("/error"):
        return False
    return options.rank is None or global_rank(job, stream) == options.rank


async def _follow_servers(
    context: Context, jobs: Sequence[Job], listener: LogListener, *, logs: bool
) -> dict[str, RemoteToolError]:
    running = {job.id for job in jobs if not job.state.is_finished}
    by_server: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if not (job.state.is_finished and (job.logs_complete or not logs)):
            by_server[job.server].append(job)

    async def follow(server: str) -> None:
        await follow_server(context, by_server[server], listener, logs=logs, give_up_after=GIVE_UP_AFTER)

    errors = dict((await on_every(by_server, follow)).errors)
    to_put_back = [job for job in _current(context, jobs) if job.id in running and must_return_to_queue(job)]
    if to_put_back:
        from remote_tool.workflows.start.put_back import put_back  # noqa: PLC0415 - seldom needed

        # Later commands would not do this: they know these jobs as ended.
        await put_back(context, to_put_back)
    moved = [job for job in _latest(context, to_put_back) if job.id not in running]
    return errors | (await _follow_servers(context, moved, listener, logs=logs) if moved else {})


async def follow_server(
    context: Context, jobs: Sequence[Job], listener: LogListener, *, logs: bool, give_up_after: float
) -> None:
    """Follow jobs of a server to their ends, and reconnect as often as needed.

    Raises:
        ConnectError: The connection stayed lost for ``give_up_after`` seconds.
        NoAnswerError: The server was connected, but did not answer for that long.
        JobError: The server refused.
    """
    ended: set[str] = set()

    def note_end(job: Job) -> None:
        ended.add(job.id)
        listener.on_end(job)

    server, patience = jobs[0].server, Patience(give_up_after)
    news = LinkNews(context, server)
    noting_listener = LogListener(listener.viewer, note_end, news.resume)
    problem: RemoteToolError | None = None
    while remaining := [job for job in jobs if job.id not in ended]:
        connected_at = math.inf
        try:
            with news.waiting():
                host = await context.pool.host(server)
            if isinstance(problem, ConnectError):
                news.resume()
            connected_at = time.monotonic()
            async with news.watching(host), _asking_scheduler(context, server, remaining):
                await _follow_once(context, server, remaining, noting_listener, logs=logs)
            problem = NoAnswerError(f"{server}: stopped sending before the jobs had ended", server=server)
        except RemoteToolError as error:
            problem = error
        if isinstance(problem, WaitsAgainError):
            context.report(Notice(server, str(problem)))
            await asyncio.sleep(WAITS_AGAIN_SECONDS)
            continue
        if not is_interruption(problem):
            raise problem
        if ended >= {job.id for job in remaining}:
            return
        await _pause(problem, patience, news, has_worked=time.monotonic() - connected_at > WORKED_SECONDS)


async def _pause(problem: RemoteToolError, patience: Patience, news: LinkNews, *, has_worked: bool) -> None:
    if has_worked:
        patience.restore()
    pause = patience.next_pause(problem)
    news.interrupt(f"{problem}; trying again")
    await asyncio.sleep(pause)


@asynccontextmanager
async def _asking_scheduler(context: Context, server: str, jobs: Sequence[Job]) -> AsyncIterator[None]:
    """Where Slurm starts jobs, ask it now and then: only it knows why they wait, and how they end without a record."""
    if not is_scheduled(context.config, server):
        yield
        return

    async def ask() -> None:
        pause = FIRST_QUESTION
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
            # Following goes on, and reports if the server is silent.
            with suppress(RemoteToolError):
                await ask_about_jobs(context, server, ids=[job.id for job in jobs])

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()


def is_interruption(error: RemoteToolError) -> bool:
    """Return whether the server only could not be reached or asked: jobs run on, and a retry may succeed."""
    return isinstance(error, _INTERRUPTIONS) and not isinstance(error, HostKeyError | LoginError)


async def _follow_once(
    context: Context, server: str, jobs: Sequence[Job], listener: LogListener, *, logs: bool
) -> None:
    try:
        await stream_logs(context, server, jobs, listener, wait=True, logs=logs)
    except SupervisorMissingError:
        await provide_supervisor(await context.pool.host(server), context.config)
        await stream_logs(context, server, jobs, listener, wait=True, logs=logs)


class Patience:
    """Pauses between retries, which grow until ``give_up_after`` seconds without success have passed."""

    def __init__(self, give_up_after: float) -> None:
        self._give_up_after = give_up_after
        self.restore()

    def restore(self) -> None:
        """Begin again with short pauses, after a success."""
        self._since: float | None = None
        self._pause = 0.1

    def next_pause(self, error: RemoteToolError) -> float:
        """Return the next pause in seconds; raise the error after ``give_up_after``."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._give_up_after:
            raise error
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads reconnects, guards nothing


def _latest(context: Context, jobs: Sequence[Job]) -> list[Job]:
    """Return jobs as recorded now; instead of a job that was moved, return the one on the other server."""
    latest = []
    for job in _current(context, jobs):
        found, seen = job, {job.id}
        while found.moved_as and found.moved_as not in seen:
            seen.add(found.moved_as)
            found = context.registry.find([found.moved_as]).get(found.moved_as, replace(found, moved_as=""))
        latest.append(found)
    return latest


def _current(context: Context, jobs: Sequence[Job]) -> list[Job]:
    known = context.registry.find([job.id for job in jobs])
    return [known.get(job.id, job) for job in jobs]
