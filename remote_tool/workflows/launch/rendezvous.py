"""Find the rendezvous address of a launch: every node connects to the first one before anything is started."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.launchers.plan import Rendezvous, Route
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import call, converse
from remote_tool.workflows.launch.node_facts import read_count

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from remote_tool.launchers.plan import NodeFacts
    from remote_tool.launchers.request import LaunchRequest
    from remote_tool.protocol.framing import Frame
    from remote_tool.workflows.context import Context

LOOPBACK = "127.0.0.1"
# Timeout for reaching the first node; it also detects firewalls that drop packets.
CONNECT_SECONDS = 5.0


async def find_rendezvous(context: Context, request: LaunchRequest, facts: Sequence[NodeFacts]) -> Rendezvous:
    first = facts[0]
    configured = context.config.servers[first.server].address
    candidates = (configured,) if configured else first.addresses
    if len(facts) == 1 and not configured:
        candidates = (LOOPBACK,)
    secret = secrets.token_hex(16)
    async with _listening(context, first.server, request.master_port or 0, secret) as (
        port,
        watch_port,
    ):
        ports = [port, watch_port]
        probe = {"candidates": list(candidates), "ports": ports, "secret": secret, "timeout": CONNECT_SECONDS}
        answers = await _connect_from_all(context, facts, probe)
    address = _reached_by_all(candidates, answers, port, first.server)
    routes = {server: answer[address] for server, answer in answers.items()}
    return Rendezvous(address, port, routes, watch_port)


@asynccontextmanager
async def _listening(context: Context, server: str, port: int, secret: str) -> AsyncIterator[tuple[int, int]]:
    """Have the first server listen on the launch's two ports; yield them."""
    host = await context.pool.host(server)
    request = {"port": port, "secret": secret}
    # The ports are free again afterwards: torchrun and the supervisor listen there next.
    async with converse(host, context.config, "listen", request, wait_for_end=True) as frames:
        yield await _first_ports(server, frames)


async def _first_ports(server: str, frames: AsyncIterator[Frame]) -> tuple[int, int]:
    try:
        async with asyncio.timeout(CONNECT_SECONDS * 4):
            async for frame in frames:
                return read_count(frame.header.get("port"), 65535, 1), read_count(
                    frame.header.get("watch_port"), 65535, 1
                )
    except (TimeoutError, ValueError) as error:
        raise JobError(f"{server}: no free port for the rendezvous ({error})", server=server) from error
    raise JobError(f"{server}: no free port for the rendezvous", server=server)


async def _connect_from_all(
    context: Context, facts: Sequence[NodeFacts], probe: Mapping[str, Any]
) -> dict[str, dict[str, Route]]:
    async def connect(server: str) -> dict[str, Route]:
        host = await context.pool.host(server)
        return _read_routes(server, await call(host, context.config, "connect", probe, within=CONNECT_SECONDS * 4))

    results = await on_every([node.server for node in facts], connect)
    results.raise_if_any_failed()
    return {node.server: results.values[node.server] for node in facts}


def _read_routes(server: str, answer: Mapping[str, Any]) -> dict[str, Route]:
    try:
        return {
            str(each["address"]): Route(str(each.get("local_address") or ""), str(each.get("interface") or ""))
            for each in answer.get("results", [])
            if each.get("ok") is True
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise JobError(f"{server}: cannot read which addresses it reaches ({error!r})", server=server) from error


def _reached_by_all(
    candidates: Sequence[str], answers: Mapping[str, Mapping[str, Route]], port: int, first: str
) -> str:
    """Return the first candidate that every node reached.

    Raises:
        JobError: There is none; the message names the servers that reach no address.
    """
    for address in candidates:
        if all(address in answer for answer in answers.values()):
            return address
    lost = [server for server, answer in answers.items() if not answer] or list(answers)
    tried = ", ".join(f"{address}:{port}" for address in candidates)
    raise JobError(
        f"{', '.join(lost)} cannot reach {first} at {tried}",
        hint=f"Set servers.{first}.address in configs.yaml to an address that the others can reach, or open the port",
        server=lost[0],
    )
