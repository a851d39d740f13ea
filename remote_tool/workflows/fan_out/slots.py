"""Ask servers which GPUs the jobs of a fan-out or a sweep may use there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.devices import command_environment, visible_devices
from remote_tool.errors import JobError
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import call
from remote_tool.workflows.fan_out.plan import ServerSlots
from remote_tool.workflows.fan_out.request import MOST_SLOTS
from remote_tool.workflows.launch.launch import find_script
from remote_tool.workflows.launch.node_facts import chosen_devices
from remote_tool.workflows.slurm.scheduler import is_scheduled, refuse_options
from remote_tool.workflows.start.free_gpus import ask_server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.launchers.job_request import JobRequest
    from remote_tool.workflows.context import Context

GPU_NAME = re.compile(r"[A-Za-z0-9/:._-]{1,100}")


def find_command_script(context: Context, request: JobRequest) -> None:
    first = request.command.split(maxsplit=1)[0]
    if first.endswith(".py"):
        find_script(context, first, request.workdir)


async def ask_slots(
    context: Context,
    request: JobRequest,
    listed: Mapping[str, int | None],
    servers: Sequence[str],
    *,
    in_slurm: int = MOST_SLOTS,
) -> tuple[list[ServerSlots], dict[str, RemoteToolError]]:
    """Ask servers for the GPUs of their slots; where Slurm starts jobs, there are as many slots as it may get jobs."""

    async def ask(server: str) -> ServerSlots:
        if is_scheduled(context.config, server):
            given = {"--devices": request.devices, "--priority": request.priority, "--backfill": request.backfill}
            refuse_options(context.config, [server], given)
            return ServerSlots(server, listed=in_slurm, place=server, is_scheduled=True)
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
