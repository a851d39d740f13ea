"""Plans a multi-node torchrun: facts and wishes in, one command per node out. Nothing here talks to a server."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from remote_tool.config.artifacts import read_artifacts
from remote_tool.config.devices import check_devices, command_environment, counted, joined, visible_devices
from remote_tool.errors import JobError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.supervisor.artifact_patterns import ArtifactPattern

LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SMALLEST_PORT, LARGEST_PORT = 1024, 65535


@dataclass(frozen=True)
class LaunchRequest:
    """What the user wants to train.

    Attributes:
        command: Script and arguments, as after ``torchrun``.
        servers: In the order of their node ranks; empty: all.
        processes: Per server; auto: the number of its GPUs, else 1; None: as a host list says, else 1.
        environment: Variables for every rank.
        tags: For every job of the launch.
        master_port: On the first server; None: a free one.
        use_env: Accepted for labml_remote; torchrun always passes the ranks in the environment.
        max_restarts: How often torchrun starts failed workers anew, by its elastic rendezvous.
        sync: Whether changed files are sent first.
        artifacts: Globs of files that a node writes and that come home, besides those of the configuration.
        devices: The GPUs that each server uses, by number or UUID; empty: as configured.
    """

    command: str
    servers: tuple[str, ...] = ()
    processes: int | Literal["auto"] | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    tags: tuple[str, ...] = ()
    master_port: int | None = None
    use_env: bool = False
    max_restarts: int = 0
    sync: bool = True
    artifacts: tuple[str | ArtifactPattern, ...] = ()
    devices: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what can not be meant."""
        if not self.command.strip():
            raise UsageError("--cmd is empty", hint="remote-tool helper-torch-launch --cmd train.py")
        read_artifacts(self.artifacts)
        check_devices(self.devices, self.environment)
        if self.processes not in {"auto", None} and int(self.processes or 0) < 1:
            raise UsageError(f"--nproc-per-node must be at least 1 or 'auto', found {self.processes}")
        if self.max_restarts < 0:
            raise UsageError(f"--max-restarts must be at least 0, found {self.max_restarts}")
        if self.master_port is not None and not SMALLEST_PORT <= self.master_port <= LARGEST_PORT:
            raise UsageError(f"--master-port must be from {SMALLEST_PORT} to {LARGEST_PORT}, found {self.master_port}")


@dataclass(frozen=True)
class NodeFacts:
    """What a server says of itself before a launch.

    Attributes:
        server: Its name.
        python: Version of the environment's Python.
        torch: Version of torch there; empty when it has none.
        gpus: How many GPUs a command may use there.
        addresses: Its own addresses, the likeliest to be reached first.
        interfaces: The name of the interface of each address.
        place: Which machine and which folder on it; the same for two names of one; empty when it does not say.
        devices: The GPUs that it is to use, by number or UUID; empty: all.
        variables: That the configuration has for it.
        nccl: Version of the NCCL that came with torch; empty when that is not known.
        listed: How many processes a host list gives it; None without one.
    """

    server: str
    python: str
    torch: str
    gpus: int
    addresses: tuple[str, ...] = ()
    interfaces: Mapping[str, str] = field(default_factory=dict)
    place: str = ""
    devices: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    nccl: str = ""
    listed: int | None = None


@dataclass(frozen=True)
class Route:
    """How a node reaches the first one: from which own address, over which interface."""

    local_address: str
    interface: str


@dataclass(frozen=True)
class Rendezvous:
    """Where the nodes meet: an address and ports of the first server that every node was seen to reach.

    Attributes:
        address: Of the first server.
        port: For the ranks.
        routes: How each server reaches it.
        watch_port: For the supervisors, which watch each other.
    """

    address: str
    port: int
    routes: Mapping[str, Route]
    watch_port: int = 0


@dataclass(frozen=True)
class NodePlan:
    """What one server runs.

    Attributes:
        server: Its name.
        job_id: Of the job that it becomes.
        node_rank: Its place; 0 is where the nodes meet.
        processes: How many ranks it has.
        rank_offset: Global rank of its local rank 0; None when torchrun gives the ranks itself.
        command: For the shell.
        environment: Variables of every rank.
    """

    server: str
    job_id: str
    node_rank: int
    processes: int
    rank_offset: int | None
    command: str
    environment: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class LaunchPlan:
    """A launch, ready to be started.

    Attributes:
        launch_id: Shared by the nodes.
        rendezvous: Where the nodes meet.
        nodes: In the order of their ranks.
    """

    launch_id: str
    rendezvous: Rendezvous
    nodes: tuple[NodePlan, ...]

    @property
    def world_size(self) -> int:
        return sum(node.processes for node in self.nodes)

    def text(self) -> str:
        """For people: what would be started where."""
        lines = [f"world size {self.world_size}, rendezvous {self.rendezvous.address}:{self.rendezvous.port}"]
        for node in self.nodes:
            interface = self.rendezvous.routes[node.server].interface or "any interface"
            lines.append(f"{node.server}: node rank {node.node_rank}, {node.processes} processes, {interface}")
            lines.append("  " + node.command.replace("\n", "\n  "))
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """For programs: the same."""
        return {
            "launch_id": self.launch_id,
            "world_size": self.world_size,
            "master_addr": self.rendezvous.address,
            "master_port": self.rendezvous.port,
            "nodes": [
                {
                    "server": node.server,
                    "node_rank": node.node_rank,
                    "processes": node.processes,
                    "interface": self.rendezvous.routes[node.server].interface,
                    "command": node.command,
                }
                for node in self.nodes
            ],
        }


def check_nodes(facts: Sequence[NodeFacts]) -> None:
    """Refuse servers that cannot train together.

    Raises:
        JobError: Two are one machine, torch is missing on one, or torch, NCCL or Python differ between them.
    """
    refuse_one_machine(facts)
    for node in facts:
        if not node.torch:
            raise JobError(
                f"{node.server} has no torch in its environment",
                hint=f"Add torch to requirements.txt, then remote-tool prepare --server {node.server}",
                server=node.server,
            )
    for what, versions in (
        ("torch", {node.server: node.torch for node in facts}),
        ("NCCL", {node.server: node.nccl for node in facts if node.nccl}),
        ("Python", {node.server: _minor(node.python) for node in facts}),
    ):
        if len(set(versions.values())) > 1:
            listed = ", ".join(f"{server} {version}" for server, version in versions.items())
            raise JobError(f"{what} differs between the servers: {listed}", hint="remote-tool prepare --force")


def count_processes(request: LaunchRequest, facts: Sequence[NodeFacts]) -> dict[str, int]:
    """Return how many processes each server gets.

    Raises:
        UsageError: They are more than the GPUs that were chosen, or differ although torchrun's elastic rendezvous
            wants one number.
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
    if request.processes != "auto":
        count = request.processes or node.listed or 1
        if node.devices and count > len(node.devices):
            raise UsageError(
                f"{node.server} is to run {count} processes on {counted(node.devices)}: {joined(node.devices)}",
                hint="--nproc-per-node auto starts one for each GPU",
            )
        return count
    visible = visible_devices(_chosen_variables(node, request))
    return max(1, node.gpus if visible is None else len(visible))


@dataclass(frozen=True)
class LaunchNames:
    """What the nodes are called on the servers.

    Attributes:
        launch_id: Shared by all.
        job_ids: One per node.
        jobs_folder: Where jobs lie on a server, relative to the project.
    """

    launch_id: str
    job_ids: tuple[str, ...]
    jobs_folder: str


def plan_launch(
    request: LaunchRequest, facts: Sequence[NodeFacts], rendezvous: Rendezvous, names: LaunchNames
) -> LaunchPlan:
    """Say what each node runs."""
    _refuse_twice([node.server for node in facts])
    processes = count_processes(request, facts)
    nodes = []
    offset = 0
    for rank, (node, job_id) in enumerate(zip(facts, names.job_ids, strict=True)):
        count = processes[node.server]
        options = _torchrun_options(request, rendezvous, names.launch_id, _Node(node.server, rank, len(facts)))
        logs = f'--log-dir "$PWD"/{shlex.quote(f"{names.jobs_folder}/{job_id}/ranks")} --redirects 3'
        torchrun = f"python -m torch.distributed.run {options} --nproc-per-node {count} {logs}"
        nodes.append(
            NodePlan(
                server=node.server,
                job_id=job_id,
                node_rank=rank,
                processes=count,
                # torchrun's elastic rendezvous gives the ranks itself, anew at each restart.
                rank_offset=None if request.max_restarts else offset,
                command=f"{torchrun} {script(request.command)}",
                environment=launch_environment(request, node, rendezvous.routes[node.server], names.launch_id),
            )
        )
        offset += count
    return LaunchPlan(names.launch_id, rendezvous, tuple(nodes))


def script(command: str) -> str:
    """Return the command as torchrun takes it: without the interpreter that labml_remote's users may write."""
    first, _, rest = command.strip().partition(" ")
    return rest.strip() if first in {"python", "python3", "torchrun"} and rest else command.strip()


def script_file(command: str) -> str | None:
    """Return the file that a command names first; None when it names a module or what only a shell can tell."""
    try:
        words = shlex.split(script(command))
    except ValueError as error:
        raise UsageError(f"--cmd {command!r} cannot be read: {error}") from None
    first = words[0] if words else ""
    return first if first.endswith(".py") and not first.startswith(("-", "/", "~", "$")) else None


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
    # Debian resolves a machine's own name to 127.0.1.1, and then no node would host the store: so say who does.
    is_host = "1" if node.rank == 0 else "0"
    words = [
        *("--nnodes", str(node.nodes), "--max-restarts", str(request.max_restarts)),
        *("--rdzv-backend", "c10d", "--rdzv-id", launch_id),
        *("--rdzv-endpoint", f"{_bracketed(rendezvous.address)}:{rendezvous.port}"),
        *("--rdzv-conf", f"is_host={is_host}", "--local-addr", rendezvous.routes[node.server].local_address),
    ]
    return shlex.join(words)


def launch_environment(request: LaunchRequest, node: NodeFacts, route: Route, launch_id: str) -> dict[str, str]:
    """Return the variables of every rank of a node: what the user chose wins over what was found, the interface."""
    found = {"RUN_UUID": launch_id}
    if route.interface:
        found |= dict.fromkeys(INTERFACE_VARIABLES, route.interface)
    return {**found, **_chosen_variables(node, request)}


def _chosen_variables(node: NodeFacts, request: LaunchRequest) -> dict[str, str]:
    return command_environment(node.variables, request.environment, node.devices)


def _refuse_twice(servers: Sequence[str]) -> None:
    twice = [server for server, count in Counter(servers).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]} is named twice; each server runs one torchrun")


class Place(Protocol):
    """A server that says which machine it is, and which folder on it."""

    @property
    def server(self) -> str: ...
    @property
    def place(self) -> str: ...


def refuse_one_machine(facts: Sequence[Place]) -> None:
    """Refuse one machine by two names: its GPUs would be given away twice."""
    by_place: dict[str, str] = {}
    for node in facts:
        other = by_place.setdefault(node.place or node.server, node.server)
        if other != node.server:
            raise JobError(
                f"{other} and {node.server} are the same machine",
                hint=f"Choose with --server, or take {node.server} out of .remote/configs.yaml or the list",
                server=node.server,
            )


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
