"""The settings ``keep_jobs`` and ``min_free``: a start removes old jobs, and its answer reports low disk space."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from remote_tool.errors import RemoteToolError
from remote_tool.jobs.records import JOB_ID, become_cleaned
from remote_tool.readable import readable_size
from remote_tool.workflows.clean.local import ARTIFACTS, note_done
from remote_tool.workflows.events import Notice
from remote_tool.workflows.home_groups import Groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config, KeptJobs
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

# Per start, which waits until they are removed.
MOST_CLEANED = 200
SHOWN_KEYS = 5
_TWO_DAYS = 48


def jobs_to_clean(context: Context, servers: Sequence[str]) -> dict[str, list[str]]:
    """Return the ids of the jobs beyond ``keep_jobs``, by server, oldest first.

    Each server keeps those of them that ended too recently.
    """
    rule = context.config.keep_jobs
    if rule is None:
        return {}
    from remote_tool.workflows.clean.clean import choose_removable  # noqa: PLC0415 - seldom configured
    from remote_tool.workflows.clean.request import CleanRequest  # noqa: PLC0415

    request = CleanRequest(servers=tuple(servers), older=rule.seconds, keep=rule.count)
    removable, _ = choose_removable(context, context.registry.load()[0], request, servers)
    created_before = time.time() - (rule.seconds or 0.0)
    oldest = {
        server: [job for job in reversed(jobs) if _is_complete_here(job, created_before)][:MOST_CLEANED]
        for server, jobs in removable.items()
    }
    kept = note_done(context, [job for jobs in oldest.values() for job in jobs])
    return {server: [job.id for job in jobs if job.id not in kept] for server, jobs in oldest.items()}


def _is_complete_here(job: Job, created_before: float) -> bool:
    """Return whether nothing of an old job would be lost with its folder on the server, as far as is known here."""
    artifacts_are_here = not job.artifacts or job.artifacts_complete or job.started_at is None
    return not job.cleaned and job.created_at <= created_before and artifacts_are_here


def record_cleaned(context: Context, server: str, requested: Sequence[str], answer: Mapping[str, Any]) -> None:
    """Delete the records of jobs that a server has removed with a start, and report this."""
    cleaned = answer.get("cleaned")
    if not requested or not isinstance(cleaned, dict):
        return
    absent = {job_id for key in ("removed", "gone") for job_id in _ids(cleaned.get(key))} & set(requested)
    keys = sorted(job.key for job in context.registry.find(absent).values())
    with_artifacts = {job_id for job_id in absent if (context.registry.folder / job_id / ARTIFACTS).is_dir()}
    context.registry.revise((job_id, become_cleaned) for job_id in with_artifacts)
    context.registry.forget(absent - with_artifacts)
    if keys:
        context.report(Notice(server, f"removed {_list_keys(keys)} {_describe_rule(context.config.keep_jobs)}"))


def _list_keys(keys: Sequence[int]) -> str:
    """Return ``job 3``, ``jobs 3, 4 and 7``, or ``jobs 3, 4, 7, 8, 9 and 12 more``."""
    more = len(keys) - SHOWN_KEYS
    words = [str(key) for key in keys[:SHOWN_KEYS]] + ([f"{more} more"] if more > 0 else [])
    return f"job {words[0]}" if len(words) == 1 else f"jobs {', '.join(words[:-1])} and {words[-1]}"


def _describe_rule(rule: KeptJobs | None) -> str:
    if rule is None or rule.seconds is None:
        return f"beyond the newest {rule.count if rule else 0} (keep_jobs)"
    hours = rule.seconds / 3600
    age = f"{hours:g} h" if hours < _TWO_DAYS else f"{hours / 24:g} days"
    return f"that ended more than {age} ago (keep_jobs)"


def least_free(config: Config) -> list[float]:
    """Return ``min_free`` in the form of a start request."""
    return [config.min_free.bytes, config.min_free.hundredths]


def read_free_space(answer: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the free and total bytes of a low disk from a server's answer; None if it reports none."""
    free, total = answer.get("free"), answer.get("total")
    return (free, total) if isinstance(free, int) and isinstance(total, int) and 0 <= free <= total else None


async def warn_of_low_disk(context: Context, server: str, free_space: tuple[int, int] | None) -> None:
    """Warn once about low disk space on a server, given its free and total bytes."""
    if free_space is not None and server not in context.low:
        context.low.add(server)
        await warn_of_low_disks(context, {server: free_space})


async def warn_of_low_disks(context: Context, free_spaces: Mapping[str, tuple[int, int]]) -> None:
    """Warn about low disk space on servers, with the bytes that a clean would free on each."""
    freeable = await _freed_by_clean(context, tuple(free_spaces))
    for server, free_space in free_spaces.items():
        free, total = map(readable_size, free_space)
        clean = f"remote-tool clean --server {server}"
        advice = f"{clean} would free {readable_size(freeable[server])}" if server in freeable else f"see {clean}"
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
