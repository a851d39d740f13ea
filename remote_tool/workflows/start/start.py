"""job-run: send changed files, then start a job on each server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.artifacts import wanted_artifacts
from remote_tool.config.devices import command_environment, devices_of
from remote_tool.config.limits import check_request, check_retries
from remote_tool.errors import UsageError
from remote_tool.jobs.job import JobSpec, new_job_id
from remote_tool.launchers.job_request import JobRequest
from remote_tool.launchers.options import RunOptions
from remote_tool.protocol.limits import COMMAND, MOST_ANY_OF, SHELL, TERMINALS
from remote_tool.workflows.events import Notice
from remote_tool.workflows.selection import JobsAnswer, choose_servers, find_job
from remote_tool.workflows.slurm.scheduler import is_scheduled, refuse_options, refuse_scheduled
from remote_tool.workflows.start.free_gpus import ask_free_gpus, choose_server
from remote_tool.workflows.start.send import bring_files, complete, is_frozen, send_project
from remote_tool.workflows.start.start_specs import start_specs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.workflows.context import Context


@dataclass(frozen=True)
class StartRequest(JobRequest, RunOptions):
    """A command to start as one job on each of some servers; see :class:`JobRequest` for the other options.

    Attributes:
        terminal: ``command``: the command runs on a terminal, which :meth:`Workspace.attach` shows; ``shell``: the
            user's own shell does, and the command is its name in lists.
        retry_on: Run it again only after these exit codes and signals, such as 75 and SIGKILL; None: as configured;
            empty: any.
        job_id: Of the job, for one server: a job with this id starts once, whoever else requests it; empty: a new one.
    """

    terminal: str = field(default="", kw_only=True)
    retry_on: tuple[str, ...] | None = field(default=None, kw_only=True)
    job_id: str = field(default="", kw_only=True)

    def __post_init__(self, env: Mapping[str, str] | None) -> None:
        """Refuse an invalid request."""
        self._check_options(env, "job-run --cmd 'python train.py'", may_wait=True)
        if self.any_server and (not self.gpus or self.after):
            problem = "cannot be combined with --after" if self.gpus else "needs --gpus"
            raise UsageError(f"--any-server {problem}", hint="--any-server --gpus 1")
        if self.terminal not in TERMINALS:
            raise UsageError(f"terminal cannot be {self.terminal!r}", hint=f"{COMMAND}, {SHELL}, or empty for none")
        check_retries(self.retries, self.retry_on)
        if self.job_id and len(self.servers) != 1:
            raise UsageError("job_id is for a job on one server")
        if self.retries and self.terminal:
            raise UsageError("--retries and --tty cannot be combined", hint="Keep one of them")

    def check_on(self, servers: Sequence[str], config: Config) -> None:
        """Refuse values that exceed limits together with the configuration, before anything is sent."""
        wanted_artifacts(config.artifacts, self.artifacts)
        for server in servers:
            check_request(self.command, self.tags, self.environment_on(server, config))

    def retries_in(self, config: Config) -> dict[str, Any]:
        """Return the job's settings about retries."""
        retries = config.retries if self.retries is None else self.retries
        if not retries or self.terminal:
            return {}
        return {"retries": retries, "retry_on": config.retry_on if self.retry_on is None else self.retry_on}

    def environment_on(self, server: str, config: Config) -> dict[str, str]:
        """Return the variables of the job on a server, which itself chooses the GPUs of a job that waits for them."""
        if self.gpus:
            return {**config.variables_of(server), **self.environment}
        return command_environment(config.variables_of(server), self.environment, self.devices_on(server, config))

    def devices_on(self, server: str, config: Config) -> tuple[str, ...]:
        """Return the GPUs of the job on a server, or those from which to choose; empty: all."""
        return devices_of(config.servers[server].devices, self.devices, self.environment)


async def start_jobs(context: Context, requests: Sequence[StartRequest]) -> JobsAnswer:
    """Start every request as one job on each of its servers, except where the sync failed.

    Each server is synced once and gets one request per 256 jobs.
    """
    requests = [_find_earlier(context, request) for request in requests]
    chosen = await _choose_any(context, requests)
    requests = [request for request, _ in chosen]
    wanted = [(request, choose_servers(context.config, request.servers), others) for request, others in chosen]
    for request, servers, _ in wanted:
        request.check_on(servers, context.config)
        given = {"--devices": request.devices, "--priority": request.priority, "--backfill": request.backfill}
        refuse_options(context.config, servers, {**given, "--tty": request.terminal})
    receivers = list(dict.fromkeys(server for request, servers, _ in wanted if request.sync for server in servers))
    overwrite = any(request.overwrite for request in requests)
    waits = any(is_scheduled(context.config, server) for server in receivers)
    frozen = any(is_frozen(context.config, request, waits=waits) for request in requests)
    sent = await send_project(context, receivers, wanted=bool(receivers), overwrite=overwrite, frozen=frozen)
    for request, servers, _ in wanted:
        able = [server for server in servers if server not in sent.errors]
        errors = await bring_files(context, request.from_job, able, overwrite=request.overwrite)
        sent = replace(sent, errors={**sent.errors, **errors})
    specs = [
        complete(
            JobSpec(
                id=request.job_id or new_job_id(),
                server=server,
                command=request.command,
                environment=request.environment_on(server, context.config),
                tags=request.tags,
                artifacts=wanted_artifacts(context.config.artifacts, request.artifacts),
                gpus=request.devices_on(server, context.config) or None,
                terminal=request.terminal,
                any_of=others,
                **request.retries_in(context.config),
            ),
            context.config,
            request,
            sent if request.sync else replace(sent, git=None),
        )
        for request, servers, others in wanted
        for server in servers
        if server not in sent.errors
    ]
    answer = await start_specs(context, specs)
    return JobsAnswer(answer.jobs, {**sent.errors, **answer.errors}, warnings=(*sent.warnings, *answer.warnings))


async def _choose_any(context: Context, requests: Sequence[StartRequest]) -> list[tuple[StartRequest, tuple[str, ...]]]:
    """Return the requests with the server where each begins first, if it is for any, and where else it may run.

    Raises:
        JobError: No server has enough GPUs.
        SomeServersFailedError: None could be asked.
    """
    choices = [choose_servers(context.config, request.servers) for request in requests if request.any_server]
    servers = list(dict.fromkeys(server for names in choices for server in names))
    if not servers:
        return [(request, ()) for request in requests]
    refuse_scheduled(context.config, servers, "--any-server", "--server NAME, of others")
    asked = await ask_free_gpus(context, servers)
    if not asked.values:
        asked.raise_if_any_failed()
    for server, error in asked.errors.items():
        context.report(Notice(server, f"skipped: {error}"))
    known = asked.values
    chosen = []
    for request in requests:
        if request.any_server:
            names = choose_servers(context.config, request.servers)
            server = choose_server(context, {name: known[name] for name in names if name in known}, request.gpus)
            known[server] = known[server].after(request.gpus)
            others = tuple(names[:MOST_ANY_OF]) if may_be_moved(context.config, request) else ()
            chosen.append((replace(request, servers=(server,)), others))
        else:
            chosen.append((request, ()))
    return chosen


def may_be_moved(config: Config, request: StartRequest) -> bool:
    """Return whether the record of a job has all that another server needs to run the same."""
    on_no_disk = request.environment or request.on_end is not None
    of_one_server = request.devices or request.from_job or request.terminal
    return is_frozen(config, request) and not (on_no_disk or of_one_server)


def _find_earlier(context: Context, request: StartRequest) -> StartRequest:
    """Return a request with the ids of the jobs to wait for, on their server unless it names others.

    Raises:
        UsageError: There is no such job, or it is on another server.
    """
    if not request.after:
        return request
    known = context.registry.load()[0]
    earlier = list({job.id: job for job in (find_job(known, word) for word in request.after)}.values())
    servers = request.servers or (earlier[0].server,)
    for job in earlier:
        for server in servers:
            if job.server != server:
                raise UsageError(
                    f"Job {job.key} is on {job.server}, so a job on {server} cannot wait for it",
                    hint=f"--server {job.server}",
                )
    return replace(request, servers=servers, after=tuple(job.id for job in earlier))
