"""Stop jobs that Slurm has started or will start: their supervisors first, as they know how, then scancel."""

from __future__ import annotations

import asyncio
import shlex
import time
from typing import TYPE_CHECKING, Any

from remote_tool.protocol.records import is_grace
from remote_tool.workflows.agent_client import call_until_answered
from remote_tool.workflows.slurm.look import FIND_PROGRAMS, SECONDS, held_entries, read_queue, remove_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Host
    from remote_tool.transport.pool import HostPool

USUAL_GRACE = 10.0
# Beyond the grace period: the task on the node looks twice a second, and a network disk may be late.
EXTRA_SECONDS = 25.0
# From SIGTERM to the end of what is left, for the largest usual KillWait.
CANCEL_SECONDS = 90.0
# The task on the node ends when it has seen the end of its job; that of a suspended batch job does not.
ALONE_SECONDS = 5.0
_PAUSE = 0.5


async def stop(pool: HostPool, config: Config, server: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer op ``stop``: end the jobs, and answer when Slurm has nothing left of them."""
    answer = await call_until_answered(pool, config, server, "stop", request)
    entries = {str(entry.get("id")): entry for entry in answer.get("jobs") or () if isinstance(entry, dict)}
    ids = list(request["ids"])
    known = await _ask(pool, config, server, ids)
    asked = [job_id for job_id in ids if entries.get(job_id, {}).get("asked")]
    known |= await _wait_for_ends(pool, config, server, asked, _longest_grace(request, known.values()))
    late = [job_id for job_id in asked if not known.get(job_id, {}).get("ended")]
    # What had not begun is still in the queue. What has ended leaves it by itself, unless it is suspended, or the other
    # nodes of a launch have not ended yet.
    waiting = [job_id for job_id in ids if _never_began(known.get(job_id, {}))]
    alone = [job_id for job_id in asked if job_id not in late and _is_alone(known[job_id])]
    references = {job_id: ref for job_id in (*waiting, *late, *alone) if (ref := _reference(known.get(job_id, {})))}
    host = await pool.host(server)
    left_alone = {references[job_id] for job_id in alone} if alone else set()
    gone = await _gone_by_itself(host, left_alone)
    problem = await _cancel(host, sorted(set(references.values()) - gone))
    if not problem and references:
        await remove_leftovers(host, config)
    if late and not problem:
        ends = [{"id": job_id, "reason": "stopped by scancel", "killed": True} for job_id in late]
        await call_until_answered(pool, config, server, "settle", {"jobs": ends})
        known |= await _ask(pool, config, server, late)
    for job_id, entry in entries.items():
        ended = known.get(job_id, {}).get("ended")
        if ended:
            entry |= {"ended": ended, "state": known[job_id].get("state")}
        if job_id in references and problem:
            entry["error"] = problem
        elif entry.get("asked") and not ended:
            entry["error"] = "its supervisor did not end it in time"
    return {**answer, "jobs": list(entries.values())}


async def _ask(pool: HostPool, config: Config, server: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    request = {"ids": list(ids), "skip": [], "known": [], "ended": None}
    answer = await call_until_answered(pool, config, server, "status", request)
    return {str(entry.get("id")): entry for entry in held_entries(answer)}


async def _wait_for_ends(
    pool: HostPool, config: Config, server: str, ids: Sequence[str], grace: float
) -> dict[str, dict[str, Any]]:
    """Ask until all jobs have recorded their ends, or the time is up; return the last answers."""
    known: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + grace + EXTRA_SECONDS
    while ids:
        known |= await _ask(pool, config, server, ids)
        ids = [job_id for job_id in ids if not known.get(job_id, {}).get("ended")]
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(_PAUSE if ids else 0)
    return known


async def _gone_by_itself(host: Host, references: set[str]) -> set[str]:
    """Wait briefly for batch jobs whose jobs have ended; return those that are over.

    A stop by Slurm that comes before the end of their task would look like the reason for it.
    """
    gone: set[str] = set()
    deadline = time.monotonic() + ALONE_SECONDS
    while references - gone and time.monotonic() < deadline:
        queue = await read_queue(host)
        if not queue.problem:
            gone = {each for each in references if each not in queue.jobs or queue.jobs[each].is_over}
        if references - gone:
            await asyncio.sleep(_PAUSE)
    return gone


def _longest_grace(request: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> float:
    if request.get("signal") == "SIGKILL":
        return 0.0
    if request.get("grace") is not None:
        return float(request["grace"])
    known = [entry["spec"].get("grace") for entry in entries]
    return max((float(grace) for grace in known if is_grace(grace)), default=USUAL_GRACE)


def _reference(entry: Mapping[str, Any]) -> str:
    text = str((entry.get("held") or {}).get("reference") or "")
    return text if text.replace("_", "").isdigit() else ""


def _is_alone(entry: Mapping[str, Any]) -> bool:
    """Return whether a batch job, or a task of an array, starts this job only."""
    return "_" in _reference(entry) or entry["spec"].get("node_rank") is None


def _never_began(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("held")) and not entry.get("started")


async def _cancel(host: Host, references: Sequence[str]) -> str:
    """Cancel batch jobs, and wait until nothing of them is left; return why that is not certain."""
    if not references:
        return ""
    words = " ".join(map(shlex.quote, references))
    done = await host.run(f"{FIND_PROGRAMS}scancel {words}", timeout=SECONDS, check=False, label="scancel")
    said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    deadline = time.monotonic() + CANCEL_SECONDS
    while True:
        queue = await read_queue(host)
        left = [each for each in references if each in queue.jobs and not queue.jobs[each].is_over]
        if not left and not queue.problem:
            return ""
        if time.monotonic() > deadline:
            return queue.problem or f"Slurm has not ended {', '.join(left)}: {said or queue.jobs[left[0]].state}"
        await asyncio.sleep(_PAUSE)
