"""Plan a multi-node torchrun: one command per node, without contacting a server."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, UsageError
from remote_tool.launchers.nodes import count_processes, launch_environment, refuse_different, refuse_one_machine
from remote_tool.launchers.plan import TORCHRUN_GRACE, Launcher, LaunchPlan, NodePlan
from remote_tool.launchers.torchrun_line import read_torchrun_line
from remote_tool.protocol.job_folder import FLIGHT_RECORD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.launchers.plan import LaunchNames, NodeFacts, Rendezvous
    from remote_tool.launchers.request import LaunchRequest

# Collectives that a rank remembers: what torch itself chose as its default later.
_RECORDER_SIZE = 2000
_OLD_SIZE, _OLD_FILE = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
_NEW_SIZE, _NEW_FILE = "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"
_RENAMED_IN = (2, 9)


def check_nodes(facts: Sequence[NodeFacts]) -> None:
    """Refuse servers that cannot train together.

    Raises:
        JobError: Two are one machine, torch is missing on one, or torch, NCCL or Python differ between them.
    """
    refuse_one_machine(facts)
    for node in facts:
        if not node.torch:
            raise JobError(
                f"{node.server} does not have torch in its environment",
                hint=f"Add torch to requirements.txt, then remote-tool prepare --server {node.server}",
                server=node.server,
            )
    refuse_different(
        {
            "torch": {node.server: node.torch for node in facts},
            "NCCL": {node.server: node.nccl for node in facts if node.nccl},
            "Python": {node.server: _minor(node.python) for node in facts},
        }
    )


def plan_launch(
    request: LaunchRequest, facts: Sequence[NodeFacts], rendezvous: Rendezvous, names: LaunchNames
) -> LaunchPlan:
    """Return each node's command."""
    _refuse_twice([node.server for node in facts])
    processes = count_processes(request, facts)
    nodes = []
    offset = 0
    for rank, (node, job_id) in enumerate(zip(facts, names.job_ids, strict=True)):
        count = processes[node.server]
        options = _torchrun_options(request, rendezvous, names.launch_id, _Node(node.server, rank, len(facts)))
        folder = f"{names.jobs_folder}/{job_id}"
        logs = f'--log-dir "$REMOTE_TOOL_PROJECT"/{shlex.quote(f"{folder}/ranks")} --redirects 3'
        torchrun = f"python -m torch.distributed.run {options} --nproc-per-node {count} {logs}"
        nodes.append(
            NodePlan(
                server=node.server,
                job_id=job_id,
                node_rank=rank,
                processes=count,
                # torchrun's elastic rendezvous assigns ranks itself, again at each restart.
                rank_offset=None if request.max_restarts else offset,
                command=f"{torchrun} {request.command.strip()}",
                environment={
                    # Beside torchrun's own GROUP_RANK; its elastic rendezvous decides that itself.
                    **({} if request.max_restarts else {"NODE_RANK": str(rank)}),
                    **launch_environment(request, node, rendezvous.routes[node.server], names.launch_id),
                },
                defaults=_flight_recorder(node.torch, folder),
            )
        )
        offset += count
    return LaunchPlan(names.launch_id, rendezvous, tuple(nodes))


def _flight_recorder(torch: str, folder: str) -> str:
    """Return the lines that turn on NCCL's flight recorder, with its dumps in the job's folder.

    The shell sets only what the user has not set anywhere: in the configuration, on the server, or in an image.
    """
    size, file = _RECORDER_SIZE, f"$REMOTE_TOOL_PROJECT/{folder}/{FLIGHT_RECORD}"
    values = {_OLD_SIZE: str(size), _OLD_FILE: file}
    if _release(torch) >= _RENAMED_IN:
        # The older names still count there, but with a warning.
        values = {_NEW_SIZE: f"${{{_OLD_SIZE}-{size}}}", _NEW_FILE: f"${{{_OLD_FILE}-{file}}}"}
    values["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    return "".join(f'export {name}="${{{name}-{value}}}"\n' for name, value in values.items())


def _release(version: str) -> tuple[int, int]:
    """2.13.0+cpu -> (2, 13)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@dataclass(frozen=True)
class _Node:
    server: str
    rank: int
    nodes: int


def _torchrun_options(request: LaunchRequest, rendezvous: Rendezvous, launch_id: str, node: _Node) -> str:
    if not request.max_restarts:
        words = [
            *("--nnodes", str(node.nodes), "--node-rank", str(node.rank)),
            *("--master-addr", rendezvous.address, "--master-port", str(rendezvous.port)),
        ]
        return shlex.join(words)
    # Debian resolves a machine's own name to 127.0.1.1, and then no node would host the store: so name the host.
    is_host = "1" if node.rank == 0 else "0"
    words = [
        *("--nnodes", str(node.nodes), "--max-restarts", str(request.max_restarts)),
        *("--rdzv-backend", "c10d", "--rdzv-id", launch_id),
        *("--rdzv-endpoint", f"{_bracketed(rendezvous.address)}:{rendezvous.port}"),
        *("--rdzv-conf", f"is_host={is_host}", "--local-addr", rendezvous.routes[node.server].local_address),
    ]
    return shlex.join(words)


def _refuse_twice(servers: Sequence[str]) -> None:
    twice = [server for server, count in Counter(servers).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]} is listed twice; each server runs one torchrun")


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


LAUNCHER = Launcher(
    plan_launch,
    check_nodes,
    read_command=read_torchrun_line,
    needs_python=True,
    restarts_ranks=True,
    grace=TORCHRUN_GRACE,
)
