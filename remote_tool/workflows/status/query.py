"""Ask servers about jobs, and read their answers."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.jobs.records import (
    RemoteJob,
    RemovedJob,
    parse_job,
    parse_removed,
    read_count,
    read_folder_id,
    read_unsure,
)
from remote_tool.protocol.fingerprints import fingerprints
from remote_tool.workflows.agent_client import call_until_answered
from remote_tool.workflows.events import Notice
from remote_tool.workflows.slurm.scheduler import ask_for_jobs
from remote_tool.workflows.status.clock_skew import warn_of_skew

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

LONGEST_REASON = 200
SHOWN_REFUSALS = 3
# A batch holds thousands of jobs.
MOST_PORTIONS = 100
# More ids than these take more bytes than their fingerprints.
MOST_SKIPPED = 60


@dataclass
class StatusAnswer:
    """A server's answer about its jobs, by id.

    Attributes:
        jobs: Including those of machines that share its home; invalid entries are left out.
        unread: Why an existing job is unreadable, now or for us.
        folder_id: Id of the folder of jobs; empty if it has none, or changed meanwhile.
        processes_left: Number of living processes of a job without a folder there.
        removed: How cleaned jobs ended.
        unlike: The buckets of ended jobs that differ from those known here.
        unsure: The ids of the jobs in them.
    """

    jobs: dict[str, RemoteJob] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    folder_id: str = ""
    processes_left: Counter[str] = field(default_factory=Counter)
    removed: dict[str, RemovedJob] = field(default_factory=dict)
    unsure: tuple[str, ...] = ()
    unlike: frozenset[int] = frozenset()


async def ask_about_jobs(
    context: Context,
    server: str,
    *,
    ids: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    known: Sequence[str] = (),
) -> StatusAnswer:
    """Query a server about jobs, in batches.

    Args:
        context: The command's context.
        server: The server.
        ids: Of the jobs; None: all but the skipped ones.
        skip: Jobs whose ends are known. Many are sent as fingerprints: the answer has the ids in buckets that differ.
        known: Jobs of which the number of living processes is asked if the server no longer has them.

    Raises:
        RemoteToolError: The server does not answer.
    """
    seen = StatusAnswer()
    is_many = len(skip) > MOST_SKIPPED
    ended = fingerprints(skip) if is_many else None
    received = set() if is_many else set(skip)
    for portion in range(MOST_PORTIONS):
        asked_at = time.time()
        request = {"ids": ids, "skip": list(received), "known": list(known), "ended": ended}
        answer = await ask_for_jobs(context.pool, context.config, server, "status", request)
        if portion == 0:
            warn_of_skew(context, server, answer, asked_at)
        folder_id = read_folder_id(answer.get("folder_id"))
        seen.folder_id = folder_id if portion == 0 or folder_id == seen.folder_id else ""
        seen.processes_left = Counter(
            {name: read_count(each.get("count")) for name, each in _named(answer.get("left"), "id").items()}
        )
        if portion == 0 and ended is not None:
            seen.unsure, seen.unlike = read_unsure(answer)
        for entry in _named(answer.get("removed"), "id").values():
            with suppress(JobError):
                removed = parse_removed(entry)
                seen.removed[removed.id] = removed
        _take_jobs(context, server, answer, seen)
        received |= _named(answer.get("jobs"), "id").keys() | _named(answer.get("bad"), "name").keys()
        if answer.get("more") is not True:
            return seen
    raise JobError(f"{server}: listed too many jobs", server=server)


async def ask_about_variables(context: Context, job: Job) -> tuple[str, ...]:
    """Ask a server for the names of all variables of a job, configured ones included.

    Raises:
        RemoteToolError: The server does not answer, or has no record of it.
    """
    answer = await call_until_answered(context.pool, context.config, job.server, "status", {"ids": [job.id]})
    spec = _named(answer.get("jobs"), "id").get(job.id, {}).get("spec")
    names = spec.get("environment_names") if isinstance(spec, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise JobError(f"{job.server} has no record of it anymore", server=job.server)
    return tuple(names)


def _named(entries: object, name: str) -> dict[str, Mapping[str, Any]]:
    entries = entries if isinstance(entries, list) else []
    return {str(entry[name]): entry for entry in entries if isinstance(entry, dict) and name in entry}


def _take_jobs(context: Context, server: str, answer: Mapping[str, Any], seen: StatusAnswer) -> None:
    for name, each in _named(answer.get("bad"), "name").items():
        seen.unread[name] = str(each.get("why"))[:LONGEST_REASON]
    refused = 0
    entries = answer.get("jobs")
    for entry in entries if isinstance(entries, list) else []:
        try:
            remote = parse_job(entry, server, time.time(), seen.folder_id, patterns=context.config.status)
        except JobError as error:
            refused += 1
            if refused <= SHOWN_REFUSALS:
                context.report(Notice(server, f"a job record was refused: {error}"))
            if isinstance(entry, dict):
                seen.unread[str(entry.get("id"))] = str(error)[:LONGEST_REASON]
            continue
        seen.jobs[remote.job.id] = remote
    if refused > SHOWN_REFUSALS:
        context.report(Notice(server, f"{refused} job records were refused"))
