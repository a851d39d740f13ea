"""Plan a Ray cluster: one command per node, without contacting a server.

Each node runs the program of :mod:`remote_tool.launchers.ray_node`. The supervisors watch over the nodes as over those
of every launch, but the cluster goes on when it loses a worker.
"""

from __future__ import annotations

import inspect
import re
import secrets
import shlex
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, UsageError
from remote_tool.launchers import ray_node
from remote_tool.launchers.command import with_interpreter
from remote_tool.launchers.nodes import launch_environment, refuse_different, refuse_one_machine
from remote_tool.launchers.plan import TORCHRUN_GRACE, Launcher, LaunchPlan, NodePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.launchers.plan import LaunchNames, NodeFacts, Rendezvous
    from remote_tool.launchers.request import LaunchRequest

# The first with token authentication; before, whoever reaches a node can run code there.
_OLDEST = (2, 52)
_WORKER_PORTS = range(10002, 20000)
_NAME_LENGTH = 16


def check_nodes(facts: Sequence[NodeFacts]) -> None:
    """Refuse servers that cannot form a cluster.

    Raises:
        JobError: Two are one machine, Ray is missing or too old on one, or Ray or Python differ between them.
    """
    refuse_one_machine(facts)
    lacking = [node.server for node in facts if not node.ray]
    if lacking:
        servers = " ".join(f"--server {server}" for server in lacking)
        have, their = ("does not have", "its") if len(lacking) == 1 else ("do not have", "their")
        raise JobError(
            f"{', '.join(lacking)} {have} ray in {their} environment",
            hint=f"Add ray[default] to requirements.txt, then remote-tool prepare {servers}",
            server=lacking[0],
        )
    for node in facts:
        if _release(node.ray) < _OLDEST:
            raise JobError(
                f"{node.server} has Ray {node.ray}, which lets everybody who reaches its ports run programs",
                hint=f"Put ray[default]>={_OLDEST[0]}.{_OLDEST[1]} into requirements.txt, then remote-tool prepare",
                server=node.server,
            )
    refuse_different(
        {
            "Ray": {node.server: node.ray for node in facts},
            "Python": {node.server: node.python for node in facts},
        }
    )


def plan_ray(
    request: LaunchRequest, facts: Sequence[NodeFacts], rendezvous: Rendezvous, names: LaunchNames
) -> LaunchPlan:
    """Return each node's command.

    Raises:
        UsageError: The chosen port is one of Ray's workers.
    """
    if request.master_port in _WORKER_PORTS:
        raise UsageError(
            f"--master-port {request.master_port} is in the range of Ray's workers,"
            f" {_WORKER_PORTS.start} to {_WORKER_PORTS.stop - 1}"
        )
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    source = {ray_node.SOURCE: inspect.getsource(ray_node)}
    nodes = tuple(
        NodePlan(
            server=node.server,
            job_id=job_id,
            node_rank=rank,
            processes=None,
            rank_offset=None,
            command=_node_command(request, rendezvous, names, rank, node.server),
            environment={
                **source,
                **launch_environment(request, node, rendezvous.routes[node.server], names.launch_id),
                **secret,
            },
        )
        for rank, (node, job_id) in enumerate(zip(facts, names.job_ids, strict=True))
    )
    return LaunchPlan(names.launch_id, rendezvous, nodes)


def _node_command(request: LaunchRequest, rendezvous: Rendezvous, names: LaunchNames, rank: int, server: str) -> str:
    words = [
        *("--rank", str(rank), "--nodes", str(len(names.job_ids))),
        *("--master-addr", rendezvous.address, "--master-port", str(rendezvous.port)),
        *("--own-address", rendezvous.routes[server].local_address),
        *("--folder", f"/tmp/{ray_node.NAME}{names.launch_id[-_NAME_LENGTH:]}"),  # noqa: S108 - the node makes it its own
    ]
    program = with_interpreter(request.command)
    if rank and request.restart_workers:
        words.append("--restart")
    if not rank and program:
        words += ["--shell-command", program]
    what = f"worker {rank}" if rank else " ".join(program.split()) or "head"
    load = f'import os; exec(os.environ.pop("{ray_node.SOURCE}"))'
    return f"# ray {what}\npython -c {shlex.quote(load)} {shlex.join(words)}"


def _release(version: str) -> tuple[int, int]:
    """2.52.1 -> (2, 52)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


LAUNCHER = Launcher(
    plan_ray, check_nodes, needs_python=True, grace=TORCHRUN_GRACE, package="ray", goes_on_without_workers=True
)
