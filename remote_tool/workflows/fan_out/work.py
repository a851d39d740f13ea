"""The work of a fan-out after the sync: slots, and the job of each shard."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.artifacts import wanted_artifacts
from remote_tool.config.devices import command_environment, visible_devices
from remote_tool.errors import JobError, SomeServersFailedError
from remote_tool.jobs.job import Job, JobSpec, new_job_id
from remote_tool.launchers.fan_out import (
    MOST_SLOTS,
    FanOutPlan,
    FanOutRequest,
    ServerSlots,
    fan_out_tags,
)
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import call
from remote_tool.workflows.fan_out.gather import gathering_folder
from remote_tool.workflows.launch.launch import find_script
from remote_tool.workflows.launch.node_facts import chosen_devices
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.start.free_gpus import ask_server
from remote_tool.workflows.start.send import Sent, complete, freeze, is_frozen, send_project

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.errors import RemoteToolError
    from remote_tool.launchers.job_request import JobRequest
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.fan_out.work_queue import Assignment

GPU_NAME = re.compile(r"[A-Za-z0-9/:._-]{1,100}")


@dataclass(frozen=True)
class Ready(Sent):
    """The servers' facts after the sync."""

    slots: Sequence[ServerSlots] = field(kw_only=True)


@dataclass(frozen=True)
class Work:
    """The work and the slots that do it."""

    config: Config
    request: FanOutRequest
    plan: FanOutPlan
    ready: Ready

    def make_spec(self, assignment: Assignment) -> JobSpec:
        """Return the job of a shard on a slot; the user's variables win."""
        shard, slot = assignment.shard, assignment.slot
        given = {**shard.environment, **self.request.environment}
        spec = JobSpec(
            id=new_job_id(),
            server=slot.server,
            command=shard.command(self.plan.command),
            environment=command_environment(self.config.variables_of(slot.server), given, slot.gpus),
            tags=(*self.request.tags, *fan_out_tags(self.plan.launch_id, shard, slot)),
            launch_id=self.plan.launch_id,
            node_rank=shard.number,
            artifacts=wanted_artifacts(self.config.artifacts, shard.globs(self.request.artifacts)),
            gpus=slot.gpus or (slot.wanted and self.config.servers[slot.server].devices) or None,
        )
        return complete(spec, self.config, self.request, self.ready, may_run_on_end=False)


async def make_ready(context: Context, request: FanOutRequest, listed: Mapping[str, int | None]) -> Ready:
    servers = choose_servers(context.config, request.servers)
    find_command_script(context, request)
    gathering_folder(context.config, request.gather)
    frozen = is_frozen(context.config, request)
    sent = await send_project(context, servers, wanted=request.sync, overwrite=request.overwrite, frozen=frozen)
    able = [server for server in servers if server not in sent.errors]
    # Shards are handed out later, while other syncs may come.
    not_copied = await freeze(context, sent, able) if frozen else {}
    slots, errors = await ask_slots(context, request, listed, [server for server in able if server not in not_copied])
    errors = {**sent.errors, **not_copied, **errors}
    if not slots:
        raise SomeServersFailedError(errors, [])
    return Ready(sent.snapshots, errors, sent.warnings, sent.git, slots=slots)


def find_command_script(context: Context, request: JobRequest) -> None:
    first = request.command.split(maxsplit=1)[0]
    if first.endswith(".py"):
        find_script(context, first, request.workdir)


async def ask_slots(
    context: Context, request: JobRequest, listed: Mapping[str, int | None], servers: Sequence[str]
) -> tuple[list[ServerSlots], dict[str, RemoteToolError]]:
    async def ask(server: str) -> ServerSlots:
        host = await context.pool.host(server)
        entry = context.config.entry_of(server)
        # Behind a launch command there may be other GPUs, and only a launch queries there.
        question = {"launch": entry is not None, "entry": entry, "needs_python": False}
        answer = await call(host, context.config, "facts", question)
        found = _read_slots(server, answer)
        if request.gpus:
            free = await ask_server(context, server)
            if problem := free.too_few(request.gpus):
                raise JobError(f"{server}: {problem}", server=server)
            return replace(found, gpus=tuple(map(str, range(free.total))), listed=listed.get(server))
        devices = chosen_devices(context.config.servers[server], request, answer)
        variables = command_environment(context.config.variables_of(server), request.environment, devices)
        visible = visible_devices(variables)
        gpus = found.gpus if visible is None else tuple(visible)
        return replace(found, gpus=gpus, listed=listed.get(server))

    results = await on_every(servers, ask)
    return list(results.values.values()), results.errors


def _read_slots(server: str, answer: Mapping[str, Any]) -> ServerSlots:
    names = answer.get("gpu_names")
    if not isinstance(names, list) or len(names) > MOST_SLOTS:
        raise JobError(f"{server}: did not say which GPUs it has", server=server)
    for name in names:
        if not isinstance(name, str) or not GPU_NAME.fullmatch(name):
            raise JobError(f"{server}: {name!r:.60} is not the name of a GPU", server=server)
    return ServerSlots(server, tuple(names), place=json.dumps([answer.get("identity"), answer.get("project")]))


def jobs_of(context: Context, work: Work, servers: Collection[str]) -> list[Job]:
    jobs = context.registry.load()[0]
    return [job for job in jobs if job.launch_id == work.plan.launch_id and job.server in servers]
