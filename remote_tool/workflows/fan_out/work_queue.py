"""The shards of a fan-out: waiting, starting, running, done or failed."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.jobs.job import Job, JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from remote_tool.workflows.fan_out.plan import Shard, Slot


@dataclass(frozen=True)
class Attempt:
    """A job that does a shard on a slot."""

    shard: Shard
    slot: Slot
    job: Job


@dataclass(frozen=True)
class Assignment:
    """A shard about to be started on a slot."""

    shard: Shard
    slot: Slot


@dataclass
class WorkQueue:
    """The shards of a fan-out: waiting, running, done or failed.

    Attributes:
        slots: All slots that may take shards.
        waiting: Shards without a slot.
        starting: The assignments that may still come back because they have not begun, by shard number.
        retries: How many times a failed shard is retried.
        attempts: The running attempts, by job id.
        done: The successful attempt of each shard, by shard number.
        failed: The last attempt of each shard that failed too often or was killed, by shard number.
        is_stopped: The user killed a job, so no more shards are started.
    """

    slots: Sequence[Slot]
    waiting: deque[Shard]
    retries: int
    attempts: dict[str, Attempt] = field(default_factory=dict)
    done: dict[int, Attempt] = field(default_factory=dict)
    failed: dict[int, Attempt] = field(default_factory=dict)
    is_stopped: bool = False
    starting: dict[int, Assignment] = field(default_factory=dict)
    _failures: Counter[int] = field(default_factory=Counter)
    _failed_on: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    _working: set[str] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._working = {slot.server for slot in self.slots}

    @property
    def servers(self) -> list[str]:
        """Return all servers with a slot, or with a running job of the fan-out."""
        return list(
            dict.fromkeys(
                [slot.server for slot in self.slots] + [attempt.slot.server for attempt in self.attempts.values()]
            )
        )

    @property
    def is_over(self) -> bool:
        """Return whether nothing is running or starting, and nothing can start."""
        if self.attempts or self.starting:
            return False
        return self.is_stopped or not self.waiting or not self._working

    def is_settled(self, shard: Shard) -> bool:
        """Return whether a shard is done, or has failed for good."""
        return shard.number in self.done or shard.number in self.failed

    def attempts_on(self, server: str) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.slot.server == server]

    def has_work_for(self, server: str) -> bool:
        """Return whether the server has a free slot, and a shard is waiting for one."""
        return bool(self._free_slots(server)) and any(self._may_take(server, shard) for shard in self.waiting)

    def take(self, server: str) -> list[Assignment]:
        """Assign waiting shards to the free slots of a server."""
        taken = []
        for slot in self._free_slots(server):
            shard = next((shard for shard in self.waiting if self._may_take(server, shard)), None)
            if shard is None:
                break
            self.waiting.remove(shard)
            taken.append(Assignment(shard, slot))
        self.starting |= {each.shard.number: each for each in taken}
        return taken

    def give_back(self, assignments: Collection[Assignment]) -> None:
        """Put back shards that did not start."""
        for each in assignments:
            del self.starting[each.shard.number]
        self.waiting.extendleft(reversed([each.shard for each in assignments]))
        self._notify()

    def begin(self, attempt: Attempt) -> None:
        del self.starting[attempt.shard.number]
        self.attempts[attempt.job.id] = attempt

    def end(self, job: Job) -> Attempt | None:
        """Record a job's end; return its attempt, or None if recorded before."""
        begun = self.attempts.pop(job.id, None)
        if begun is None:
            return None
        attempt = Attempt(begun.shard, begun.slot, job)
        if job.state is JobState.SUCCEEDED:
            self.done[attempt.shard.number] = attempt
        elif job.state is JobState.KILLED:
            self.failed[attempt.shard.number] = attempt
            self.is_stopped = True
        elif job.may_run:
            # The lost job may still be writing: a retry would run it twice.
            self.failed[attempt.shard.number] = attempt
        else:
            self._note_failure(attempt)
        self._notify()
        return attempt

    def retire(self, server: str) -> None:
        """Give a server no more shards."""
        self._working.discard(server)
        self._notify()

    def give_up(self, server: str) -> list[Attempt]:
        """Give a server no more shards; return its attempts, which may still run and so are started nowhere else."""
        attempts = self.attempts_on(server)
        for attempt in attempts:
            del self.attempts[attempt.job.id]
        self.starting = {number: each for number, each in self.starting.items() if each.slot.server != server}
        self.retire(server)
        return attempts

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a change of the queue makes the condition true."""
        while not condition():
            await self._changed.wait()

    def _note_failure(self, attempt: Attempt) -> None:
        number = attempt.shard.number
        self._failures[number] += 1
        self._failed_on[number].add(attempt.slot.server)
        if self._failures[number] > self.retries:
            self.failed[number] = attempt
        else:
            self.waiting.append(attempt.shard)

    def _free_slots(self, server: str) -> list[Slot]:
        if self.is_stopped or server not in self._working:
            return []
        used = {attempt.slot.number for attempt in self.attempts_on(server)}
        return [slot for slot in self.slots if slot.server == server and slot.number not in used]

    def _may_take(self, server: str, shard: Shard) -> bool:
        """Return whether a server may do a shard; one on which it failed is tried last, as it may be to blame."""
        failed_on = self._failed_on[shard.number]
        return server not in failed_on or self._working <= failed_on

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
