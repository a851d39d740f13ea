"""job-stacks: ask the servers of jobs where their Python processes are."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.selection import JobSelection

# py-spy takes at most 14 seconds for a process.
SILENCE = 20.0
MOST_PROCESSES = 10_000
LONGEST_TEXT = 200


@dataclass(frozen=True)
class KeptStacks:
    """Stacks that a job's server kept before it stopped the job's processes."""

    job: Job
    text: str


@dataclass(frozen=True)
class StacksAnswer:
    """The stacks of the processes of jobs.

    Attributes:
        jobs: The jobs that were asked for, with those of the same launches.
        processes: Of the jobs that run.
        kept: Of the jobs that have ended.
        notes: Server and message, about jobs whose processes cannot be seen.
        errors: Of the servers that could not answer.
    """

    jobs: tuple[Job, ...]
    processes: tuple[ProcessStack, ...]
    kept: tuple[KeptStacks, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """Return 0 when every server answered."""
        asked = {job.server for job in self.jobs}
        return SomeServersFailedError(self.errors, sorted(asked - self.errors.keys())).exit_code if self.errors else 0


@dataclass
class _Found:
    """A server's answer."""

    processes: list[ProcessStack] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)


async def take_stacks(
    context: Context, selection: JobSelection, *, keep: bool = False, native: bool = False
) -> StacksAnswer:
    """Ask the servers of the selected jobs, and of the launches that these belong to, in parallel.

    Jobs that have ended are shown as their servers kept them.

    Raises:
        UsageError: No selected job is running, and no stacks were kept.
    """
    jobs, errors = await _choose(context, selection)
    by_server: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.may_run:
            by_server[job.server].append(job)

    async def ask(server: str) -> _Found:
        if server in errors:
            raise errors[server]
        return await _ask(context, server, by_server[server], {"keep": keep, "native": native})

    results = await on_every(by_server, ask)
    found = results.values.values()
    have_ended = {job_id for each in found for job_id in each.ended}
    ended = [job for job in jobs if not job.may_run or job.id in have_ended]
    kept, more = await _read_kept(context, ended)
    if len(ended) == len(jobs) and not kept and not more:
        raise _nothing_to_show(selection, jobs)
    processes = tuple(each for one in found for each in one.processes)
    notes = tuple(note for one in found for note in one.notes)
    return StacksAnswer(tuple(jobs), processes, kept, notes, {**results.errors, **more})


async def _choose(context: Context, selection: JobSelection) -> tuple[list[Job], dict[str, RemoteToolError]]:
    """Return the selected jobs and the rest of their launches; servers are asked only if a job is unknown here."""
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
    """Fetch the kept stacks of jobs, and read them; those that are here already count if a server is gone."""
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
    which = f"Job {selection.jobs[0]} has" if len(selection.jobs) == 1 else "The selected jobs have"
    return UsageError(f"{which} ended, and no stacks were kept", hint="remote-tool job-kill KEY --stacks keeps them")


async def _ask(context: Context, server: str, jobs: Sequence[Job], how: Mapping[str, bool]) -> _Found:
    host = await context.pool.host(server)
    try:
        return await _ask_once(context, server, jobs, how)
    except SupervisorMissingError:
        await provide_supervisor(host, context.config)
        return await _ask_once(context, server, jobs, how)


async def _ask_once(context: Context, server: str, jobs: Sequence[Job], how: Mapping[str, bool]) -> _Found:
    keys = {job.id: job.key for job in jobs}
    found: list[tuple[Mapping[str, Any], str]] = []
    host = await context.pool.host(server)
    request = {"ids": list(keys), **how}
    async with converse(host, context.config, "stacks", request, silence=SILENCE) as frames:
        async for frame in frames:
            if len(found) < MOST_PROCESSES and str(frame.header.get("job")) in keys:
                found.append((frame.header, frame.body.decode(errors="replace")))
    processes = [(header, text) for header, text in found if "pid" in header]
    ranks = {(str(header["job"]), _number(header["pid"])): _number(header.get("rank")) for header, _ in processes}
    answer = _Found([_read(header, text, server, keys, ranks) for header, text in processes])
    for header, _ in found:
        job = str(header["job"])
        if header.get("ended") is True:
            answer.ended.add(job)
        elif "pid" not in header:
            answer.notes.append((server, f"job {keys[job]}: {str(header.get('why'))[:LONGEST_TEXT]}"))
    return answer


def _read(
    header: Mapping[str, Any],
    text: str,
    server: str,
    keys: Mapping[str, int],
    ranks: Mapping[tuple[str, int | None], int | None],
) -> ProcessStack:
    """Return a process; what a server says is not trusted to be of the right type."""
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
