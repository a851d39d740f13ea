"""A job's way to its GPUs: a ticket, the wait for its turn, and a lease.

Nothing here blocks: a step does what can be done now, and says what to wait for.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

from remote_tool.agent.leases import fifo, folders
from remote_tool.agent.leases.claim import Claim, TakenTicket, remove_lease
from remote_tool.agent.leases.folders import LeaseError
from remote_tool.agent.leases.foreign import LOAD_SECONDS, ForeignUse, NvidiaSmiAnswer, is_one_of
from remote_tool.agent.leases.listing import HELD, NANOSECONDS, TICKET, LeaseListing, Ticket, now_stamp
from remote_tool.agent.leases.shared import SharedQuestion
from remote_tool.agent.leases.standing import describe_leases
from remote_tool.agent.proc.processes import ProcessSnapshot
from remote_tool.protocol import job_folder
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

    from remote_tool.agent.leases.listing import Lease

DEFAULT_IDLE_AFTER = 60.0
# An event ends a wait at once; this is for files that must not get old, and for what nobody has thought of. Those
# behind the first one are many, and each reads all tickets.
LONG_SECONDS, _BEHIND_SECONDS = 300.0, 6 * 3600.0
_LOOK_SECONDS = 10.0
_SHORTEST_LOOK = 0.2
# While processes of a job are left whose supervisor died.
LEFTOVER_SECONDS = 3.0
_SOON = 0.02
# From the moment when its pipe is visible; who takes longer is named.
_PUBLISHED_SOON_NANOSECONDS = 10**9
_RETRY_SECONDS = 1.0
_FAILED_SECONDS = 5.0
# Those whose places were removed notice it after CHECK_SECONDS, and are back before one of them gets GPUs.
CHECK_SECONDS = 10.0
_RETURN_SECONDS = 20.0


class LeaseRequest(NamedTuple):
    """The GPUs and conditions that a job waits for.

    Attributes:
        job_id: The job.
        name: Its name; empty without one.
        gpus: How many.
        priority: Higher is earlier.
        backfill: Whether it may pass a job that does not fit now.
        devices: The GPUs that it may get, by number or UUID; empty: all.
        idle_after: For how many seconds a GPU that was used without a lease must be idle.
        since: When it was requested, in nanoseconds since the boot; 0: now.
    """

    job_id: str
    name: str
    gpus: int
    priority: int = 0
    backfill: bool = False
    devices: Tuple[str, ...] = ()
    idle_after: float = DEFAULT_IDLE_AFTER
    since: int = 0


class LeaseWaiter:
    """A job that waits for GPUs.

    Attributes:
        seconds: For how long to wait until the next step, unless a descriptor wakes first.
        why: Why it waits, as far as it knows from nvidia-smi; empty otherwise.
    """

    def __init__(self, request: LeaseRequest, pool: str = "") -> None:
        """Prepare; the first step enters the queue.

        Args:
            request: What the job wants.
            pool: The folder of leases of something else; empty: those of GPUs.
        """
        self._pool = pool
        self.seconds = 0.0
        self.why = ""
        self._request = request
        self._folder = -1
        since = request.since or now_stamp()
        self._place = Ticket("", os.geteuid(), request.priority, since, request.gpus, request.job_id)
        self._returned_at = float("-inf")
        self._ticket: Optional[TakenTicket] = None
        self._claim: Optional[Claim] = None
        self._watched: List[int] = []
        self._question = SharedQuestion()
        self._use = ForeignUse(request.idle_after)
        self._gpus: Optional[List[Dict[str, Any]]] = None
        self._has_leftovers = False
        self._refreshed_at = time.monotonic()

    @property
    def ticket(self) -> Optional[Ticket]:
        """Return its place in the queue; None before and after."""
        return None if self._ticket is None else self._ticket.ticket

    @property
    def is_waiting(self) -> bool:
        """Return whether it waits for others, not for an answer that comes soon."""
        is_soon = self._question.is_open or (self._claim is not None and not self.why) or self._use.is_unsure
        return not is_soon

    def blocked_by(self) -> str:
        """Return why it waits, to continue a sentence."""
        why = self.why
        with suppress(OSError), LeaseListing() as listing:
            why = why or describe_leases(listing.live_leases(), but=self._request.job_id)
        return f": {why}" if why else ""

    def register(self, poll: select.poll) -> None:
        """Let poll() wake when there is something to do."""
        for descriptor in self._watched:
            # The end of its holder is always reported; nothing else of it matters.
            poll.register(descriptor, 0)
        for descriptor in self._question.descriptors:
            poll.register(descriptor, select.POLLIN)

    def step(self) -> Optional[Claim]:
        """Take the next steps that need no waiting; return the lease once the GPUs are this job's.

        Raises:
            LeaseError: It can never get its GPUs here.
        """
        self._stop_watching()
        self._refresh_if_due()
        try:
            self._enter_queue()
            answer = self._question.take() if self._question.is_open else None
            with LeaseListing(pool=self._pool) as listing:
                claim = self._step(listing, answer)
        except folders.TakenError as error:
            self.why, self.seconds = str(error.strerror), _FAILED_SECONDS
            return None
        except OSError as error:
            self.why = job_folder.explain(f"the queue in {folders.base()} cannot be used now", error)
            self.seconds = _FAILED_SECONDS
            return None
        if claim is not None:
            self._leave_queue()
        return claim

    def close(self) -> None:
        """Leave the queue without GPUs, or after they were given to somebody."""
        self._stop_watching()
        self._question.close()
        self._withdraw()
        self._leave_queue()
        self._close_folder()

    def is_in_queue(self) -> bool:
        """Return whether others see its place, or it has none yet."""
        return self._ticket is None or self._ticket.is_there()

    def _enter_queue(self) -> None:
        """Take the place in the queue, or take it again where it was removed."""
        if self._ticket is not None:
            if self._ticket.is_there():
                return
            self._question.close()
            self._withdraw()
            self._leave_queue()
            self._returned_at = time.monotonic()
        self._close_folder()
        path = folders.path_of(os.geteuid(), self._pool)
        is_new = not os.path.lexists(path)
        self._folder = folders.open_own(self._pool)
        if is_new and fifo.find_removed(path, (TICKET, HELD)):
            # Others were here before, and are about to return.
            self._returned_at = time.monotonic()
        self._ticket = TakenTicket(self._folder, self._place, self._pool)

    def _close_folder(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _take_gpus(self, answer: NvidiaSmiAnswer) -> bool:
        """Note which GPUs there are; return False if nvidia-smi has to be asked once more."""
        if answer.problem:
            return True
        devices = self._request.devices
        gpus = [gpu for gpu in answer.gpus if is_one_of(gpu, devices)]
        count = len(gpus)
        if count < self._request.gpus and answer.is_kept:
            return False
        self._gpus = gpus
        if count >= self._request.gpus:
            return True
        has = f"only {count} of its GPUs are configured for jobs" if devices else f"this server has {count or 'none'}"
        raise LeaseError(f"it needs {self._request.gpus} GPU{'s' * (self._request.gpus > 1)}, and {has}")

    def _step(self, listing: LeaseListing, answer: Optional[NvidiaSmiAnswer]) -> Optional[Claim]:
        if self._claim is not None:
            return self._settle(listing)
        left = self._returned_at + _RETURN_SECONDS - time.monotonic()
        if left > 0:
            self.seconds = left
            path = folders.path_of(os.geteuid(), self._pool)
            self.why = f"{path} was removed, and those who waited take their places again"
            return None
        if answer is not None and not self._take_gpus(answer):
            # An answer from before the job came cannot say that it will never start.
            self._ask_and_wait(listing, anew=True)
            return None
        if answer is None and self._gpus is None:
            # A job that wants more than this machine has must not wait for its turn.
            self._ask_and_wait(listing)
            return None
        ahead = self._find_ahead(listing)
        if ahead and not self._request.backfill:
            self._question.close()
            self.seconds, self.why = _BEHIND_SECONDS, ""
            return None
        return self._try(listing, answer, next(filter(listing.is_alive, ahead), None))

    def _find_ahead(self, listing: LeaseListing) -> List[Ticket]:
        """Return the tickets up to the next live one before this job's, which is watched."""
        assert self._ticket is not None
        before = [ticket for ticket in listing.tickets if ticket.key < self._ticket.ticket.key]
        while before:
            pipe = listing.watch_ticket(before[-1])
            if pipe is not None:
                self._watched.append(pipe)
                break
            self._remove_dead_ticket(before.pop())
        return before

    def _remove_dead_ticket(self, ticket: Ticket) -> None:
        if ticket.uid == os.geteuid():
            with suppress(OSError):
                job_folder.remove(self._folder, ticket.name)

    def _try(
        self, listing: LeaseListing, answer: Optional[NvidiaSmiAnswer], first: Optional[Ticket]
    ) -> Optional[Claim]:
        """Lease GPUs if enough are free."""
        live = listing.live_leases()
        leased = {uuid for lease in live for uuid in lease.gpus}
        suspects = self._find_suspects(listing)
        self._use.forget(leased)
        unleased = [gpu for gpu in self._gpus or [] if gpu["uuid"] not in leased]
        if self._gpus is not None and len(unleased) < self._request.gpus:
            # One that ended after it was listed ends no wait any more.
            are_watched = self._watch(listing, live)
            self.seconds, self.why = LONG_SECONDS if are_watched else 0.0, ""
            return None
        if answer is None:
            self._ask_and_wait(listing)
            return None
        judged = [gpu for gpu in unleased if gpu["uuid"] not in answer.leased]
        self._use.update(answer, [gpu["uuid"] for gpu in judged], suspects)
        free = [] if answer.problem else [gpu["uuid"] for gpu in judged if self._use.is_free(gpu["uuid"])]
        is_passing = first is not None and len(free) >= first.gpus
        if len(free) >= self._request.gpus and not is_passing:
            if answer.is_kept:
                # Somebody may use them since.
                self._ask_and_wait(listing, anew=True)
                return None
            return self._claim_gpus(tuple(free[: self._request.gpus]))
        self.why = answer.problem or self._use.describe(judged)
        if len(judged) < len(unleased):
            # Some were given back while nvidia-smi was asked.
            self._ask_and_wait(listing)
            return None
        are_watched = self._watch(listing, live)
        self.seconds = self._look_seconds() if are_watched else 0.0
        return None

    def _look_seconds(self) -> float:
        if self._use.is_unsure:
            return LOAD_SECONDS
        usual = LEFTOVER_SECONDS if self._has_leftovers else _LOOK_SECONDS
        interval = max(_SHORTEST_LOOK, min(usual, self._request.idle_after / 6))
        # All waiters look at the same moments, for which one question is enough.
        next_moment = interval - now_stamp() / NANOSECONDS % interval
        return max(_SHORTEST_LOOK, min(next_moment, self._use.seconds_left()))

    def _ask_and_wait(self, listing: LeaseListing, *, anew: bool = False) -> None:
        problem = ""
        if not self._question.is_open:
            leased = frozenset(uuid for lease in listing.live_leases() for uuid in lease.gpus)
            problem = self._question.ask(self._folder, leased, anew=anew)
        self.seconds = _LOOK_SECONDS if problem else self._question.seconds
        self.why = problem or self.why

    def _remove_lease(self, job_id: str) -> None:
        remove_lease(self._folder, job_id)

    def _find_suspects(self, listing: LeaseListing) -> Set[str]:
        """Return the GPUs of dead holders' leases; remove the leases of this user that no process uses any more."""
        dead = [lease for lease in listing.leases if not lease.is_alive]
        own = [lease for lease in dead if lease.uid == os.geteuid()]
        snapshot = ProcessSnapshot() if own else None
        for lease in own:
            if snapshot is not None and not snapshot.members(lease.job_id, ""):
                self._remove_lease(lease.job_id)
                # Their processes have ended: the next answer counts like the first.
                self._use.forget(lease.gpus)
                dead.remove(lease)
        self._has_leftovers = any(lease in dead for lease in own)
        return {uuid for lease in dead for uuid in lease.gpus}

    def _claim_gpus(self, gpus: Tuple[str, ...]) -> Optional[Claim]:
        self._claim = Claim(self._folder, self._request.job_id, self._request.name, gpus, self._pool)
        with LeaseListing(pool=self._pool) as listing:
            return self._settle(listing)

    def _settle(self, listing: LeaseListing) -> Optional[Claim]:
        """Return the lease if it is kept; withdraw it for an older one."""
        assert self._claim is not None
        rivals = self._claim.find_rivals(listing)
        if rivals:
            self._withdraw()
            self._watch(listing, rivals)
            self.seconds = _RETRY_SECONDS
            self.why = f"gave way to a lease that {folders.name_of(rivals[0].uid)} took before"
            return None
        other, waited = self._claim.find_undecided(listing)
        if other is not None:
            is_usual = waited < _PUBLISHED_SOON_NANOSECONDS
            self.seconds = _SOON if is_usual else _SHORTEST_LOOK
            about = f"waits for {folders.name_of(other[0])}, whose job {other[1]} is about to lease GPUs"
            self.why = "" if is_usual else about
            return None
        claim, self._claim = self._claim, None
        return claim

    def _watch(self, listing: LeaseListing, leases: List[Lease]) -> bool:
        """Watch leases; return whether all of them are still held."""
        found = [listing.watch_lease(lease) for lease in leases]
        self._watched += [pipe for pipe in found if pipe is not None]
        return None not in found

    def _stop_watching(self) -> None:
        for pipe in self._watched:
            os.close(pipe)
        self._watched = []

    def _withdraw(self) -> None:
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _leave_queue(self) -> None:
        if self._ticket is not None:
            self._ticket.release()
            self._ticket = None

    def _refresh_if_due(self) -> None:
        if time.monotonic() - self._refreshed_at > folders.REFRESH_SECONDS:
            self._refreshed_at = time.monotonic()
            if self._ticket is not None:
                self._ticket.refresh()
            with suppress(OSError):
                folders.remove_abandoned(self._folder, fifo.TEMPORARY, os.listdir(self._folder))
