"""Record jobs, ask their servers to start them, and record the answers; no job is ever started twice."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.limits import check_request
from remote_tool.errors import (
    ConnectError,
    ConnectionLostError,
    JobError,
    RemoteCommandError,
    RemoteToolError,
)
from remote_tool.jobs.job import Job, JobSpec, JobState
from remote_tool.jobs.records import parse_job, read_folder_id
from remote_tool.protocol.job_fields import REQUEST_FIELDS
from remote_tool.protocol.limits import LONGEST_REASON
from remote_tool.redaction import redact
from remote_tool.system.files import write_atomically
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import (
    NoAnswerError,
    NotBegunError,
    NotPreparedError,
    SupervisorMissingError,
)
from remote_tool.workflows.clean.disk_space import (
    jobs_to_clean,
    least_free,
    read_free_space,
    record_cleaned,
    warn_of_low_disk,
)
from remote_tool.workflows.events import Notice
from remote_tool.workflows.selection import JobsAnswer
from remote_tool.workflows.slurm.scheduler import ask_for_jobs
from remote_tool.workflows.status.clock_skew import warn_of_skew
from remote_tool.workflows.status.query import ask_about_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

LONGEST_PROBLEM = 2000
SHOWN_PROBLEMS = 3
# Per request: this many jobs start in time for its answer, and this many bytes fit into one.
MOST_AT_ONCE = 256
LARGEST_REQUEST = 4 * 1024 * 1024


async def start_specs(context: Context, specs: Sequence[JobSpec], *, again: bool = False) -> JobsAnswer:
    """Record jobs, then start them on all servers in parallel.

    A job is recorded as failed if it certainly did not begin. If unknown, its record is unchanged, and later commands
    ask its server again.

    Args:
        context: The command's context.
        specs: The jobs.
        again: Whether an earlier command has requested the same jobs without getting an answer.

    Raises:
        UsageError: A job exceeds a limit; nothing was recorded or sent.
    """
    for spec in specs:
        check_request(spec.command, spec.tags, spec.environment)
    await context.may_write()
    jobs = {job.id: job for job in context.registry.create(specs)}
    _record_changes(context, specs)
    by_server: dict[str, list[JobSpec]] = defaultdict(list)
    for spec in specs:
        by_server[spec.server].append(spec)

    removable = jobs_to_clean(context, list(by_server))

    warnings: list[tuple[str, str]] = []

    async def start(server: str) -> None:
        warnings.extend(await _start_on(context, server, by_server[server], removable.get(server, ()), again=again))

    results = await on_every(by_server, start)
    current = context.registry.find(jobs)
    started = tuple(current.get(spec.id, jobs[spec.id]) for spec in specs)
    return JobsAnswer(started, dict(results.errors), warnings=tuple(warnings))


def _record_changes(context: Context, specs: Sequence[JobSpec]) -> None:
    """Write the uncommitted changes beside each record, as far as the disk allows."""
    written: dict[bytes, Path] = {}
    for spec in specs:
        if spec.changes:
            path = context.config.local.changes(spec.id)
            with suppress(OSError):
                if spec.changes in written:
                    os.link(written[spec.changes], path)
                else:
                    write_atomically(path, spec.changes)
                    written[spec.changes] = path


async def _start_on(
    context: Context, server: str, specs: Sequence[JobSpec], removable: Sequence[str], *, again: bool
) -> list[tuple[str, str]]:
    """Start jobs in batches, and record the answers; have the server remove old ones meanwhile. Return warnings.

    Raises:
        NoAnswerError: Whether some have begun is unknown.
        RemoteToolError: Some have not begun.
    """
    portions = _portions(context, server, specs)
    total, room = _StartResults(), None
    while portions:
        try:
            results = await _ask_to_start(context, server, portions[0], removable, again=again)
        except RemoteToolError as error:
            if not again:
                unbegun = portions if _is_known_not_begun(error) else portions[1:]
                _record_failed(context, {str(each["id"]): str(error) for portion in unbegun for each in portion})
            raise
        total.failed |= results.failed
        total.unknown |= results.unknown
        total.hint = total.hint or results.hint
        total.reserved = results.reserved or total.reserved
        room = results.room or room
        removable = ()
        del portions[0]
    await warn_of_low_disk(context, server, room)
    _raise_problems(server, total)
    if not total.reserved:
        return []
    text = f"GPUs that these jobs may use are reserved: {total.reserved}; --gpus reserves free ones"
    context.report(Notice(server, text))
    return [(server, text)]


def _raise_problems(server: str, of: _StartResults) -> None:
    problems = list(dict.fromkeys([*of.failed.values(), *of.unknown.values()]))
    text = "; ".join(problems[:SHOWN_PROBLEMS])
    if len(problems) > SHOWN_PROBLEMS:
        text += f"; and {len(problems) - SHOWN_PROBLEMS} more"
    if of.unknown:
        count = f"{len(of.unknown)} of its jobs have" if len(of.unknown) > 1 else "a job has"
        message = f"{server}: cannot tell whether {count} started: {text}"
        hint = f"{of.hint}; then remote-tool job-list" if of.hint else "remote-tool job-list"
        raise NoAnswerError(message, server=server, hint=hint)
    if of.failed:
        raise JobError(f"{server}: {text}", hint=of.hint, server=server)


def _portions(context: Context, server: str, specs: Sequence[JobSpec]) -> list[list[dict[str, Any]]]:
    """Group jobs into the fewest requests that are answered in time and at once."""
    config = context.config
    settings = {
        "log_limit": config.log_limit,
        "idle_after": config.idle_after,
        "entry": config.entry_of(server),
        "setup": config.setup_of(server),
    }
    portions: list[list[dict[str, Any]]] = []
    room = 0
    for spec in specs:
        request = {**_as_request(spec, time.time()), **settings}
        size = len(json.dumps(request))
        if size > room or len(portions[-1]) == MOST_AT_ONCE:
            portions.append([])
            room = LARGEST_REQUEST
        portions[-1].append(request)
        room -= size
    return portions


@dataclass
class _StartResults:
    """Results of one request; jobs in neither dictionary have been recorded.

    Attributes:
        failed: Why jobs have not begun and never will.
        unknown: Why it is unknown whether jobs have begun.
        hint: What to do about that.
        room: Free and total bytes of a disk below the threshold; None otherwise.
        reserved: Who has reserved GPUs that the jobs may use; empty if nobody has.
    """

    failed: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    hint: str = ""
    room: tuple[int, int] | None = None
    reserved: str = ""


async def _ask_to_start(
    context: Context, server: str, requests: Sequence[Mapping[str, Any]], removable: Sequence[str], *, again: bool
) -> _StartResults:
    """Ask a server to start jobs, and query uncertain ones once by their ids."""
    asked_at = time.time()
    ids = [str(request["id"]) for request in requests]
    request = {
        "jobs": requests,
        "again": again,
        "clean": list(removable),
        "older": context.config.keep_jobs.seconds if context.config.keep_jobs else None,
        "min_free": least_free(context.config),
    }
    try:
        answer = await ask_for_jobs(context.pool, context.config, server, "start", request)
    except JobError as error:
        if _is_known_not_begun(error):
            raise
        results = _StartResults(unknown=dict.fromkeys(ids, str(error)), hint=error.hint)
    else:
        warn_of_skew(context, server, answer, asked_at)
        await context.may_write()
        results = _read_answer(context, server, answer, ids)
        _record_failed(context, results.failed)
        record_cleaned(context, server, removable, answer)
        results.room = read_free_space(answer)
        results.reserved = str(answer.get("reserved") or "")[:LONGEST_REASON]
    if results.unknown:
        with suppress(RemoteToolError):
            seen = await ask_about_jobs(context, server, ids=list(results.unknown))
            found = [each.job for job_id, each in seen.jobs.items() if job_id in results.unknown and not each.elsewhere]
            context.registry.update(found)
            for job in found:
                del results.unknown[job.id]
    return results


def _read_answer(context: Context, server: str, answer: Mapping[str, Any], ids: Sequence[str]) -> _StartResults:
    """Record the jobs that have begun, and return the others."""
    results = _StartResults(unknown=dict.fromkeys(ids, "the server did not say"))
    started = []
    entries = answer.get("jobs")
    folder_id = read_folder_id(answer.get("folder_id"))
    for entry in entries if isinstance(entries, list) else []:
        job_id = entry.get("id") if isinstance(entry, dict) else None
        # Entries for unrequested jobs are ignored.
        if not isinstance(job_id, str) or job_id not in results.unknown:
            continue
        try:
            started.append(_read_entry(entry, server, folder_id))
            del results.unknown[job_id]
        except JobError as error:
            results.unknown[job_id] = str(error)
            if entry.get("begun") is False:
                results.failed[job_id] = results.unknown.pop(job_id)
                results.hint = str(entry.get("hint") or "")
    context.registry.update(started)
    return results


def _as_request(spec: JobSpec, created_at: float) -> dict[str, Any]:
    """Return a job's start request; variables and the secret of a launch are included but never recorded."""
    values = {field.name: getattr(spec, field.name, created_at) for field in REQUEST_FIELDS}
    watch = asdict(spec.watch) if spec.watch else None
    on_end = None if spec.on_end is None else {"command": spec.on_end[0], "secrets": dict(spec.on_end[1])}
    on_empty = None
    if spec.on_empty is not None:
        on_empty = {"command": spec.on_empty[0], "secrets": dict(spec.on_empty[1]), "after": spec.on_empty[2]}
    return {
        **values,
        "environment": dict(spec.environment),
        "watch": watch,
        "on_end": on_end,
        "on_empty": on_empty,
        "waits": spec.waits,
    }


def _read_entry(entry: Mapping[str, Any], server: str, folder_id: str) -> Job:
    """Return a job from its start's answer: it has no state there, and is running unless it has ended."""
    if entry.get("error"):
        raise JobError(redact(str(entry["error"]))[:LONGEST_PROBLEM])
    running = {**entry, "state": entry.get("state") or JobState.RUNNING.value}
    return parse_job(running, server, time.time(), folder_id).job


def _is_known_not_begun(error: RemoteToolError) -> bool:
    """Return whether nothing requested has begun: the server says so, or was never asked."""
    if isinstance(error, ConnectionLostError):
        return False
    refused = NotBegunError | NotPreparedError | SupervisorMissingError | RemoteCommandError
    return isinstance(error, ConnectError | refused)


def _record_failed(context: Context, reasons: Mapping[str, str]) -> None:
    """Record jobs as failed that have not begun, unless another program knows more by now."""
    now = time.time()
    context.registry.update(
        replace(
            job,
            state=JobState.FAILED,
            reason=f"not started: {reasons[job.id]}",
            ended_at=now,
            logs_complete=True,
            artifacts_complete=True,
        )
        for job in context.registry.find(reasons).values()
        if job.state is JobState.STARTING
    )
