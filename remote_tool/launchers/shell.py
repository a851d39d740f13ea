"""Plan a launch of a command that starts its own processes: it runs once per node, with the rendezvous in variables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.launchers.command import with_interpreter
from remote_tool.launchers.nodes import launch_environment, refuse_one_machine
from remote_tool.launchers.plan import TORCHRUN_GRACE, Launcher, LaunchPlan, NodePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.launchers.plan import LaunchNames, NodeFacts, Rendezvous
    from remote_tool.launchers.request import LaunchRequest


def plan_shell(
    request: LaunchRequest, facts: Sequence[NodeFacts], rendezvous: Rendezvous, names: LaunchNames
) -> LaunchPlan:
    """Return each node's command.

    The number of ranks is the program's own decision, so ``WORLD_SIZE`` is not set: some programs take it for the
    number of nodes, others for that of the ranks.
    """
    # It is for torchrun, which restarts workers.
    once = replace(request, max_restarts=0)
    nodes = tuple(
        NodePlan(
            server=node.server,
            job_id=job_id,
            node_rank=rank,
            processes=None,
            rank_offset=None,
            command=with_interpreter(request.command),
            environment={
                "MASTER_ADDR": rendezvous.address,
                "MASTER_PORT": str(rendezvous.port),
                "NODE_RANK": str(rank),
                "NNODES": str(len(facts)),
                **launch_environment(once, node, rendezvous.routes[node.server], names.launch_id),
            },
        )
        for rank, (node, job_id) in enumerate(zip(facts, names.job_ids, strict=True))
    )
    return LaunchPlan(names.launch_id, rendezvous, nodes)


LAUNCHER = Launcher(plan_shell, refuse_one_machine, grace=TORCHRUN_GRACE)
