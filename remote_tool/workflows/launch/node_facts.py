"""Validated facts of servers before a launch or a fan-out: Python, torch, GPUs and addresses."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.devices import devices_of, refuse_missing
from remote_tool.errors import JobError
from remote_tool.launchers.plan import Launcher, NodeFacts
from remote_tool.transport.pool import Results, on_every
from remote_tool.workflows.agent_client import call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.servers import Server
    from remote_tool.launchers.job_request import JobRequest
    from remote_tool.launchers.request import LaunchRequest
    from remote_tool.workflows.context import Context

MOST_GPUS = 1024
MOST_CPUS = 65536


async def ask_facts(
    context: Context, request: LaunchRequest, servers: Sequence[str], launcher: Launcher
) -> Results[NodeFacts]:
    """Query the facts of every server that a launcher needs."""

    async def ask(server: str) -> NodeFacts:
        host = await context.pool.host(server)
        config = context.config
        question = {
            "launch": True,
            "entry": config.entry_of(server),
            "setup": config.setup_of(server),
            "environment": {**config.variables_of(server), **request.environment},
            "needs_python": launcher.needs_python,
            "package": launcher.package,
        }
        answer = await call(host, config, "facts", question)
        return replace(
            read_facts(server, answer),
            devices=chosen_devices(config.servers[server], request, answer),
            variables=config.variables_of(server),
            listed=config.listed.get(server),
        )

    return await on_every(servers, ask)


def read_facts(server: str, answer: Mapping[str, Any]) -> NodeFacts:
    """Return a server's validated facts.

    Raises:
        JobError: They are invalid.
    """
    try:
        return NodeFacts(
            server=server,
            python=str(answer["python"]),
            torch=str(answer.get("torch") or ""),
            nccl=str(answer.get("nccl") or ""),
            ray=str(answer.get("ray") or ""),
            gpus=read_count(answer["gpus"], MOST_GPUS),
            cpus=read_count(answer.get("cpus", 1), MOST_CPUS, 1),
            addresses=_addresses(answer),
            place=json.dumps([answer.get("identity"), answer.get("project")]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: cannot read its facts ({error!r})", server=server) from error


def read_addresses(server: str, answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the addresses at which others may reach a server, the likeliest first.

    Raises:
        JobError: They are invalid.
    """
    try:
        return _addresses(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: cannot read its addresses ({error!r})", server=server) from error


def _addresses(answer: Mapping[str, Any]) -> tuple[str, ...]:
    seen = _address(answer["ssh_server_address"]) if answer.get("ssh_server_address") else ""
    return _likeliest_first(seen, [_address(each["address"]) for each in answer["addresses"]])


def chosen_devices(server: Server, request: JobRequest, answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the GPUs that the jobs of a request use on a server.

    Raises:
        JobError: The server lacks them.
    """
    devices = devices_of(server.devices, request.devices, request.environment)
    gpus, uuids = _read_devices(server.name, answer)
    # In a container, AMD GPUs are not counted.
    if gpus or not server.is_entered:
        refuse_missing(server.name, devices, gpus, uuids)
    return devices


def _read_devices(server: str, answer: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return the number of a server's GPUs, and their known UUIDs."""
    try:
        return read_count(answer["devices"], MOST_GPUS), [str(uuid) for uuid in answer["uuids"]]
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: cannot read its GPUs ({error!r})", server=server) from error


def _address(value: object) -> str:
    """Return a validated address: it becomes an argument on the other servers."""
    ipaddress.ip_address(str(value))
    return str(value)


def read_count(value: object, most: int, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is not a number from {least} to {most}")
    return value


def _likeliest_first(seen: str, addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the address of the SSH connection, then the others; loopback last, as it may still work."""
    others = sorted(addresses, key=lambda address: address.startswith("127.") or address == "::1")
    return tuple(dict.fromkeys(address for address in (seen, *others) if address))
