"""Tell a client which GPUs a job would get now, and how many jobs wait."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, List

from remote_tool.agent.leases.folders import LeaseError
from remote_tool.agent.leases.foreign import ForeignUse, GpuAnswer, GpuQuestion, is_one_of
from remote_tool.agent.leases.listing import Listing
from remote_tool.agent.proc.processes import Snapshot
from remote_tool.protocol.job_fields import is_texts

if TYPE_CHECKING:
    from remote_tool.agent.leases.listing import Lease
    from remote_tool.agent.requests import Request

# The load of a GPU is an average: that of a process that has just ended is still in it for this long.
_LOAD_SECONDS = 1.6


def free_gpus(request: Request) -> None:
    """Answer op ``free_gpus``: the numbers of GPUs, of free and of reserved ones, and the waiting jobs.

    ``devices`` are the GPUs to count, by number or UUID; without any, all. ``waiting`` has the number of GPUs of each
    waiting job in the order of the queue, and ``why`` what is known about GPUs that are neither free nor reserved.
    """
    devices = request.get("devices", is_texts, default=[])
    use = ForeignUse(0.0)
    answer = ask_gpus()
    while True:
        with Listing() as listing:
            leased = {uuid for lease in listing.live_leases() for uuid in lease.gpus}
            suspects = {uuid for lease in _find_used(listing.leases) for uuid in lease.gpus} - leased
            waiting = [ticket.gpus for ticket in listing.tickets if listing.is_alive(ticket)]
        gpus = [gpu for gpu in answer.gpus if is_one_of(gpu, devices)]
        others = [gpu for gpu in gpus if gpu["uuid"] not in leased]
        use.update(answer, [gpu["uuid"] for gpu in others], ())
        if answer.problem or not use.is_unsure:
            break
        time.sleep(_LOAD_SECONDS)
        answer = ask_gpus()
    free = [gpu for gpu in others if use.is_free(gpu["uuid"]) and gpu["uuid"] not in suspects]
    notes = [f"GPU {gpu['index']} was reserved by a job that died" for gpu in others if gpu["uuid"] in suspects]
    request.answer(
        {
            "total": len(gpus),
            "free": len(free),
            "leased": len(gpus) - len(others),
            "waiting": waiting,
            "why": answer.problem or "; ".join(filter(None, [use.describe(others), *notes])),
        }
    )


def _find_used(leases: List[Lease]) -> List[Lease]:
    """Return the leases whose holders died and left processes behind, as far as can be known."""
    dead = [lease for lease in leases if not lease.is_alive]
    # One look at all processes, however many died.
    snapshot = Snapshot() if any(lease.uid == os.geteuid() for lease in dead) else None
    return [
        lease for lease in dead if snapshot is None or lease.uid != os.geteuid() or snapshot.members(lease.job_id, "")
    ]


def ask_gpus() -> GpuAnswer:
    """Ask nvidia-smi, and wait for its answer as long as the supervisors of waiting jobs do."""
    question = GpuQuestion()
    try:
        problem = question.ask()
        while not problem:
            poll = select.poll()
            for descriptor in question.descriptors:
                poll.register(descriptor, select.POLLIN)
            poll.poll(question.seconds * 1000 + 1)
            answer = question.take()
            if answer is not None:
                return answer
    except LeaseError as error:
        problem = str(error)
    finally:
        question.close()
    return GpuAnswer([], [], problem)
