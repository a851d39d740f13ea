"""Report the user of each GPU of this machine: a lease, a process without one, or nobody."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any, Dict, Optional

from remote_tool.agent.leases.folders import LeaseError, find_privacy, name_of
from remote_tool.agent.leases.foreign import GpuAnswer, GpuQuestion, is_idle
from remote_tool.agent.leases.listing import Listing
from remote_tool.agent.machine.gpus import count_gpus

if TYPE_CHECKING:
    from remote_tool.agent.leases.listing import Lease
    from remote_tool.agent.requests import Request

_MOST_PROCESSES = 16
_MOST_IGNORED = 16


def gpus(request: Request) -> None:
    """Answer op ``gpus``: every GPU with its use, and the queue."""
    answer = _ask()
    with Listing() as listing:
        leases = _by_gpu(listing)
        waiting = [ticket for ticket in listing.tickets if listing.is_alive(ticket)]
        request.answer(
            {
                "gpus": [_describe(gpu, answer, leases.get(gpu["uuid"])) for gpu in answer.gpus],
                "problem": answer.problem,
                "queue": [{"job": each.job_id, "user": name_of(each.uid), "gpus": each.gpus} for each in waiting],
                "note": find_privacy(),
                "ignored": [
                    f"{name_of(each.uid)}'s {each.name or 'folder'}: {each.why}"
                    for each in listing.ignored[:_MOST_IGNORED]
                ],
            }
        )


def _ask() -> GpuAnswer:
    """Return the answer of nvidia-smi, or why there is none; without GPUs, an empty one."""
    question = GpuQuestion()
    try:
        problem = question.ask()
    except LeaseError as error:
        return GpuAnswer([], [], str(error) if count_gpus() else "")
    if problem:
        return GpuAnswer([], [], problem)
    while True:
        poll = select.poll()
        for descriptor in question.descriptors:
            poll.register(descriptor, select.POLLIN)
        poll.poll(question.seconds * 1000)
        answer = question.take()
        if answer is not None:
            return answer


def find_leases() -> Dict[str, Dict[str, Any]]:
    """Return who has reserved each GPU, by its UUID; OSError when that is unknown now."""
    with Listing() as listing:
        return _by_gpu(listing)


def _by_gpu(listing: Listing) -> Dict[str, Dict[str, Any]]:
    found: Dict[str, Dict[str, Any]] = {}
    # A holder that died may have left processes: they count as any others.
    for lease in sorted(listing.live_leases(), key=_by_age):
        described = {"user": name_of(lease.uid), "job": lease.job_id, "name": lease.name, "since": lease.since}
        for uuid in lease.gpus:
            found.setdefault(uuid, described)
    return found


def _describe(gpu: Dict[str, Any], answer: GpuAnswer, lease: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    processes = [each for each in answer.processes if each.uuid == gpu["uuid"]]
    state = "leased" if lease else "free" if not processes and is_idle(gpu) else "used"
    shown = [{"user": each.user, "pid": each.pid, "used": each.used, "job": each.job} for each in processes]
    return {
        **gpu,
        "state": state,
        "lease": lease,
        "processes": shown[:_MOST_PROCESSES],
    }


def _by_age(lease: Lease) -> tuple[int, int, str]:
    return lease.key
