"""Report the GPUs of this machine to a client: the user of each, and how many a job would get now."""

from __future__ import annotations

import os
import select
import time

from remote_tool.agent.leases.folders import LeaseError, find_privacy, name_of
from remote_tool.agent.leases.foreign import ForeignUse, GpuQuestion, NvidiaSmiAnswer, is_idle, is_one_of
from remote_tool.agent.leases.listing import LeaseListing
from remote_tool.agent.machine.gpus import count_gpus
from remote_tool.agent.proc.processes import ProcessSnapshot
from remote_tool.protocol.job_fields import is_texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from remote_tool.agent.leases.listing import Lease
    from remote_tool.agent.requests import Request

_MOST_PROCESSES = 16
_MOST_IGNORED = 16
# The load of a GPU is an average: that of a process that has just ended is still in it for this long.
_LOAD_SECONDS = 1.6


def gpus(request: Request) -> None:
    """Answer op ``gpus``: every GPU with its use, and the queue."""
    try:
        answer = _ask()
    except LeaseError as error:
        answer = NvidiaSmiAnswer([], [], str(error) if count_gpus() else "")
    with LeaseListing() as listing:
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


def find_leases() -> Dict[str, Dict[str, Any]]:
    """Return the holder of each reserved GPU, by UUID; OSError when that is unknown now."""
    with LeaseListing() as listing:
        return _by_gpu(listing)


def _by_gpu(listing: LeaseListing) -> Dict[str, Dict[str, Any]]:
    found: Dict[str, Dict[str, Any]] = {}
    # A holder that died may have left processes: they count as any others.
    for lease in sorted(listing.live_leases(), key=_by_age):
        holder = {"user": name_of(lease.uid), "job": lease.job_id, "name": lease.name, "since": lease.since}
        for uuid in lease.gpus:
            found.setdefault(uuid, holder)
    return found


def _describe(gpu: Dict[str, Any], answer: NvidiaSmiAnswer, lease: Optional[Dict[str, Any]]) -> Dict[str, Any]:
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


def free_gpus(request: Request) -> None:
    """Answer op ``free_gpus``: the numbers of GPUs, of free and of reserved ones, and the waiting jobs.

    ``devices`` are the GPUs to count, by number or UUID; without any, all. ``waiting`` has the number of GPUs of each
    waiting job in the order of the queue, and ``why`` what is known about GPUs that are neither free nor reserved.
    """
    devices = request.get("devices", is_texts, default=[])
    use = ForeignUse(0.0)
    answer = ask_gpus()
    while True:
        with LeaseListing() as listing:
            leased = {uuid for lease in listing.live_leases() for uuid in lease.gpus}
            suspects = {uuid for lease in _find_leases_in_use(listing.leases) for uuid in lease.gpus} - leased
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


def _find_leases_in_use(leases: List[Lease]) -> List[Lease]:
    """Return the leases of dead holders that left processes behind, as far as can be known."""
    dead = [lease for lease in leases if not lease.is_alive]
    # One look at all processes, however many died.
    snapshot = ProcessSnapshot() if any(lease.uid == os.geteuid() for lease in dead) else None
    return [
        lease for lease in dead if snapshot is None or lease.uid != os.geteuid() or snapshot.members(lease.job_id, "")
    ]


def ask_gpus() -> NvidiaSmiAnswer:
    """Ask nvidia-smi, and wait for its answer as long as the supervisors of waiting jobs do."""
    try:
        return _ask()
    except LeaseError as error:
        return NvidiaSmiAnswer([], [], str(error))


def _ask() -> NvidiaSmiAnswer:
    """Return the answer of nvidia-smi, or why there is none.

    Raises:
        LeaseError: There is no nvidia-smi.
    """
    question = GpuQuestion()
    try:
        problem = question.ask()
        answer = NvidiaSmiAnswer([], [], problem) if problem else question.take()
        while answer is None:
            poll = select.poll()
            for descriptor in question.descriptors:
                poll.register(descriptor, select.POLLIN)
            poll.poll(question.seconds * 1000 + 1)
            answer = question.take()
        return answer
    finally:
        question.close()
