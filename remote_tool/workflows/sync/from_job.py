"""Bring a job's artifacts to every server before a start that continues from them.

They are pulled first, then sent from here: the servers need no connection to each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, RemoteToolError, UsageError
from remote_tool.jobs.artifacts import OURS, ArtifactFolder
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.workflows.artifacts.pull import pull_artifacts
from remote_tool.workflows.events import Notice
from remote_tool.workflows.selection import find_job
from remote_tool.workflows.status.refresh import query_and_record
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.config.model import Config
    from remote_tool.jobs.job import Job
    from remote_tool.transport.pool import Results
    from remote_tool.transport.sync.push import PushResult
    from remote_tool.workflows.context import Context


@dataclass(frozen=True)
class FromJobPaths(RemotePaths):
    """The project's folder on a server, with a separate list of files sent from jobs."""

    @property
    def scripts(self) -> str:
        return f"{super().scripts}/from-job"


async def bring_from_job(
    context: Context, key: str, servers: Sequence[str], *, overwrite: bool = False
) -> Results[PushResult]:
    """Bring a job's artifacts to the same places in the project on all these servers.

    Raises:
        UsageError: There is no such job, or it has no artifacts.
        JobError: Not all could be pulled.
        RemoteToolError: Its server is unreachable, and nothing is here.
    """
    job = find_job(context.registry.load()[0], key)
    await _bring_home(context, job)
    return await _send(context, job, servers, overwrite=overwrite)


async def send_from_job(
    context: Context, key: str, servers: Sequence[str] = (), *, overwrite: bool = False
) -> Results[PushResult]:
    """Send a job's local artifacts.

    Raises:
        UsageError: There is no such job.
        JobError: There are none.
    """
    job = find_job(context.registry.load()[0], key)
    if not ArtifactFolder.at(context.config.local.artifacts(job.id)).sizes():
        raise JobError(f"No artifacts of job {job.key} are here", hint=f"remote-tool job-pull {job.key}")
    return await _send(context, job, servers, overwrite=overwrite)


async def _send(context: Context, job: Job, servers: Sequence[str], *, overwrite: bool) -> Results[PushResult]:
    """Send a job's local artifacts; files that are newer or changed on a server are an error there."""
    options = SyncOptions(
        overwrite=overwrite,
        only_adds=f"remote-tool job-pull {job.key} --to-all",
        step=f"files of job {job.key}",
    )
    return await sync(context.pool, _config_of(context.config, job), servers, options, context.report)


def _config_of(config: Config, job: Job) -> Config:
    """Return a configuration with the job's artifacts as its project."""
    local, remote = config.local, config.remote
    logs = local.logs / "from-job"
    return replace(
        config,
        respect_gitignore=False,
        local=LocalPaths(
            local.artifacts(job.id),
            # These are not sent with a job's artifacts: our own folder among them.
            jobs_folder=OURS,
            logs_folder=str(logs),
            exclude=str(logs / "no-exclude"),
        ),
        remote=FromJobPaths(remote.project, remote.scripts_name, remote.jobs_name),
    )


async def _bring_home(context: Context, job: Job) -> None:
    """Pull missing files; if the job's server is unreachable, use earlier ones with a warning."""
    folder = ArtifactFolder.at(context.config.local.artifacts(job.id))
    error = None if job.artifacts_complete or not job.artifacts else await _pull(context, job)
    if folder.sizes():
        if error is not None:
            context.report(
                Notice(job.server, f"{error}; using the artifacts of job {job.key} that were pulled earlier")
            )
        return
    if error is not None:
        raise error
    if not job.artifacts:
        raise UsageError(
            f"Job {job.key} has no artifacts",
            hint=f"remote-tool job-pull {job.key} --artifact 'checkpoints/*.pt'",
        )
    raise JobError(
        f"Job {job.key} wrote no file that matches {', '.join(each.glob for each in job.artifacts)}",
        hint=f"remote-tool job-pull {job.key} --artifact GLOB",
        server=job.server,
    )


async def _pull(context: Context, job: Job) -> RemoteToolError | None:
    """Pull the job's artifacts; return why its server could not be asked.

    Raises:
        JobError: A requested file cannot be pulled.
    """
    if job.server not in context.config.servers:
        return JobError(f"The server of job {job.key}, {job.server}, is not in the configuration", server=job.server)
    errors = (await query_and_record(context, [job.server])).errors
    if job.server in errors:
        return errors[job.server]
    current = context.registry.find([job.id]).get(job.id, job)
    answer = await pull_artifacts(context, [current])
    if answer.errors:
        return answer.errors[job.server]
    if left_out := answer.jobs[0].left_out:
        name, why = left_out[0]
        raise JobError(f"Job {job.key}: {name} was not pulled: {why}", hint=f"remote-tool job-pull {job.key}")
    if not current.state.is_finished:
        text = f"job {job.key} is {current.state}; using what it has written so far"
        context.report(Notice(job.server, text))
    return None
