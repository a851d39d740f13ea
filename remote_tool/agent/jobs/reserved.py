"""Warn when jobs that reserve no GPU may use GPUs that others have reserved; they start all the same."""

from __future__ import annotations

from remote_tool.agent.leases.listing import LeaseListing
from remote_tool.agent.leases.report import ask_gpus
from remote_tool.agent.leases.standing import describe_leases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Set

    from remote_tool.agent.supervisor.plan import RequestedJob

_VISIBLE = b"CUDA_VISIBLE_DEVICES"


def describe_reserved(jobs: List[RequestedJob]) -> str:
    """Name the users that have reserved GPUs which these jobs may use; empty if nobody has."""
    with LeaseListing() as listing:
        leases = listing.live_leases()
    if not leases:
        return ""
    devices = [_visible(job) for job in jobs if not job.spec["gpu_count"]]
    if None not in devices:
        named = {name for names in devices for name in names or ()}
        uuids = _uuids(named)
        leases = [lease for lease in leases if any(gpu.startswith(name) for gpu in lease.gpus for name in uuids)]
    return describe_leases(leases) if devices else ""


def _visible(job: RequestedJob) -> Optional[Set[str]]:
    """Return the GPUs that a job sees; None for all."""
    if job.spec["gpus"]:
        return {*job.spec["gpus"]}
    if job.command_wrapper is not None or _VISIBLE not in job.environment:
        return None
    names = job.environment[_VISIBLE].decode("utf-8", "replace").split(",")
    return {name.strip() for name in names if name.strip() and name.strip() != "-1"}


def _uuids(names: Set[str]) -> Set[str]:
    """Return UUIDs, or their beginnings, in place of numbers."""
    numbers = {name for name in names if name.isdigit()}
    if not numbers:
        return names
    known = ask_gpus().gpus
    return names - numbers | {gpu["uuid"] for gpu in known if str(gpu["index"]) in numbers}
