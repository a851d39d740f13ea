"""A launch inside one allocation of Slurm: which nodes it gets, and their addresses, are known only when it begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.config.slurm import MOST_NODES
from remote_tool.errors import UsageError
from remote_tool.launchers.plan import Rendezvous, Route
from remote_tool.workflows.slurm.step_program import ADDRESS, INTERFACE, OWN, PORT, chosen_port

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.config.model import Config
    from remote_tool.launchers.plan import NodeFacts
    from remote_tool.launchers.request import LaunchRequest

_SEPARATOR = "/"


def login_node(config: Config, servers: Sequence[str]) -> str:
    """Return the server whose Slurm starts a launch; empty if its nodes are the servers themselves.

    Raises:
        UsageError: The launch has other servers, too.
    """
    with_slurm = [server for server in servers if config.servers[server].slurm is not None]
    if with_slurm and len(set(servers)) > 1:
        raise UsageError(
            f"A launch runs inside one Slurm cluster, so {with_slurm[0]} takes part alone",
            hint=f"--server {with_slurm[0]}",
        )
    return with_slurm[0] if with_slurm else ""


def node_facts(config: Config, request: LaunchRequest, login: NodeFacts) -> list[NodeFacts]:
    """Return the facts of the nodes: the environment of the login node, and what Slurm is asked for.

    Raises:
        UsageError: They are more than fit into one request.
    """
    slurm = config.servers[login.server].slurm
    assert slurm is not None
    count = request.nnodes or slurm.nodes
    if count > MOST_NODES:
        raise UsageError(f"A launch in Slurm can have at most {MOST_NODES} nodes, found {count}", hint="--nnodes N")
    return [
        replace(
            login,
            server=f"{login.server}{_SEPARATOR}{rank}",
            place=f"node {rank}",
            gpus=request.gpus or slurm.gpus,
            cpus=slurm.cpus,
            addresses=(),
            devices=(),
        )
        for rank in range(count)
    ]


def rendezvous(facts: Sequence[NodeFacts], port: int | None) -> Rendezvous:
    """Return a rendezvous of names, in whose places the nodes put the address that they all have reached.

    Args:
        facts: The nodes.
        port: The port that the user chose on the first one; None: a free one.
    """
    routes = {node.server: Route(OWN, INTERFACE) for node in facts}
    return Rendezvous(ADDRESS, PORT if port is None else chosen_port(port), routes, watch_port=PORT)


def server_of(node: str) -> str:
    """Return the server of a node's name."""
    return node.partition(_SEPARATOR)[0]
