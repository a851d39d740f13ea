"""``keep_jobs`` and ``min_free``: a start removes old jobs, and its answer reports low disk space."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from remote_tool.errors import RemoteToolError
from remote_tool.jobs.records import JOB_ID, become_cleaned
from remote_tool.readable import readable_size
from remote_tool.workflows.clean.local import ARTIFACTS
from remote_tool.workflows.clean.work_done import note_done
from remote_tool.workflows.events import Notice
from remote_tool.workflows.home_groups import Groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config, KeptJobs
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

# For one start, which waits for it.
MOST_CLEANED = 200
SHOWN_KEYS = 5
_TWO_DAYS = 48


def spent_jobs(context: Context, servers: Sequence[str]) -> dict[str, list[str]]:
    """Return the jobs beyond ``keep_jobs`` by server, oldest first; a server keeps those that ended later than that."""
    kept = context.config.keep_jobs
    if kept is None:
        return {}
    from remote_tool.workflows.clean.clean import choose_spent  # noqa: PLC0415 - seldom configured
    from remote_tool.workflows.clean.request import CleanRequest  # noqa: PLC0415

    request = CleanRequest(servers=tuple(servers), older=kept.seconds, keep=kept.count)
    spent, _ = choose_spent(context, context.registry.load()[0], request, servers)
    created_before = time.time() - (kept.seconds or 0.0)
    oldest = {
        server: [job for job in reversed(jobs) if _may_go(job, created_before)][:MOST_CLEANED]
        for server, jobs in spent.items()
    }
    stay = note_done(context, [job for jobs in oldest.values() for job in jobs])
    return {server: [job.id for job in jobs if job.id not in stay] for server, jobs in oldest.items()}


def _may_go(job: Job, created_before: float) -> bool:
    """Return whether nothing of a job is lost with its folder on the server, as far as is known here."""
    is_here = not job.artifacts or job.artifacts_complete or job.started_at is None
    return not job.cleaned and job.created_at <= created_before and is_here


def take_cleaned(context: Context, server: str, asked: Sequence[str], answer: Mapping[str, Any]) -> None:
    """Delete the records of jobs that a server has removed with a start, and report them."""
    told = answer.get("cleaned")
    if not asked or not isinstance(told, dict):
        return
    gone = {name for key in ("removed", "gone") for name in _ids(told.get(key))} & set(asked)
    keys = sorted(job.key for job in context.registry.find(gone).values())
    rich = {name for name in gone if (context.registry.folder / name / ARTIFACTS).is_dir()}
    context.registry.revise((name, become_cleaned) for name in rich)
    context.registry.forget(gone - rich)
    if keys:
        context.report(Notice(server, f"removed {_described(keys)} {_why(context.config.keep_jobs)}"))


def _described(keys: Sequence[int]) -> str:
    """Return ``job 3``, ``jobs 3, 4 and 7``, or ``jobs 3, 4, 7, 8, 9 and 12 more``."""
    more = len(keys) - SHOWN_KEYS
    words = [str(key) for key in keys[:SHOWN_KEYS]] + ([f"{more} more"] if more > 0 else [])
    return f"job {words[0]}" if len(words) == 1 else f"jobs {', '.join(words[:-1])} and {words[-1]}"


def _why(kept: KeptJobs | None) -> str:
    if kept is None or kept.seconds is None:
        return f"beyond the newest {kept.count if kept else 0} (keep_jobs)"
    hours = kept.seconds / 3600
    age = f"{hours:g} h" if hours < _TWO_DAYS else f"{hours / 24:g} days"
    return f"that ended more than {age} ago (keep_jobs)"


def least_free(config: Config) -> list[float]:
    """Return ``min_free`` for a start request."""
    return [config.min_free.bytes, config.min_free.hundredths]


def read_room(answer: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return free and total bytes from a server's answer; None if missing."""
    free, total = answer.get("free"), answer.get("total")
    return (free, total) if isinstance(free, int) and isinstance(total, int) and 0 <= free <= total else None


async def warn_of_low_disk(context: Context, server: str, room: tuple[int, int] | None) -> None:
    """Warn once about low disk space on a server."""
    if room is not None and server not in context.low:
        context.low.add(server)
        await warn_of_low_disks(context, {server: room})


async def warn_of_low_disks(context: Context, rooms: Mapping[str, tuple[int, int]]) -> None:
    """Warn about low disk space; only then ask these servers, in parallel, how much a clean would free."""
    freed = await _freed_by_clean(context, tuple(rooms))
    for server, room in rooms.items():
        free, total = (readable_size(each) for each in room)
        clean = f"remote-tool clean --server {server}"
        advice = f"{clean} would free {readable_size(freed[server])}" if server in freed else f"see {clean}"
        context.report(Notice(server, f"only {free} of {total} free on the disk of {server}; {advice}"))


async def _freed_by_clean(context: Context, servers: tuple[str, ...]) -> dict[str, int]:
    """Return the bytes that a clean would free on each server that answers."""
    from remote_tool.workflows.clean.clean import survey  # noqa: PLC0415 - seldom needed
    from remote_tool.workflows.clean.request import CleanRequest  # noqa: PLC0415

    try:
        found = await survey(context, CleanRequest(servers=servers))
    except RemoteToolError:
        return {}
    # Of servers sharing a folder, one has answered for all.
    groups = {server: Groups.recall(context.config).of(server) for server in servers}
    return {
        server: sum(item.frees for item in found.items if item.server in group)
        for server, group in groups.items()
        if found.errors.keys().isdisjoint(group)
    }


def _ids(value: object) -> list[str]:
    entries = value if isinstance(value, list) else []
    return [each for each in entries if isinstance(each, str) and JOB_ID.fullmatch(each)]
