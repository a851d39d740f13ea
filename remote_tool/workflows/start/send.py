"""Send files before jobs start: the project, and artifacts of an earlier job."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.limits import on_empty_of, on_end_of
from remote_tool.config.model import Snapshots
from remote_tool.launchers.job_request import JobRequest
from remote_tool.protocol.job_fields import REQUEST_FIELDS
from remote_tool.protocol.limits import NAMES_OF_VARIABLES, NEW_COPY
from remote_tool.protocol.marks import DATA_PREFIX, RESERVED_NAMES
from remote_tool.transport.pool import on_every
from remote_tool.transport.sync import last_sync
from remote_tool.workflows.agent_client import call_until_answered
from remote_tool.workflows.git_state import GitState, read_changes, while_asking_git, with_git
from remote_tool.workflows.slurm.scheduler import is_scheduled
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import JobSpec
    from remote_tool.paths import LocalPaths
    from remote_tool.workflows.context import Context

# Settings of a job that its request has in another form, or that are added to.
_MADE_OTHERWISE = {"command", "tags", "gpus", "artifacts", "workdir"}
_ZERO_IS_NONE = {"gpu_count", "priority", "max_duration", "stop_if_idle"}


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


async def send_project(
    context: Context, servers: Sequence[str], *, wanted: bool, overwrite: bool = False, frozen: bool = False
) -> Sent:
    """Send changed files; before jobs that run in copies, find out what is not committed."""
    if not wanted:
        return Sent(dict.fromkeys(servers, ""))
    options = SyncOptions(overwrite=overwrite)
    sending = sync(context.pool, context.config, servers, options, context.report)
    local = context.config.local
    results, git = await while_asking_git(local.root, sending, never_sent(local))
    if frozen and git is not None and git.dirty is not False and results.values:
        known = last_sync.recall(local.known_copy(next(iter(results.values))))

        git = git if known is None else replace(git, changes=await read_changes(local.root, known.sent_among))
    return Sent(
        {server: result.snapshot for server, result in results.values.items()},
        results.errors,
        tuple((server, text) for server, result in results.values.items() for text in result.warnings),
        git,
    )


async def freeze(context: Context, sent: Sent, servers: Sequence[str]) -> Mapping[str, RemoteToolError]:
    """Have servers copy the sent files before a wait, in which others may sync; return those that fail."""

    async def copy_on(server: str) -> None:
        question = {"snapshot": sent.snapshots[server]}
        await call_until_answered(context.pool, context.config, server, "freeze", question)

    return (await on_every([server for server in servers if sent.snapshots.get(server)], copy_on)).errors


def never_sent(local: LocalPaths) -> tuple[str, ...]:
    """Return the folders of the project that do not belong to its code."""
    return (local.jobs_folder, local.logs_folder, *local.artifacts_in_project)


def is_frozen(config: Config, request: JobRequest, *, waits: bool = False) -> bool:
    """Return whether the jobs of a request, which may wait anyway, run in a copy of the project."""
    if request.frozen is not None:
        return request.frozen
    is_queued = waits or bool(request.gpus or request.after)
    return config.snapshots is Snapshots.ALWAYS or (is_queued and config.snapshots is Snapshots.QUEUED)


def complete(spec: JobSpec, config: Config, request: JobRequest, sent: Sent, *, may_run_on_end: bool = True) -> JobSpec:
    """Return a job with the options that are the same for every job of a request, and with what its server was sent.

    The on_end command runs only for the first node of a launch, and never unless ``may_run_on_end``.
    """
    runs_on_end = may_run_on_end and not spec.node_rank
    spec = replace(
        spec,
        snapshot=sent.snapshots.get(spec.server, ""),
        copy=_copy_for(spec.server, config, request),
        workdir=config.workdir_for(request.workdir),
        variables=names_for_record(request.environment),
        configured_variables=names_for_record(config.variables_of(spec.server)),
        on_end=on_end_of(config, request.on_end) if runs_on_end else None,
        on_empty=on_empty_of(config, spec.server),
        **_settings(config, request),
    )
    code = request.code
    kept = GitState(code.git_commit, code.git_branch, code.git_dirty) if code and code.git_commit else None
    return with_git(spec, kept or sent.git)


def option_names(kind: type) -> dict[str, str]:
    """Return the settings of a job that a kind of request has as they are: the name of each, and of its option."""
    options = {each.name for each in fields(kind)}
    names = {each.name: each.option or each.name for each in REQUEST_FIELDS if each.name not in _MADE_OTHERWISE}
    return {name: option for name, option in names.items() if option in options}


def _settings(config: Config, request: JobRequest) -> dict[str, Any]:
    """Return settings as requested, or else as configured."""
    settings = {}
    for name, option in option_names(JobRequest).items():
        requested = getattr(request, option)
        settings[name] = getattr(config, option, None) if requested is None else requested
    return {name: value or None if name in _ZERO_IS_NONE else value for name, value in settings.items()}


def _copy_for(server: str, config: Config, request: JobRequest) -> str:
    if request.code is not None:
        return request.code.copies[server]
    return NEW_COPY if is_frozen(config, request, waits=is_scheduled(config, server)) else ""


def names_for_record(variables: Iterable[str]) -> tuple[str, ...] | None:
    """Return names of variables as a record has them, without those that we set; None when they are too many."""
    names = tuple(sorted(name for name in variables if name not in RESERVED_NAMES and not name.startswith(DATA_PREFIX)))
    most, longest = NAMES_OF_VARIABLES
    return names if len(names) <= most and all(len(name) <= longest for name in names) else None


async def bring_files(
    context: Context, from_job: str, servers: Sequence[str], *, overwrite: bool
) -> Mapping[str, RemoteToolError]:
    """Bring the artifacts of an earlier job, if one is named; return the servers that failed."""
    if not from_job or not servers:
        return {}
    from remote_tool.workflows.sync.from_job import bring_from_job  # noqa: PLC0415 - seldom needed

    return (await bring_from_job(context, from_job, servers, overwrite=overwrite)).errors
