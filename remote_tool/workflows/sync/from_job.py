"""Files that a job wrote, brought to every server before something begins that goes on from them.

They come home first, each whole, and are sent from here: the servers need no connection to each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, RemoteToolError, UsageError
from remote_tool.jobs.artifacts import OURS, ArtifactFolder
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.workflows.artifacts.pull import pull_artifacts
from remote_tool.workflows.events import Notice
from remote_tool.workflows.jobs.listing import refresh
from remote_tool.workflows.selection import find_job
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
    """The project's folder on a server, with a list of its own of what came from jobs."""

    @property
    def scripts(self) -> str:
        return f"{super().scripts}/from-job"


async def bring_from_job(
    context: Context, key: str, servers: Sequence[str], *, overwrite: bool = False
) -> Results[PushResult]:
    """Bring the artifacts of a job to the same places in the project on all these servers.

    Raises:
        UsageError: There is no such job, or it brings no files home.
        JobError: Not all of them came home.
        RemoteToolError: Its server cannot be reached, and nothing is here.
    """
    job = find_job(context.registry.load()[0], key)
    await _bring_home(context, job)
    return await _send(context, job, servers, overwrite=overwrite)


async def send_from_job(
    context: Context, key: str, servers: Sequence[str] = (), *, overwrite: bool = False
) -> Results[PushResult]:
    """Send the artifacts of a job that are here already.

    Raises:
        UsageError: There is no such job.
        JobError: Nothing of it is here.
    """
    job = find_job(context.registry.load()[0], key)
    if not ArtifactFolder.at(context.config.local.artifacts(job.id)).sizes():
        raise JobError(f"No artifacts of job {job.key} are here", hint=f"remote-tool job-pull {job.key}")
    return await _send(context, job, servers, overwrite=overwrite)


async def _send(context: Context, job: Job, servers: Sequence[str], *, overwrite: bool) -> Results[PushResult]:
    """Send the artifacts of a job that are here; what a server has newer, or has changed, is an error there."""
    options = SyncOptions(
        overwrite=overwrite,
        only_adds=f"remote-tool job-pull {job.key} --to-all",
        step=f"files of job {job.key}",
        # A start that wants them tells of it.
        tells_room=False,
    )
    return await sync(context.pool, _config_of(context.config, job), servers, options, context.report)


def _config_of(config: Config, job: Job) -> Config:
    """Return a configuration in which the job's artifacts are the project."""
    local, remote = config.local, config.remote
    logs = local.logs / "from-job"
    return replace(
        config,
        local=LocalPaths(
            local.artifacts(job.id),
            # Of the job's artifacts these are not sent: our own folder among them.
            jobs_folder=OURS,
            logs_folder=str(logs),
            exclude=str(logs / "no-exclude"),
        ),
        remote=FromJobPaths(remote.project, remote.scripts_name, remote.jobs_name),
    )


async def _bring_home(context: Context, job: Job) -> None:
    """Bring home what is not here yet; where the job's server is away, what came before is used, and that is said."""
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
    """Bring home what the job wrote; return why its server could not be asked.

    Raises:
        JobError: A file that is wanted cannot come.
    """
    if job.server not in context.config.servers:
        return JobError(f"The server of job {job.key}, {job.server}, is not in the configuration", server=job.server)
    errors = await refresh(context, [job.server])
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
