"""Ask servers which GPUs are free, to choose the one where a job begins first, and before a launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.protocol.job_fields import is_count
from remote_tool.protocol.limits import LONGEST_REASON, MOST_GPUS
from remote_tool.readable import counted
from remote_tool.transport.pool import Results, on_every
from remote_tool.workflows.agent_client import call_until_answered
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.workflows.context import Context

MOST_WAITING = 100_000
SECONDS = 30.0


@dataclass(frozen=True)
class FreeGpus:
    """The GPUs of a server that jobs may use.

    Attributes:
        total: How many there are.
        free: Those that nobody uses or has reserved.
        leased: Those that jobs have reserved.
        waiting: How many each waiting job wants, in the order of the queue.
        why: What is known about the others, or why nothing is known.
    """

    total: int
    free: int
    leased: int
    waiting: tuple[int, ...] = ()
    why: str = ""

    def fits(self, wanted: int) -> bool:
        """Return whether a job would get its GPUs at once."""
        return self.free >= wanted and not self.waiting

    def problem(self, wanted: int) -> str:
        """Return why a job that must not wait cannot have its GPUs; empty if it can."""
        if self.fits(wanted):
            return ""
        if problem := self.too_few(wanted):
            return problem
        parts = [f"{self.free} of {self.total} free"]
        parts += [f"{self.leased} reserved by jobs"] if self.leased else []
        parts += [f"{counted(len(self.waiting), 'job')} waiting"] if self.waiting else []
        parts += [self.why] if self.why else []
        return f"{wanted} wanted; {', '.join(parts)}"

    def too_few(self, wanted: int) -> str:
        """Return why a job can never have its GPUs here, as far as is known; empty if it can."""
        if self.total >= wanted:
            return ""
        return (
            self.why or f"{counted(wanted, 'GPU')} wanted, and there {'is' if self.total == 1 else 'are'} {self.total}"
        )

    def after(self, wanted: int) -> FreeGpus:
        """Return the same after one more job has been given to the server."""
        if self.fits(wanted):
            return replace(self, free=self.free - wanted, leased=self.leased + wanted)
        return replace(self, waiting=(*self.waiting, wanted))

    def load(self, wanted: int) -> float:
        """Return a number that is the lower, the sooner a job would begin; 0 if at once."""
        if self.fits(wanted):
            return 0.0
        return max(1, sum(self.waiting) + wanted - self.free) / self.total if self.total else float("inf")


async def ask_free_gpus(context: Context, servers: Sequence[str]) -> Results[FreeGpus]:
    """Ask every server."""
    return await on_every(servers, lambda server: ask_server(context, server))


async def ask_server(context: Context, server: str) -> FreeGpus:
    """Ask a server about the GPUs that jobs may use there."""
    request = {"devices": list(context.config.servers[server].devices)}
    answer = await call_until_answered(context.pool, context.config, server, "free_gpus", request, within=SECONDS)
    return _read(server, answer)


def choose_server(context: Context, known: Mapping[str, FreeGpus], wanted: int) -> str:
    """Return the server where a job would begin first.

    Raises:
        JobError: None has enough GPUs.
    """
    able = [server for server, gpus in known.items() if gpus.total >= wanted]
    for server in known.keys() - able:
        context.report(Notice(server, f"skipped: {known[server].problem(wanted)}"))
    if not able:
        raise JobError(f"No server has {counted(wanted, 'GPU')} for jobs", hint="remote-tool gpus")
    return min(able, key=lambda server: (known[server].load(wanted), -known[server].free))


def _read(server: str, answer: Mapping[str, Any]) -> FreeGpus:
    waiting, why = answer.get("waiting"), answer.get("why")
    wanted: list[Any] = waiting if isinstance(waiting, list) and len(waiting) <= MOST_WAITING else [None]
    counts = [answer.get(name) for name in ("total", "free", "leased")]
    if not isinstance(why, str) or not all(is_count(each, MOST_GPUS) for each in (*counts, *wanted)):
        raise JobError(f"{server}: cannot read which of its GPUs are free", server=server)
    total, free, leased = (int(each or 0) for each in counts)
    return FreeGpus(total, free, leased, tuple(wanted), why[:LONGEST_REASON])
