"""Send files before jobs start: the project, and artifacts of an earlier job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from remote_tool import workflows
from remote_tool.config.limits import on_empty_of, on_end_of
from remote_tool.workflows.git_state import GitState, while_asking_git, with_git
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import JobSpec
    from remote_tool.launchers.job_request import JobRequest
    from remote_tool.workflows.context import Context


@dataclass(frozen=True)
class Sent:
    """The result of a sync before a start.

    Attributes:
        snapshots: The project's state on each server.
        errors: Of the servers that failed.
        warnings: Server and message.
        git: The commit that was sent; None without a sync, or if unknown.
    """

    snapshots: Mapping[str, str]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    warnings: tuple[tuple[str, str], ...] = ()
    git: GitState | None = None


async def send_project(context: Context, servers: Sequence[str], *, wanted: bool, overwrite: bool = False) -> Sent:
    """Send changed files."""
    if not wanted:
        return Sent(dict.fromkeys(servers, ""))
    options = SyncOptions(overwrite=overwrite, tells_room=False)
    sending = sync(context.pool, context.config, servers, options, context.report)
    local = context.config.local
    beside = (local.jobs_folder, local.logs_folder, *local.artifacts_in_project)
    results, git = await while_asking_git(local.root, sending, beside)
    return Sent(
        {server: result.snapshot for server, result in results.values.items()},
        results.errors,
        tuple((server, text) for server, result in results.values.items() for text in result.warnings),
        git,
    )


def complete(spec: JobSpec, config: Config, request: JobRequest, sent: Sent, *, may_run_on_end: bool = True) -> JobSpec:
    """Return a job with the options that are the same for every job of a request, and with what its server was sent.

    The on_end command runs only for the first node of a launch, and never unless ``may_run_on_end``.
    """
    runs_on_end = may_run_on_end and not spec.node_rank
    spec = replace(
        spec,
        snapshot=sent.snapshots.get(spec.server, ""),
        workdir=config.workdir_for(request.workdir),
        nice=request.nice,
        gpu_count=request.gpus or None,
        priority=request.priority or None,
        after=request.after,
        after_any=request.after_any,
        backfill=request.backfill,
        name=request.name,
        on_end=on_end_of(config, request.on_end) if runs_on_end else None,
        on_empty=on_empty_of(config),
        max_duration=_limit(request.max_duration, config.max_duration),
        stop_if_idle=_limit(request.stop_if_idle, config.stop_if_idle),
    )
    return with_git(spec, sent.git)


def _limit(asked_for: float | str | None, configured: float | None) -> float | None:
    """Return the seconds of a limit; None for none."""
    return (configured if asked_for is None else float(asked_for)) or None


async def bring_files(
    context: Context, from_job: str, servers: Sequence[str], *, overwrite: bool
) -> Mapping[str, RemoteToolError]:
    """Bring the artifacts of an earlier job, if one is named; return the servers that failed."""
    if not from_job or not servers:
        return {}
    # Imported only if needed.
    return (await workflows.sync.from_job.bring_from_job(context, from_job, servers, overwrite=overwrite)).errors
