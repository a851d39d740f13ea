"""job-stacks: get the Python stacks of the processes of jobs from their servers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import SomeServersFailedError, UsageError
from remote_tool.jobs.stacks import ProcessStack, read_threads
from remote_tool.protocol.job_folder import LARGEST_KEPT, STACKS
from remote_tool.system.files import read_bounded
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import SupervisorMissingError, converse, provide_supervisor
from remote_tool.workflows.jobs.kept import fetch_kept
from remote_tool.workflows.jobs.listing import load_matching, named_jobs, refresh, servers_of_jobs
from remote_tool.workflows.selection import choose_jobs
from remote_tool.workflows.slurm.scheduler import hosts_of_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job
    from remote_tool.transport.host import Host
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.selection import JobSelection

# py-spy takes up to 14 seconds for a process.
SILENCE = 20.0
MOST_PROCESSES = 10_000
LONGEST_TEXT = 200


@dataclass(frozen=True)
class KeptStacks:
    """The stacks of a job that its server kept before it stopped the processes."""

    job: Job
    text: str


@dataclass(frozen=True)
class StacksAnswer:
    """The stacks of the processes of jobs.

    Attributes:
        jobs: The selected jobs, and the other jobs of their launches.
        processes: The processes of the jobs that run, with their stacks.
        kept: The stacks of jobs that have ended.
        notes: A server and a message for each job that has no visible process.
        errors: The error of each server that could not answer.
    """

    jobs: tuple[Job, ...]
    processes: tuple[ProcessStack, ...]
    kept: tuple[KeptStacks, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 if every server answered, else the exit code of the errors."""
        asked = {job.server for job in self.jobs}
        return SomeServersFailedError(self.errors, sorted(asked - self.errors.keys())).exit_code if self.errors else 0


@dataclass
class _ServerStacks:
    """The answer of a server about its jobs."""

    processes: list[ProcessStack] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)


async def take_stacks(
    context: Context, selection: JobSelection, *, keep: bool = False, native: bool = False
) -> StacksAnswer:
    """Get the stacks of the selected jobs, and of the other jobs of their launches, in parallel.

    For a job that has ended, this is the file that its server has kept.

    Raises:
        UsageError: No selected job is running, and no stacks were kept.
    """
    jobs, errors = await _choose(context, selection)
    by_server: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.may_run:
            by_server[job.server].append(job)

    async def ask(server: str) -> _ServerStacks:
        if server in errors:
            raise errors[server]
        return await _ask(context, server, by_server[server], {"keep": keep, "native": native})

    results = await on_every(by_server, ask)
    answers = results.values.values()
    ended_ids = {job_id for each in answers for job_id in each.ended}
    ended = [job for job in jobs if not job.may_run or job.id in ended_ids]
    kept, kept_errors = await _read_kept(context, ended)
    if len(ended) == len(jobs) and not kept and not kept_errors:
        raise _nothing_to_show(selection, jobs)
    processes = tuple(process for each in answers for process in each.processes)
    notes = tuple(note for each in answers for note in each.notes)
    return StacksAnswer(tuple(jobs), processes, kept, notes, {**results.errors, **kept_errors})


async def _choose(context: Context, selection: JobSelection) -> tuple[list[Job], dict[str, RemoteToolError]]:
    """Return the selected jobs and the others of their launches; ask servers only if a job is unknown here."""
    errors: dict[str, RemoteToolError] = {}
    chosen = named_jobs(context, selection)
    if not chosen:
        try:
            chosen = choose_jobs(load_matching(context, selection)[0], selection) if selection.jobs else []
        except UsageError:
            chosen = []
    if not chosen:
        errors = await refresh(context, servers_of_jobs(context, replace(selection, servers=())))
        chosen = choose_jobs(load_matching(context, selection)[0], selection)
    launches = {job.launch_id for job in chosen if job.launch_id}
    ids = {job.id for job in chosen}
    jobs = [job for job in load_matching(context, selection)[0] if job.id in ids or job.launch_id in launches]
    return jobs, errors


async def _read_kept(
    context: Context, jobs: Sequence[Job]
) -> tuple[tuple[KeptStacks, ...], Mapping[str, RemoteToolError]]:
    """Fetch and read the kept stacks of jobs; a server that fails is no error if its stacks are here already."""
    results = await fetch_kept(context, jobs)
    kept = []
    for job in jobs:
        with suppress(OSError, ValueError):
            path = context.registry.folder / job.id / STACKS
            kept.append(KeptStacks(job, read_bounded(path, LARGEST_KEPT)[0].decode(errors="replace")))
    here = {each.job.server for each in kept}
    return tuple(kept), {server: error for server, error in results.errors.items() if server not in here}


def _nothing_to_show(selection: JobSelection, jobs: Sequence[Job]) -> UsageError:
    if not selection.jobs or not jobs:
        return UsageError("No running job is selected", hint="remote-tool job-list")
    subject = f"Job {selection.jobs[0]} has" if len(selection.jobs) == 1 else "The selected jobs have"
    return UsageError(f"{subject} ended, and no stacks were kept", hint="remote-tool job-kill KEY --stacks keeps them")


async def _ask(context: Context, server: str, jobs: Sequence[Job], options: Mapping[str, bool]) -> _ServerStacks:
    host = await context.pool.host(server)
    try:
        return await _ask_once(context, server, jobs, options)
    except SupervisorMissingError:
        await provide_supervisor(host, context.config)
        return await _ask_once(context, server, jobs, options)


async def _ask_once(context: Context, server: str, jobs: Sequence[Job], options: Mapping[str, bool]) -> _ServerStacks:
    keys = {job.id: job.key for job in jobs}
    found: list[tuple[Mapping[str, Any], str]] = []

    async def ask_host(host: Host, ids: Sequence[str]) -> None:
        request = {"ids": ids, **options}
        async with converse(host, context.config, "stacks", request, silence=SILENCE) as frames:
            async for frame in frames:
                if len(found) < MOST_PROCESSES and str(frame.header.get("job")) in keys:
                    found.append((frame.header, frame.body.decode(errors="replace")))

    hosts = await hosts_of_jobs(context.pool, context.config, server, list(keys))
    await asyncio.gather(*(ask_host(host, ids) for host, ids in hosts))
    processes = [(header, text) for header, text in found if "pid" in header]
    ranks = {(str(header["job"]), _number(header["pid"])): _number(header.get("rank")) for header, _ in processes}
    answer = _ServerStacks([_read_process(header, text, server, keys, ranks) for header, text in processes])
    for header, _ in found:
        job = str(header["job"])
        if header.get("ended") is True:
            answer.ended.add(job)
        elif "pid" not in header:
            answer.notes.append((server, f"job {keys[job]}: {str(header.get('why'))[:LONGEST_TEXT]}"))
    return answer


def _read_process(
    header: Mapping[str, Any],
    text: str,
    server: str,
    keys: Mapping[str, int],
    ranks: Mapping[tuple[str, int | None], int | None],
) -> ProcessStack:
    """Parse a process; the types of values in an answer are not trusted."""
    rank, job = _number(header.get("rank")), str(header["job"])
    return ProcessStack(
        job=keys[job],
        server=server,
        pid=_number(header.get("pid")) or 0,
        rank=rank,
        is_child=rank is not None and ranks.get((job, _number(header.get("parent")))) == rank,
        command=str(header.get("command", ""))[:LONGEST_TEXT],
        threads=read_threads(text),
        why=str(header.get("why", ""))[:LONGEST_TEXT],
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
