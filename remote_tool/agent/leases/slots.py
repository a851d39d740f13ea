"""A job's way to one of the slots of its sweep: as many of its jobs run at once on this machine as there are slots.

Slots are leased as GPUs are, in a folder for each sweep. Nobody else uses them, so nvidia-smi is not asked.
"""

from __future__ import annotations

import os
import select
import time
from itertools import count, islice

from remote_tool.agent.leases import folders
from remote_tool.agent.leases.waiter import LEFTOVER_SECONDS, LONG_SECONDS, LeaseRequest, LeaseWaiter
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, List, Optional, Tuple

    from remote_tool.agent.leases.claim import Claim
    from remote_tool.agent.leases.foreign import NvidiaSmiAnswer
    from remote_tool.agent.leases.listing import LeaseListing, Ticket

    FindLeft = Callable[[Iterable[str]], List[str]]

_FOLDER = "sweep-"
_MOST_SHOWN = 3
# One that takes longer, on a slow disk, may be passed.
_ARRIVAL_SECONDS = 10.0


def pool_of(sweep: str) -> str:
    """Return the name of the folder with the leases of a sweep."""
    return f"{_FOLDER}{sweep}"


class Slots(NamedTuple):
    """The slots of a sweep on this machine.

    Attributes:
        sweep: Its id.
        at_once: How many of its jobs may run.
        find_left: Returns those of some jobs, whose supervisors died, that may still have processes.
    """

    sweep: str
    at_once: int
    find_left: FindLeft


class SlotWaiter(LeaseWaiter):
    """A job that waits for a slot of its sweep."""

    def __init__(self, request: LeaseRequest, slots: Slots, arrivals: Tuple[int, ...] = ()) -> None:
        """Prepare; the first step enters the queue.

        Args:
            request: The job.
            slots: Those of its sweep.
            arrivals: The ends of a pipe, for reading and writing, that others of the same request close when they
                have their places; they are closed here.
        """
        self._slots = slots.at_once
        self._find_left = slots.find_left
        self._arrivals = [*arrivals]
        self._patient_until = time.monotonic() + _ARRIVAL_SECONDS
        super().__init__(request, pool_of(slots.sweep))
        # They are known without asking.
        self._gpus = []

    def close(self) -> None:
        """Leave the queue without a slot, or after it was given to somebody."""
        super().close()
        self._close_arrivals()
        folders.remove_pool(self._pool)

    def _step(self, listing: LeaseListing, answer: Optional[NvidiaSmiAnswer]) -> Optional[Claim]:
        if len(self._arrivals) > 1:
            # Its place is taken.
            os.close(self._arrivals.pop())
        claim = super()._step(listing, answer)
        run = "1 runs" if self._slots == 1 else f"{self._slots} run"
        self.why = self.why or f"waits for the end of another job of its sweep, of which {run} at once"
        return claim

    def _try(
        self, listing: LeaseListing, answer: Optional[NvidiaSmiAnswer], first: Optional[Ticket]
    ) -> Optional[Claim]:
        del answer, first
        if self._must_wait_for_arrivals():
            return None
        live = listing.live_leases()
        dead = [lease.job_id for lease in listing.leases if not lease.is_alive]
        left = self._find_left(dead) if dead else []
        for job_id in set(dead).difference(left):
            self._remove_lease(job_id)
        taken = {slot for lease in listing.leases if lease.is_alive or lease.job_id in left for slot in lease.gpus}
        free = next((slot for slot in islice(map(str, count()), self._slots) if slot not in taken), None)
        self.why = self._describe(left)
        if free is not None:
            return self._claim_gpus((free,))
        are_watched = self._watch(listing, live)
        self.seconds = 0.0 if not are_watched else LEFTOVER_SECONDS if left else LONG_SECONDS
        return None

    def _must_wait_for_arrivals(self) -> bool:
        """Return whether another job of the same request, which may be earlier, has no place yet."""
        if not self._arrivals:
            return False
        self.seconds = self._patient_until - time.monotonic()
        if self.seconds <= 0:
            self._close_arrivals()
            return False
        poll = select.poll()
        poll.register(self._arrivals[0], 0)
        if poll.poll(0):
            self._close_arrivals()
            # They may have come after this look at the queue.
            self.seconds = 0.0
            return True
        self._watched.append(os.dup(self._arrivals[0]))
        return True

    def _close_arrivals(self) -> None:
        while self._arrivals:
            os.close(self._arrivals.pop())

    @staticmethod
    def _describe(left: List[str]) -> str:
        shown = [f"job {job_id}" for job_id in left[:_MOST_SHOWN]]
        more = [f"{len(left) - _MOST_SHOWN} more"] if len(left) > _MOST_SHOWN else []
        verb = "have" if len(left) > 1 else "has"
        return f"{', '.join(shown + more)} of its sweep was lost and still {verb} processes" if left else ""
