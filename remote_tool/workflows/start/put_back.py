"""Give jobs again that have left a queue before they began: after a reboot, or in favor of another server.

Only those whose records say all that they need.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.config.devices import command_environment
from remote_tool.config.limits import on_empty_of, on_end_of
from remote_tool.errors import RemoteToolError
from remote_tool.jobs.job import FAN_OUT_TAG, JUPYTER_MARK, Job, JobSettings, JobSpec, JobState, job_id_of
from remote_tool.jobs.records import must_return_to_queue
from remote_tool.protocol.records import COMMAND_LIMIT
from remote_tool.readable import counted
from remote_tool.workflows.events import Notice
from remote_tool.workflows.start.copies import ask_for_copies
from remote_tool.workflows.start.start_specs import start_specs
from remote_tool.workflows.status.query import ask_about_jobs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from remote_tool.workflows.context import Context

SHOWN = 10
# The part of an id that says when.
_MOMENT = len("20261121-053000-")


def id_when_put_back(job: Job, earlier: Iterable[Job] = ()) -> str:
    """Return the id of the job that takes a job's place, which every program computes: it starts once.

    Args:
        job: The job that left the queue.
        earlier: The jobs that have taken its place before.
    """
    made = job_id_of(job.ended_at, "job-requeue", job.id, *sorted(each.id for each in earlier))
    # Laptops may differ about when it was created, by the time that its start took.
    return made if job.ended_at else job.id[:_MOMENT] + made[_MOMENT:]


async def put_back(context: Context, left: Sequence[Job]) -> None:
    """Give jobs again that have left their queues, in their order; say which need a command.

    Jobs that a reboot has lost wait on their server again, and the others on the one that they were moved to.
    """
    successors = {job.rerun_of: job for job in context.registry.load()[0] if job.rerun_of}
    groups: dict[tuple[str, bool], list[Job]] = defaultdict(list)
    for job in left:
        successor = successors.get(job.id)
        # Another program may have been killed as it started that one.
        is_open = successor is None or (successor.state is JobState.STARTING and successor.id == _next_id(job))
        if must_return_to_queue(job) and (job.moved_as or _waits(job)) and is_open:
            groups[job.moved_to or job.server, bool(job.moved_as)].append(job)
    for (server, _), jobs in groups.items():
        begun = {job.id for job in jobs if job.id in successors}
        try:
            await _put_back_on(context, server, sorted(jobs, key=lambda job: (job.created_at, job.key)), begun)
        except RemoteToolError as error:
            _name(context, [(job, str(error)) for job in jobs])


def _next_id(job: Job) -> str:
    return job.moved_as or id_when_put_back(job)


def as_moved(job: Job) -> Job:
    """Return a job as it is to run on the server that it was moved to; any other as it is."""
    return replace(job, server=job.moved_to, copy=job.moved_copy) if job.moved_as else job


def _waits(job: Job) -> bool:
    return job.started_at is None and bool(job.gpu_count or job.after or job.slots)


async def _put_back_on(context: Context, server: str, left: Sequence[Job], begun: Collection[str]) -> None:
    """Give jobs again on a server; those that have begun may have been requested before."""
    jobs = [as_moved(job) for job in left]
    kept = await _kept_copies(context, server, jobs)
    problems = {job.id: why_not(context, job, kept) for job in jobs}
    able = [job for job in jobs if not problems[job.id]]
    ids = {job.id: _next_id(job) for job in able}
    # Another laptop may have put them back, and their end may have been cleaned away since.
    seen = await ask_about_jobs(context, server, ids=[*ids.values()], known=[*ids.values()]) if able else None
    new = [job for job in able if seen and ids[job.id] not in {*seen.jobs, *seen.removed, *seen.processes_left}]
    if seen:
        there = [replace(each.job, server=server) for each in seen.jobs.values() if not each.elsewhere]
        context.registry.adopt(there)
        context.registry.update(there)
    done, failed = await _start_in_order(context, new, ids, begun)
    problems |= failed
    notes = {again.id: job.note for job, again in done if job.note}
    context.registry.revise((each, partial(_with_note, note=note)) for each, note in notes.items())
    _tell(context, server, [pair for pair in done if not pair[0].moved_as])
    servers = {job.id: job.server for job in left}
    for job, again in done:
        if job.moved_as:
            where = f"{job.moved_to}, where {_gpus(job.gpu_count or 0)} free"
            context.report(Notice("", f"job {job.key}: moved from {servers[job.id]} to {where}, as job {again.key}"))
    _name(context, [(job, problems[job.id]) for job in left if problems[job.id]])


async def _start_in_order(
    context: Context, jobs: Sequence[Job], ids: Mapping[str, str], begun: Collection[str]
) -> tuple[list[tuple[Job, Job]], dict[str, str]]:
    """Start jobs with other ids; return the pairs of old and new ones, and why others failed."""
    new, done, failed = [*jobs], [], {}
    while new:
        # One that waits for another is requested when that one is there.
        ready = [job for job in new if not {*job.after} & {each.id for each in new}] or new
        specs = [_spec(context, job, ids) for job in ready]
        answer = await start_specs(context, specs, again=any(job.id in begun for job in ready))
        started = {job.id: job for job in answer.jobs}
        for job in ready:
            again = started[ids[job.id]]
            if again.state is JobState.FAILED:
                failed[job.id] = again.reason
            else:
                done.append((job, again))
        new = [job for job in new if job not in ready]
    return done, failed


def _with_note(known: Job, note: str) -> Job:
    return replace(known, note=known.note or note)


def _gpus(count: int) -> str:
    return f"{counted(count, 'GPU')} {'is' if count == 1 else 'are'}"


async def _kept_copies(context: Context, server: str, jobs: Sequence[Job]) -> set[str]:
    names = sorted({job.copy for job in jobs if job.copy})
    found = set()
    for name in names:
        answer = await ask_for_copies(context, {server: name})
        answer.raise_if_any_failed()
        found |= {name} if answer.values[server] else set()
    return found


def why_not(context: Context, job: Job, kept: Collection[str]) -> str:
    """Return why a job needs a person to be put back; empty if it does not."""
    config = context.config
    if job.server not in config.servers:
        return "it is not a configured server"
    if needed := _variables(context, job):
        return f"the values of {', '.join(needed)} are on no disk"
    if job.variables is None:
        return "its record does not name its variables"
    if job.copy and job.copy not in kept:
        return "the copy of its code is gone"
    is_part = job.launch_id and not job.sweep_tag
    if is_part or any(tag.startswith(FAN_OUT_TAG) for tag in job.tags) or job.command.startswith(JUPYTER_MARK):
        return "it belongs to something larger"
    return "its record does not have its whole command" if len(job.command) == COMMAND_LIMIT else ""


def _variables(context: Context, job: Job) -> list[str]:
    """Return the variables whose values are not here."""
    configured = {*context.config.variables_of(job.server)} if job.server in context.config.servers else set()
    return sorted({*(job.variables or ())} | {*(job.configured_variables or ())} - configured)


def _spec(context: Context, job: Job, ids: Mapping[str, str]) -> JobSpec:
    """Return the same job with another id, after those that have taken the places of the jobs before it."""
    config = context.config
    settings = {each.name: getattr(job, each.name) for each in fields(JobSettings) if each.name != "started_by"}
    runs_on_end = not job.sweep_tag
    return JobSpec(
        **{
            **settings,
            "after": tuple(ids.get(each, each) for each in job.after),
            "rerun_of": job.id,
            "configured_variables": job.configured_variables,
            "gpus": (config.servers[job.server].devices or None) if job.moved_as else job.gpus,
        },
        id=ids[job.id],
        server=job.server,
        command=job.command,
        environment=command_environment(
            config.variables_of(job.server), {}, () if job.gpu_count else tuple(job.gpus or ())
        ),
        tags=job.tags,
        on_end=on_end_of(config, None) if runs_on_end else None,
        on_empty=on_empty_of(config, job.server),
        changes=_changes_of(context, job),
    )


def _changes_of(context: Context, job: Job) -> bytes:
    """Return what was not committed when a job was given."""
    with suppress(OSError):
        return context.config.local.changes(job.id).read_bytes()
    return b""


def _tell(context: Context, server: str, pairs: Sequence[tuple[Job, Job]]) -> None:
    if not pairs:
        return
    before, now = ([str(job.key) for job in side] for side in zip(*pairs, strict=True))
    one = len(pairs) == 1
    text = f"job{'' if one else 's'} {_listed(before)} waited when it rebooted; {'it waits' if one else 'they wait'}"
    context.report(Notice(server, f"{text} again, as job{'' if one else 's'} {_listed(now)}"))


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more


def _name(context: Context, problems: Sequence[tuple[Job, str]]) -> None:
    """Name the jobs that were not given again, each group with the command to type."""
    commands: dict[tuple[str, str, str, str], list[Job]] = defaultdict(list)
    for job, why in problems:
        values = "".join(f" --env {shlex.quote(name)} VALUE" for name in _variables(context, job))
        sweep = job.sweep_tag
        command = f"helper-sweep --resume {sweep}{values}" if sweep else values
        what = f"was to be moved to {job.moved_to}" if job.moved_as else "waited when it rebooted"
        commands[job.server, what, why, command].append(job)
    for (server, did, why, command), jobs in commands.items():
        keys = [str(job.key) for job in jobs]
        typed = command if command.startswith("helper-sweep") else f"job-requeue {' '.join(keys)}{command}"
        what = f"job {keys[0]}" if len(keys) == 1 else f"{counted(len(keys), 'job')} ({_listed(keys)})"
        context.report(Notice(server, f"{what} {did}, and {why}: remote-tool {typed}"))
