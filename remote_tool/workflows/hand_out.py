"""Handing shards to slots until all are done: who is free takes the next, what failed is taken again."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.errors import ConnectError, HostKeyError, LoginError
from remote_tool.jobs.job import Job, JobState
from remote_tool.transport.pool import on_every
from remote_tool.workflows.audience import Audience, Turn
from remote_tool.workflows.follow_jobs import Chunk, Patience, follow_server
from remote_tool.workflows.log_streams import Listener
from remote_tool.workflows.start_jobs import start_specs
from remote_tool.workflows.stop_jobs import wish_for_later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import JobSpec
    from remote_tool.launchers.fan_out import Shard, Slot
    from remote_tool.workflows.context import Context

# A server that does not answer for so long loses its shards to the others.
GONE_AFTER = 120.0


@dataclass(frozen=True)
class Assignment:
    """A shard that is about to be started on a slot."""

    shard: Shard
    slot: Slot


@dataclass
class Board:
    """Which shards wait, which are being done by whom, and how those ended that are over.

    Attributes:
        slots: All that may take shards.
        waiting: Shards that nobody does.
        retries: How often a shard may fail and be taken again.
        turns: Those that go on, by the id of their job.
        done: The turn that did each shard.
        failed: The last turn of each shard that failed too often, or was killed.
        is_stopped: The user killed a job, so no more are handed out.
    """

    slots: Sequence[Slot]
    waiting: deque[Shard]
    retries: int
    turns: dict[str, Turn] = field(default_factory=dict)
    done: dict[int, Turn] = field(default_factory=dict)
    failed: dict[int, Turn] = field(default_factory=dict)
    is_stopped: bool = False
    _failures: Counter[int] = field(default_factory=Counter)
    _failed_on: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    _abandoned: dict[int, list[Job]] = field(default_factory=lambda: defaultdict(list))
    _working: set[str] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._working = {slot.server for slot in self.slots}

    @property
    def servers(self) -> list[str]:
        """All that do something: those with slots, and those where a job of it runs already."""
        return list(
            dict.fromkeys([slot.server for slot in self.slots] + [turn.slot.server for turn in self.turns.values()])
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing goes on and nothing is to be begun, or nobody is left who could."""
        return not self.turns and (self.is_stopped or not self.waiting or not self._working)

    def is_settled(self, shard: Shard) -> bool:
        """Whether a shard is done, or is not taken again."""
        return shard.number in self.done or shard.number in self.failed

    def turns_on(self, server: str) -> list[Turn]:
        return [turn for turn in self.turns.values() if turn.slot.server == server]

    def has_work_for(self, server: str) -> bool:
        """Whether a slot of the server is free, and a shard waits for it."""
        return bool(self._free_slots(server)) and any(self._may_take(server, shard) for shard in self.waiting)

    def take(self, server: str) -> list[Assignment]:
        """Hand waiting shards to the free slots of a server."""
        taken = []
        for slot in self._free_slots(server):
            shard = next((shard for shard in self.waiting if self._may_take(server, shard)), None)
            if shard is None:
                break
            self.waiting.remove(shard)
            taken.append(Assignment(shard, slot))
        return taken

    def give_back(self, assignments: Iterable[Assignment]) -> None:
        """Have shards wait again that did not begin."""
        self.waiting.extendleft(reversed([each.shard for each in assignments]))
        self._tell()

    def begin(self, turn: Turn) -> None:
        self.turns[turn.job.id] = turn

    def pop_abandoned(self, shard: Shard) -> list[Job]:
        """Return jobs of a shard that may still run on a server which is gone."""
        return self._abandoned.pop(shard.number, [])

    def end(self, job: Job) -> Turn | None:
        """Note how a job ended; return its turn, None when it has been noted before."""
        begun = self.turns.pop(job.id, None)
        if begun is None:
            return None
        turn = Turn(begun.shard, begun.slot, job)
        if job.state is JobState.SUCCEEDED:
            self.done[turn.shard.number] = turn
        elif job.state is JobState.KILLED:
            self.failed[turn.shard.number] = turn
            self.is_stopped = True
        else:
            self._note_failure(turn)
        self._tell()
        return turn

    def retire(self, server: str) -> None:
        """A server takes no more shards."""
        self._working.discard(server)
        self._tell()

    def lose(self, server: str) -> None:
        """A server is gone: others may take its shards."""
        turns = self.turns_on(server)
        for turn in turns:
            del self.turns[turn.job.id]
            self._abandoned[turn.shard.number].append(turn.job)
        self.give_back(Assignment(turn.shard, turn.slot) for turn in turns)
        self.retire(server)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what a change of the board makes true."""
        while not condition():
            await self._changed.wait()

    def _note_failure(self, turn: Turn) -> None:
        number = turn.shard.number
        self._failures[number] += 1
        self._failed_on[number].add(turn.slot.server)
        if self._failures[number] > self.retries:
            self.failed[number] = turn
        else:
            self.waiting.append(turn.shard)

    def _free_slots(self, server: str) -> list[Slot]:
        if self.is_stopped or server not in self._working:
            return []
        used = {turn.slot.number for turn in self.turns_on(server)}
        return [slot for slot in self.slots if slot.server == server and slot.number not in used]

    def _may_take(self, server: str, shard: Shard) -> bool:
        """Whether a server may do a shard: one on which it failed is the last choice, as the server may be to blame."""
        failed_on = self._failed_on[shard.number]
        return server not in failed_on or self._working <= failed_on

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class HandOut:
    """Hands out the shards of a board; each server has one task, and starts and follows its jobs over one channel.

    Args:
        context: Of this command.
        board: What there is to do.
        make_spec: Makes the job of an assignment.
        audience: Hears how it gets on.
    """

    def __init__(
        self, context: Context, board: Board, make_spec: Callable[[Assignment], JobSpec], audience: Audience
    ) -> None:
        self._context = context
        self._board = board
        self._make_spec = make_spec
        self._audience = audience
        self._listener = Listener(on_bytes=self._on_bytes, on_end=self._on_end)

    async def run(self) -> Mapping[str, RemoteToolError]:
        """Go on until every shard is done or cannot be; return the servers that failed."""
        return (await on_every(self._board.servers, self._serve)).errors

    async def _serve(self, server: str) -> None:
        try:
            await self._work(server)
        except BaseException:
            self._board.lose(server)
            raise

    async def _work(self, server: str) -> None:
        board, patience = self._board, Patience(GONE_AFTER)
        refusal: RemoteToolError | None = None
        while True:
            problem = await self._start(server, board.take(server))
            if isinstance(problem, ConnectError) and not isinstance(problem, HostKeyError | LoginError):
                await asyncio.sleep(patience.next_pause(problem))
            elif problem is not None:
                refusal = problem
                board.retire(server)
            if board.turns_on(server):
                await self._follow(server)
            elif refusal is not None:
                raise refusal
            elif board.is_over:
                return
            else:
                await board.until(lambda: board.is_over or board.has_work_for(server))

    async def _start(self, server: str, taken: Sequence[Assignment]) -> RemoteToolError | None:
        """Start jobs with one question to the server; return why some of them did not start."""
        if not taken:
            return None
        wish_for_later(self._context, [job for each in taken for job in self._board.pop_abandoned(each.shard)])
        answer = await start_specs(self._context, [self._make_spec(each) for each in taken])
        problem, unstarted = answer.errors.get(server), []
        for assignment, job in zip(taken, answer.jobs, strict=True):
            if problem is not None and job.state.is_finished and job.started_at is None:
                unstarted.append(assignment)
                continue
            self._board.begin(Turn(assignment.shard, assignment.slot, job))
            if job.state.is_finished:
                self._on_end(job)
        self._board.give_back(unstarted)
        return problem

    async def _follow(self, server: str) -> None:
        """Follow the jobs of a server until all have ended, or a slot is free and a shard waits for it."""
        jobs = [turn.job for turn in self._board.turns_on(server)]
        following = asyncio.create_task(
            follow_server(self._context, jobs, self._listener, logs=True, give_up_after=GONE_AFTER)
        )
        work = asyncio.create_task(self._board.until(lambda: self._board.has_work_for(server)))
        try:
            await asyncio.wait({following, work}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    def _on_bytes(self, job: Job, stream: str, data: bytes) -> None:
        turn = self._board.turns.get(job.id)
        if turn is not None and not stream.endswith("/error"):
            self._audience.on_chunk(Chunk(job, stream, data, f"{turn.shard.number} {turn.slot.server}"))

    def _on_end(self, job: Job) -> None:
        turn = self._board.end(job)
        if turn is not None:
            self._audience.on_end(turn, not self._board.is_settled(turn.shard))
