"""forward: connect ports here with ports of servers until the caller is canceled; reconnect when needed."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.config.limits import names_of
from remote_tool.errors import JobError, RemoteToolError, UsageError
from remote_tool.transport.pool import Results, on_every
from remote_tool.workflows.agent_client import NoAnswerError
from remote_tool.workflows.events import Notice
from remote_tool.workflows.forward.addresses import parse_forward
from remote_tool.workflows.forward.session import ForwardSession, Opened
from remote_tool.workflows.jobs.follow import Patience, is_interruption
from remote_tool.workflows.selection import choose_logins, find_job
from remote_tool.workflows.status.link_news import LinkNews

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context


@dataclass(frozen=True)
class ForwardRequest:
    """Ports to forward.

    Attributes:
        forwards: Each as in ``ssh -L``: ``6006``, ``8888:localhost:6006``, ``8888:/path/to.sock``.
        servers: Names; empty: all.
        job: The key or id of a job; without ``forwards``, every port that it listens on.
        reverse: Listen on the servers and connect to this machine, as in ``ssh -R``.
    """

    forwards: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    job: str = ""
    reverse: bool = False

    def __post_init__(self) -> None:
        """Refuse an invalid request."""
        names_of(self.servers)
        if self.reverse and not self.forwards:
            raise UsageError("--reverse needs a port", hint="remote-tool forward --reverse 8888:localhost:6006")
        if not self.forwards and not self.job:
            raise UsageError("No port to forward", hint="remote-tool forward 6006, or --job KEY")
        if self.job and self.servers:
            raise UsageError(
                "--job and --server cannot be combined", hint="A job runs on one server; leave out --server"
            )


@dataclass(frozen=True)
class Listener:
    """Callbacks of a forward.

    Attributes:
        on_open: Called with each port or socket on which connections are accepted.
        on_ready: Called once, when every server has answered or failed, unless all have failed.
    """

    on_open: Callable[[Opened], None] = lambda _opened: None
    on_ready: Callable[[], None] = lambda: None


async def forward(context: Context, request: ForwardRequest, listener: Listener) -> Results[None]:
    """Forward ports until canceled, or until the job has ended or every server has failed.

    Raises:
        UsageError: A forward, the job, or a server is unknown or invalid, or the server is this machine.
    """
    forwards = tuple(parse_forward(text, reverse=request.reverse) for text in request.forwards)
    job = _running_job(context, request.job) if request.job else None
    servers = choose_logins(context.config, request.servers if job is None else (job.server,))
    progress = _Progress(context, set(servers), listener)
    # The first server gets the requested ports, the others the next free ones.
    sessions = {
        server: ForwardSession(context, server, forwards, reverse=request.reverse, job=None if forwards else job)
        for server in servers
    }
    port_owners: dict[int, str] = {}
    try:
        for session in sessions.values():
            session.bind(port_owners)
        return await on_every(servers, lambda server: _keep_forwarding(context, sessions[server], progress))
    finally:
        for session in sessions.values():
            await session.close()


def _running_job(context: Context, word: str) -> Job:
    job = find_job(context.registry.load()[0], word)
    if not job.may_run:
        raise UsageError(f"Job {job.key} has ended", hint="remote-tool job-list")
    return job


class _Progress:
    """The servers that have answered or failed; calls the listener."""

    def __init__(self, context: Context, waiting: set[str], listener: Listener) -> None:
        self._context = context
        self._waiting = waiting
        self._working: set[str] = set()
        self._listener = listener

    def open(self, opened: Opened) -> None:
        self._listener.on_open(opened)

    def answered(self, server: str) -> None:
        self._working.add(server)
        self._settle(server)

    def failed(self, server: str, error: RemoteToolError) -> None:
        """Report an error now if other servers go on: it would be shown only when they end."""
        self._working.discard(server)
        if self._working or self._waiting - {server}:
            self._context.report(Notice(server, f"{error}; nothing is forwarded"))
        self._settle(server)

    def _settle(self, server: str) -> None:
        if server in self._waiting:
            self._waiting.discard(server)
            if not self._waiting and self._working:
                self._listener.on_ready()


async def _keep_forwarding(context: Context, session: ForwardSession, progress: _Progress) -> None:
    """Forward until nothing is left to forward; reconnect as often as needed once the server has answered."""
    # A laptop may be asleep for days.
    news, patience = LinkNews(context, session.server), Patience(math.inf)
    try:
        while not await _connect_once(context, session, progress, news, patience):
            pass
    except RemoteToolError as error:
        progress.failed(session.server, error)
        raise


async def _connect_once(
    context: Context, session: ForwardSession, progress: _Progress, news: LinkNews, patience: Patience
) -> bool:
    """Forward over one connection; return whether nothing is left to forward."""

    def answered() -> None:
        patience.restore()
        news.resume()
        progress.answered(session.server)

    try:
        with news.waiting():
            host = await context.pool.host(session.server)
        async with news.watching(host):
            if await session.run(host, progress.open, answered):
                return True
        problem: RemoteToolError = NoAnswerError(
            f"{session.server}: the forward ended on the server", server=session.server
        )
    except RemoteToolError as error:
        problem = error
    # The server's program may hold a port for a while after a lost connection.
    is_temporary = is_interruption(problem) or (session.is_reverse and isinstance(problem, JobError))
    if not (session.has_worked and is_temporary):
        raise problem
    pause = patience.next_pause(problem)
    news.interrupt(f"{problem}; reconnecting")
    await asyncio.sleep(pause)
    return False
