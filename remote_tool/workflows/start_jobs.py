"""job-run: send what changed, record, start; and never start one job twice."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.artifacts import read_artifacts, wanted_artifacts
from remote_tool.config.devices import check_devices, command_environment, devices_of
from remote_tool.errors import ConnectionLostError, JobError, RemoteToolError, UsageError
from remote_tool.jobs.job import Job, JobSpec, JobState, new_job_id
from remote_tool.jobs.records import parse_job
from remote_tool.supervisor.artifact_patterns import as_record
from remote_tool.transport.pool import on_every
from remote_tool.workflows.clocks import tell_skew
from remote_tool.workflows.selection import JobsAnswer, choose_servers
from remote_tool.workflows.supervisor import NoAnswerError, call_until_answered
from remote_tool.workflows.sync import SyncOptions, sync

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.supervisor.artifact_patterns import ArtifactPattern
    from remote_tool.workflows.context import Context

LONGEST_PROBLEM = 2000


@dataclass(frozen=True)
class StartRequest:
    """A command to start as one job on each of some servers.

    Attributes:
        command: For the shell.
        servers: Empty: all.
        environment: Variables of the job; written nowhere.
        tags: Free words.
        sync: Whether changed files are sent first.
        artifacts: Globs of files that it writes and that come home, besides those of the configuration.
        devices: The GPUs that it sees, by number or UUID; empty: as configured.
    """

    command: str
    servers: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    tags: tuple[str, ...] = ()
    sync: bool = True
    artifacts: tuple[str | ArtifactPattern, ...] = ()
    devices: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what can not be meant."""
        if not self.command.strip():
            raise UsageError("--cmd is empty", hint="remote-tool job-run --cmd 'python train.py'")
        read_artifacts(self.artifacts)
        check_devices(self.devices, self.environment)

    def environment_on(self, server: str, config: Config) -> dict[str, str]:
        """Return the variables of its job on a server."""
        devices = devices_of(config.servers[server], self.devices, self.environment)
        return command_environment(config.variables_of(server), self.environment, devices)


async def start_jobs(context: Context, requests: Sequence[StartRequest]) -> JobsAnswer:
    """Start every request as one job on each of its servers; a server whose sync fails starts nothing.

    Whatever their number, each server is sent the project once and asked once.
    """
    wanted = [(request, choose_servers(context.config, request.servers)) for request in requests]
    receivers = list(dict.fromkeys(server for request, servers in wanted if request.sync for server in servers))
    sent = await send_project(context, receivers, wanted=bool(receivers))
    specs = [
        JobSpec(
            id=new_job_id(),
            server=server,
            command=request.command,
            environment=request.environment_on(server, context.config),
            tags=request.tags,
            snapshot=sent.snapshots.get(server, ""),
            artifacts=wanted_artifacts(context.config, request.artifacts),
        )
        for request, servers in wanted
        for server in servers
        if server not in sent.errors
    ]
    answer = await start_specs(context, specs)
    return JobsAnswer(answer.jobs, {**sent.errors, **answer.errors}, warnings=sent.warnings)


@dataclass(frozen=True)
class Sent:
    """What became of a sync before a start.

    Attributes:
        snapshots: What each server has.
        errors: Of the servers that failed.
        warnings: Server and sentence.
    """

    snapshots: Mapping[str, str]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    warnings: tuple[tuple[str, str], ...] = ()


async def send_project(context: Context, servers: Sequence[str], *, wanted: bool) -> Sent:
    """Send changed files."""
    if not wanted:
        return Sent(dict.fromkeys(servers, ""))
    results = await sync(context.pool, context.config, servers, SyncOptions(), context.report)
    return Sent(
        {server: result.snapshot for server, result in results.values.items()},
        results.errors,
        tuple((server, text) for server, result in results.values.items() for text in result.warnings),
    )


async def start_specs(context: Context, specs: Sequence[JobSpec]) -> JobsAnswer:
    """Record jobs, then start them, all servers at once."""
    jobs = {job.id: job for job in context.registry.create(specs)}
    by_server: dict[str, list[JobSpec]] = defaultdict(list)
    for spec in specs:
        by_server[spec.server].append(spec)

    async def start(server: str) -> list[Job]:
        return await _start_on(context, server, by_server[server])

    results = await on_every(by_server, start)
    for server, error in results.errors.items():
        _record_failed_start(context, [jobs[spec.id] for spec in by_server[server]], error)
    current = context.registry.find(jobs)
    return JobsAnswer(tuple(current.get(spec.id, jobs[spec.id]) for spec in specs), dict(results.errors))


async def _start_on(context: Context, server: str, specs: Sequence[JobSpec]) -> list[Job]:
    config = context.config
    settings = {
        "log_limit": config.log_limit,
        "entry": config.entry_of(server),
        "setup": config.setup_of(server),
    }
    request = {"jobs": [{**_as_request(spec), **settings} for spec in specs]}
    asked_at = time.time()
    answer = await call_until_answered(context.pool, context.config, server, "start", request)
    tell_skew(context, server, answer, asked_at)
    entries = answer.get("jobs")
    started, problems = [], []
    asked = {spec.id for spec in specs}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("error"):
            problems.append(str(entry["error"])[:LONGEST_PROBLEM])
            continue
        job = parse_job(_as_status(entry), server, time.time()).job
        if job.id not in asked:
            raise JobError(f"{server}: answered about another job", server=server)
        started.append(job)
    recorded = context.registry.update(started)
    if problems:
        raise JobError(f"{server}: {'; '.join(problems[: len(specs)])}", server=server)
    if {job.id for job in started} != asked:
        raise NoAnswerError(f"{server}: did not answer about every job", server=server, hint="remote-tool job-list")
    return recorded


def _as_request(spec: JobSpec) -> dict[str, Any]:
    return {
        "id": spec.id,
        "server": spec.server,
        "command": spec.command,
        "environment": dict(spec.environment),
        "tags": list(spec.tags),
        "launch_id": spec.launch_id,
        "node_rank": spec.node_rank,
        "rank_offset": spec.rank_offset,
        "grace": spec.grace,
        "snapshot": spec.snapshot,
        "artifacts": as_record(spec.artifacts),
        "watch": asdict(spec.watch) if spec.watch else None,
        "created_at": time.time(),
    }


def _as_status(entry: object) -> object:
    """An answer to a start has no state: the job runs unless it has ended already."""
    if not isinstance(entry, dict):
        return entry
    return {**entry, "state": entry.get("state") or JobState.RUNNING.value}


def _record_failed_start(context: Context, jobs: Sequence[Job], error: RemoteToolError) -> None:
    if isinstance(error, ConnectionLostError | NoAnswerError):
        # It may have started: the next job-list asks the server.
        return
    now = time.time()
    known = context.registry.find([job.id for job in jobs]).values()
    starting = {job.id for job in known if job.state is JobState.STARTING}
    context.registry.update(
        replace(job, state=JobState.FAILED, reason=f"not started: {error}", ended_at=now)
        for job in jobs
        if job.id in starting
    )
