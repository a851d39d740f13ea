"""The door to Slurm: operations on jobs, answered as the agent answers them, on a server with ``slurm:`` by Slurm."""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from remote_tool.errors import UsageError
from remote_tool.workflows.agent_client import call_until_answered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Host
    from remote_tool.transport.pool import HostPool

_INSTEAD = {
    "--devices": "Slurm chooses the GPUs: --gpus N, or gres in slurm:",
    "--tty": "remote-tool shell --cmd 'srun --pty bash' opens a shell on a node",
    "--priority": "Slurm orders its queue itself: nice or qos in slurm:",
    "--backfill": "Slurm orders its queue itself",
    "--wait": "Slurm waits for GPUs itself",
}
_REFERENCE, _NODE = re.compile(r"[0-9]{1,12}(_[0-9]{1,9})?"), re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


async def ask_for_jobs(
    pool: HostPool,
    config: Config,
    server: str,
    operation: str,
    request: Mapping[str, Any],
    *,
    within: float | None = None,
) -> dict[str, Any]:
    """Have a server start, list or stop jobs: ``start``, ``status`` or ``stop``.

    Raises:
        JobError: As for :func:`~remote_tool.workflows.agent_client.call_until_answered`.
        ConnectError: As there.
    """
    if config.servers[server].slurm is None:
        return await call_until_answered(pool, config, server, operation, request, within=within)
    from remote_tool.workflows.slurm import cancel, look, submit  # noqa: PLC0415 - few servers have Slurm

    operations = {"start": submit.start, "status": look.status, "stop": cancel.stop}
    with pool.announcing(server, "still waiting for Slurm") if operation != "stop" else nullcontext():
        return await operations[operation](pool, config, server, request)


async def hosts_of_jobs(
    pool: HostPool, config: Config, server: str, ids: Sequence[str]
) -> list[tuple[Host, list[str]]]:
    """Return where the processes of jobs are: the server, or nodes to which Slurm gives access, and which jobs."""
    host = await pool.host(server)
    if not is_scheduled(config, server):
        return [(host, list(ids))]
    from remote_tool.workflows.slurm.look import held_entries  # noqa: PLC0415 - few servers have Slurm
    from remote_tool.workflows.slurm.nodes import NodeHost  # noqa: PLC0415

    request = {"ids": list(ids), "skip": [], "known": [], "ended": None}
    answer = await call_until_answered(pool, config, server, "status", request)
    nodes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in held_entries(answer):
        reference, place = str(entry["held"].get("reference")), (entry.get("started") or {}).get("place")
        node = str(place.get("hostname")) if isinstance(place, dict) else ""
        is_there = _REFERENCE.fullmatch(reference) and _NODE.fullmatch(node) and not entry.get("ended")
        nodes[(reference, node) if is_there else ("", "")].append(str(entry.get("id")))
    return [(NodeHost(host, *place) if place[0] else host, jobs) for place, jobs in nodes.items()]


def is_scheduled(config: Config, server: str) -> bool:
    """Return whether Slurm starts the jobs of a server."""
    return server in config.servers and config.servers[server].slurm is not None


def may_begin_again(config: Config, server: str, entry: Mapping[str, Any]) -> bool:
    """Return whether Slurm may begin a job again whose own record says that it has ended."""
    if not is_scheduled(config, server) or not entry.get("ended"):
        return False
    from remote_tool.workflows.slurm.states import is_ended_from_outside  # noqa: PLC0415 - few servers have Slurm

    return is_ended_from_outside(entry)


def refuse_options(config: Config, servers: Iterable[str], given: Mapping[str, object]) -> None:
    """Refuse options of a start that have no meaning where Slurm starts the jobs.

    Args:
        config: The configuration.
        servers: The servers of the start.
        given: Values by option; those that are not given are empty.

    Raises:
        UsageError: A server has ``slurm:``, and an option is given.
    """
    for option in [option for option, value in given.items() if value]:
        refuse_scheduled(config, servers, option, _INSTEAD[option])


def refuse_scheduled(config: Config, servers: Iterable[str], what: str, hint: str) -> None:
    """Refuse what cannot be done where Slurm starts the jobs.

    Raises:
        UsageError: A server has ``slurm:``.
    """
    for server in servers:
        if is_scheduled(config, server):
            raise UsageError(f"{what} cannot be used on {server}, where Slurm starts the jobs", hint=hint)
