"""Common to all launchers: processes per node, variables, and refusing one machine under two names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from remote_tool.config.devices import command_environment, joined, visible_devices
from remote_tool.errors import JobError, UsageError
from remote_tool.readable import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.launchers.plan import NodeFacts, Route
    from remote_tool.launchers.request import LaunchRequest

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def count_processes(request: LaunchRequest, facts: Sequence[NodeFacts]) -> dict[str, int]:
    """Return the number of processes on each server.

    Raises:
        UsageError: They exceed the chosen GPUs, or differ although torchrun's elastic rendezvous
            requires the same number.
    """
    counts = {node.server: _processes_on(node, request) for node in facts}
    if request.max_restarts and len(set(counts.values())) > 1:
        listed = ", ".join(f"{server} {count}" for server, count in counts.items())
        raise UsageError(
            f"With --max-restarts every server needs the same number of processes, found {listed}",
            hint=f"--nproc-per-node {min(counts.values())}",
        )
    return counts


def _processes_on(node: NodeFacts, request: LaunchRequest) -> int:
    if request.processes == "cpu":
        return max(1, node.cpus)
    if request.processes not in {"auto", "gpu"}:
        count = int(request.processes or node.listed or 1)
        most, which = (request.gpus, "") if request.gpus else (len(node.devices), f": {joined(node.devices)}")
        if most and count > most:
            raise UsageError(
                f"{node.server} cannot run {count} processes on {counted(most, 'GPU')}{which}",
                hint="--nproc-per-node auto starts one process per GPU",
            )
        return count
    if request.gpus:
        return request.gpus
    visible = visible_devices(_chosen_variables(node, request))
    gpus = node.gpus if visible is None else len(visible)
    if request.processes == "gpu" and not gpus:
        raise UsageError(
            f"{node.server} has no GPU for --nproc-per-node gpu", hint="--nproc-per-node auto starts one process there"
        )
    return max(1, gpus)


def launch_environment(request: LaunchRequest, node: NodeFacts, route: Route, launch_id: str) -> dict[str, str]:
    """Return the variables of every rank of a node: the user's override the detected interface."""
    found = {"RUN_UUID": launch_id}
    if request.max_restarts:
        # Restarted ranks find the keys of the failed attempt in a store that they share with torchrun's agents:
        # https://github.com/pytorch/pytorch/issues/135712
        found["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if route.interface:
        found |= dict.fromkeys(INTERFACE_VARIABLES, route.interface)
    return {**found, **_chosen_variables(node, request)}


def _chosen_variables(node: NodeFacts, request: LaunchRequest) -> dict[str, str]:
    # With a number of GPUs, its server chooses among the devices.
    return command_environment(node.variables, request.environment, () if request.gpus else node.devices)


def refuse_different(versions: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse servers that have different versions of something, such as ``{"torch": {"a": "2.13.0", "b": "2.12.1"}}``.

    Raises:
        JobError: The first difference, with all servers.
    """
    for what, by_server in versions.items():
        if len(set(by_server.values())) > 1:
            listed = ", ".join(f"{server} {version}" for server, version in by_server.items())
            raise JobError(f"{what} differs between the servers: {listed}", hint="remote-tool prepare --force")


class HasPlace(Protocol):
    """A server with a known machine and folder."""

    @property
    def server(self) -> str: ...
    @property
    def place(self) -> str: ...


def refuse_one_machine(facts: Sequence[HasPlace]) -> None:
    """Refuse one machine under two names: its GPUs would be used twice."""
    by_place: dict[str, str] = {}
    for node in facts:
        other = by_place.setdefault(node.place or node.server, node.server)
        if other != node.server:
            raise JobError(
                f"{other} and {node.server} are the same machine",
                hint=f"Choose one with --server, or remove {node.server} from configs.yaml or the host list",
                server=node.server,
            )
