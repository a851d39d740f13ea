"""Starts jobs: records them, asks their servers, and records the answers; no job is ever started twice."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool import workflows
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
from remote_tool.redaction import redact
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import (
    NoAnswerError,
    NotBegunError,
    NotPreparedError,
    SupervisorMissingError,
    call_until_answered,
)
from remote_tool.workflows.clean.disk_space import least_free, read_room, spent_jobs, take_cleaned, tell_low_room
from remote_tool.workflows.jobs.clock_skew import tell_skew
from remote_tool.workflows.selection import JobsAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

LONGEST_PROBLEM = 2000
SHOWN_PROBLEMS = 3
# Of one request: so many jobs have begun in time for its answer, and so many bytes make one that is not too long.
MOST_AT_ONCE = 256
LARGEST_REQUEST = 4 * 1024 * 1024


async def start_specs(context: Context, specs: Sequence[JobSpec], *, again: bool = False) -> JobsAnswer:
    """Record jobs, then start them, all servers at once.

    A job is recorded as failed where nothing of it was begun for certain. Where that is not known it stays as it is
    recorded, and every later look asks its server for it.

    Args:
        context: Of this command.
        specs: The jobs.
        again: Whether an earlier command has asked for the same jobs, and not heard the answer.

    Raises:
        UsageError: A job asks for more than it may have; nothing was recorded or sent.
    """
    for spec in specs:
        check_request(spec.command, spec.tags, spec.environment)
    await context.may_write()
    jobs = {job.id: job for job in context.registry.create(specs)}
    by_server: dict[str, list[JobSpec]] = defaultdict(list)
    for spec in specs:
        by_server[spec.server].append(spec)

    spent = spent_jobs(context, list(by_server))

    async def start(server: str) -> None:
        await _start_on(context, server, by_server[server], spent.get(server, ()), again=again)

    results = await on_every(by_server, start)
    current = context.registry.find(jobs)
    return JobsAnswer(tuple(current.get(spec.id, jobs[spec.id]) for spec in specs), dict(results.errors))


async def _start_on(
    context: Context, server: str, specs: Sequence[JobSpec], spent: Sequence[str], *, again: bool
) -> None:
    """Start jobs, portion by portion, and record what the server says of each; have it remove old ones meanwhile.

    Raises:
        NoAnswerError: Of some it is not known whether they have begun.
        RemoteToolError: Some have not begun.
    """
    portions = _portions(context, server, specs)
    all_told, room = _Told(), None
    while portions:
        try:
            told = await _ask_to_start(context, server, portions[0], spent, again=again)
        except RemoteToolError as error:
            if not again:
                unbegun = portions if _is_known_not_begun(error) else portions[1:]
                _record_failed(context, {str(each["id"]): str(error) for portion in unbegun for each in portion})
            raise
        all_told.failed |= told.failed
        all_told.unknown |= told.unknown
        all_told.hint = all_told.hint or told.hint
        room = told.room or room
        spent = ()
        del portions[0]
    await tell_low_room(context, server, room)
    _raise_problems(server, all_told)


def _raise_problems(server: str, of: _Told) -> None:
    problems = list(dict.fromkeys([*of.failed.values(), *of.unknown.values()]))
    told = "; ".join(problems[:SHOWN_PROBLEMS])
    if len(problems) > SHOWN_PROBLEMS:
        told += f"; and {len(problems) - SHOWN_PROBLEMS} more"
    if of.unknown:
        count = f"{len(of.unknown)} of its jobs have" if len(of.unknown) > 1 else "a job has"
        message = f"{server}: cannot tell whether {count} started: {told}"
        hint = f"{of.hint}; then remote-tool job-list" if of.hint else "remote-tool job-list"
        raise NoAnswerError(message, server=server, hint=hint)
    if of.failed:
        raise JobError(f"{server}: {told}", server=server)


def _portions(context: Context, server: str, specs: Sequence[JobSpec]) -> list[list[dict[str, Any]]]:
    """Put jobs into as few requests as are answered in time and in one piece."""
    config = context.config
    settings = {
        "log_limit": config.log_limit,
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
class _Told:
    """What became of the jobs of one request; those that are in neither are recorded as they are.

    Attributes:
        failed: Why, of those that have not begun and never will.
        unknown: Why, of those of which that is not known.
        hint: What to do about that.
        room: What is free on a disk with less than is wanted, and in all; None where there is more.
    """

    failed: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    hint: str = ""
    room: tuple[int, int] | None = None


async def _ask_to_start(
    context: Context, server: str, requests: Sequence[Mapping[str, Any]], spent: Sequence[str], *, again: bool
) -> _Told:
    """Have a server start jobs, and ask once by their ids for those that it says nothing certain of."""
    asked_at = time.time()
    ids = [str(request["id"]) for request in requests]
    request = {"jobs": requests, "again": again, "clean": list(spent), "min_free": least_free(context.config)}
    try:
        answer = await call_until_answered(context.pool, context.config, server, "start", request)
    except JobError as error:
        if _is_known_not_begun(error):
            raise
        told = _Told(unknown=dict.fromkeys(ids, str(error)), hint=error.hint)
    else:
        tell_skew(context, server, answer, asked_at)
        await context.may_write()
        told = _read_answer(context, server, answer, ids)
        _record_failed(context, told.failed)
        take_cleaned(context, server, spent, answer)
        told.room = read_room(answer)
    if told.unknown:
        with suppress(RemoteToolError):
            seen = await workflows.jobs.listing.ask_about_jobs(context, server, ids=list(told.unknown))
            found = [each.job for job_id, each in seen.jobs.items() if job_id in told.unknown and not each.elsewhere]
            context.registry.update(found)
            for job in found:
                del told.unknown[job.id]
    return told


def _read_answer(context: Context, server: str, answer: Mapping[str, Any], ids: Sequence[str]) -> _Told:
    """Record the jobs that have begun, and return the others."""
    told = _Told(unknown=dict.fromkeys(ids, "the server did not say"))
    started = []
    entries = answer.get("jobs")
    folder_id = read_folder_id(answer.get("folder_id"))
    for entry in entries if isinstance(entries, list) else []:
        job_id = entry.get("id") if isinstance(entry, dict) else None
        # What it says of other jobs, nobody asked for.
        if not isinstance(job_id, str) or job_id not in told.unknown:
            continue
        try:
            started.append(_read_entry(entry, server, folder_id))
            del told.unknown[job_id]
        except JobError as error:
            told.unknown[job_id] = str(error)
            if entry.get("begun") is False:
                told.failed[job_id] = told.unknown.pop(job_id)
    context.registry.update(started)
    return told


def _as_request(spec: JobSpec, created_at: float) -> dict[str, Any]:
    """Return what a server is asked; variables and the secret of a launch travel with it, and are recorded nowhere."""
    values = {field.name: getattr(spec, field.name, created_at) for field in REQUEST_FIELDS}
    watch = asdict(spec.watch) if spec.watch else None
    return {**values, "environment": dict(spec.environment), "watch": watch}


def _read_entry(entry: Mapping[str, Any], server: str, folder_id: str) -> Job:
    """Return a job as its start was answered: it has no state there, and runs unless it has ended already."""
    if entry.get("error"):
        raise JobError(redact(str(entry["error"]))[:LONGEST_PROBLEM])
    running = {**entry, "state": entry.get("state") or JobState.RUNNING.value}
    return parse_job(running, server, time.time(), folder_id).job


def _is_known_not_begun(error: RemoteToolError) -> bool:
    """Whether nothing has begun of what was asked for: the server says so, or never was asked."""
    if isinstance(error, ConnectionLostError):
        return False
    refused = NotBegunError | NotPreparedError | SupervisorMissingError | RemoteCommandError
    return isinstance(error, ConnectError | refused)


def _record_failed(context: Context, reasons: Mapping[str, str]) -> None:
    """Record jobs of which nothing has begun, unless somebody has seen more of them meanwhile."""
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
