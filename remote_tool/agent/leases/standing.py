"""One snapshot of the queue, for answers about many jobs."""

from __future__ import annotations

from contextlib import suppress

from remote_tool.agent.leases.folders import name_of
from remote_tool.agent.leases.listing import LeaseListing
from remote_tool.agent.leases.queued_file import Queued, read_queued
from remote_tool.agent.proc.processes import find_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from remote_tool.agent.leases.listing import Lease, Ticket
    from remote_tool.agent.proc.processes import Process

_MOST_SHOWN = 3
_TEENS = (11, 12, 13)
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


class Standing:
    """The tickets of living jobs in the order of the queue, and the leases."""

    def __init__(self) -> None:
        self._tickets: List[Ticket] = []
        self._leases: List[Lease] = []
        # If the queue cannot be read now, the jobs wait all the same.
        with suppress(OSError), LeaseListing() as listing:
            self._tickets = [ticket for ticket in listing.tickets if listing.is_alive(ticket)]
            self._leases = listing.live_leases()
        self._places = {ticket.job_id: place for place, ticket in enumerate(self._tickets)}
        self._leased = describe_leases(self._leases)
        self._holders = {lease.job_id for lease in self._leases}

    def explain(self, folder: int, job_id: str) -> Tuple[Optional[Process], str]:
        """Return the supervisor of a job that waits, and what it waits for.

        Args:
            folder: Descriptor of the job's folder.
            job_id: The job.
        """
        queued = read_queued(folder) or Queued({}, "")
        supervisor = find_alive(queued.supervisor) if queued.supervisor else None
        return supervisor, self._explain_wait(job_id, queued.why)

    def _explain_wait(self, job_id: str, why: str) -> str:
        place = self._places.get(job_id)
        if place is None:
            return why
        required = self._tickets[place].gpus
        position = f"{ordinal(place + 1)} of {len(self._tickets)} for {required} GPU{'s' * (required > 1)}"
        # It has published its lease, and waits until nobody can have an older one.
        leased = describe_leases(self._leases, but=job_id) if job_id in self._holders else self._leased
        return "; ".join(part for part in (position, leased, why) if part)


def describe_leases(leases: List[Lease], but: str = "") -> str:
    """Return how many GPUs each user has leased, for which jobs but one; empty without leases."""
    users: Dict[int, List[Lease]] = {}
    for lease in leases:
        if lease.job_id != but:
            users.setdefault(lease.uid, []).append(lease)
    return ", ".join(_describe(uid, of_user) for uid, of_user in users.items())


def _describe(uid: int, leases: List[Lease]) -> str:
    gpus = {uuid for lease in leases for uuid in lease.gpus}
    jobs = [lease.name or f"job {lease.job_id}" for lease in leases[:_MOST_SHOWN]]
    more = [f"{len(leases) - _MOST_SHOWN} more"] if len(leases) > _MOST_SHOWN else []
    verb = "is" if len(gpus) == 1 else "are"
    return f"{len(gpus)} {verb} leased by {name_of(uid)} ({', '.join(jobs + more)})"


def ordinal(number: int) -> str:
    """Return ``1st``, ``2nd`` and so on."""
    ending = "th" if number % 100 in _TEENS else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"
