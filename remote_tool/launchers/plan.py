"""A launch as data: the servers' facts, the rendezvous, and the plan of each node."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from remote_tool.launchers.registry import LAUNCHERS
from remote_tool.readable import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_tool.launchers.request import LaunchRequest

# torchrun itself gives its workers 30 seconds, and was measured to need 32.
TORCHRUN_GRACE = 45.0


@dataclass(frozen=True)
class NodeFacts:
    """A server's facts for a launch.

    Attributes:
        server: The server's name.
        python: Version of the environment's Python.
        torch: Version of torch there; empty when it has none.
        ray: Version of Ray there; empty when it has none.
        gpus: Number of GPUs available to a command.
        addresses: Its own addresses, likeliest first.
        place: Machine and folder; the same for two names of one; empty if unknown.
        devices: The GPUs to use, by number or UUID; empty: all.
        variables: Configured variables.
        nccl: Version of torch's NCCL; empty if unknown.
        listed: Its number of processes in a host list; None without one.
        cpus: Number of CPUs available to a command.
    """

    server: str
    python: str
    torch: str
    gpus: int
    addresses: tuple[str, ...] = ()
    place: str = ""
    devices: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    nccl: str = ""
    listed: int | None = None
    cpus: int = 1
    ray: str = ""


@dataclass(frozen=True)
class Route:
    """A node's own address and interface towards the first node."""

    local_address: str
    interface: str


@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous: an address and ports of the first server that every node has reached.

    Attributes:
        address: Of the first server.
        port: For the ranks; like the address a name, if the nodes find them themselves.
        routes: Each server's route to it.
        watch_port: For the supervisors' heartbeat.
    """

    address: str
    port: int | str
    routes: Mapping[str, Route]
    watch_port: int | str = 0


@dataclass(frozen=True)
class NodePlan:
    """The plan of one node.

    Attributes:
        server: The server's name.
        job_id: The id of its job.
        node_rank: 0 is the rendezvous node.
        processes: Number of ranks; None when the command decides.
        rank_offset: Global rank of its local rank 0; None when torchrun assigns ranks itself.
        command: The shell command.
        environment: Variables of every rank.
        defaults: Lines of shell before the command, for variables that the user has not set anywhere.
    """

    server: str
    job_id: str
    node_rank: int
    processes: int | None
    rank_offset: int | None
    command: str
    environment: Mapping[str, str] = field(repr=False)
    defaults: str = ""


@dataclass(frozen=True)
class LaunchPlan:
    """A launch, ready to be started.

    Attributes:
        launch_id: Shared by the nodes.
        rendezvous: The rendezvous.
        nodes: In the order of their ranks.
    """

    launch_id: str
    rendezvous: Rendezvous
    nodes: tuple[NodePlan, ...]

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks; None when the commands decide."""
        counts = [node.processes for node in self.nodes if node.processes is not None]
        return sum(counts) if counts else None

    def text(self) -> str:
        """Return the plan for people."""
        size = f"{len(self.nodes)} nodes" if self.world_size is None else f"world size {self.world_size}"
        lines = [f"{size}, rendezvous {self.rendezvous.address}:{self.rendezvous.port}"]
        for node in self.nodes:
            interface = self.rendezvous.routes[node.server].interface or "any interface"
            processes = "" if node.processes is None else f", {counted(node.processes, 'process')}"
            lines.append(f"{node.server}: node rank {node.node_rank}{processes}, {interface}")
            lines.append("  " + node.command.replace("\n", "\n  "))
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
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


@dataclass(frozen=True)
class LaunchNames:
    """Ids and folders of a launch on the servers.

    Attributes:
        launch_id: Shared by all.
        job_ids: One per node.
        jobs_folder: The folder of jobs on a server, relative to the project.
    """

    launch_id: str
    job_ids: tuple[str, ...]
    jobs_folder: str


@dataclass(frozen=True)
class CommandLine:
    """A parsed ``--cmd``.

    Attributes:
        text: The shell command.
        notes: A message for each option that was left out.
        folder: The folder to change to first; empty: none.
    """

    text: str
    notes: tuple[str, ...] = ()
    folder: str = ""


@dataclass(frozen=True)
class FirstNode:
    """How the first node determines the other nodes' commands, once it is running.

    Attributes:
        operation: The agent's operation that waits for the answer, which has the same key.
        seconds: How long to wait for the answer.
        commands: Returns the commands of the other nodes, by rank, from the answer, the request, the plan, and the
            folder of jobs.
        program: The first node's program, for messages.
        hint: How to check that the program exists.
    """

    operation: str
    seconds: float
    commands: Callable[[object, LaunchRequest, LaunchPlan, str], dict[int, str]]
    program: str
    hint: str


@dataclass(frozen=True)
class Launcher:
    """How to launch one kind of program: pure functions, called in turn by ``workflows/launch``.

    Attributes:
        plan: Returns each node's command.
        check: Refuses incompatible servers.
        read_command: Parses ``--cmd``; returns the command, and notes on what was left out.
        first_node: Set if the first node determines the others' commands.
        needs_python: Whether the servers need a Python.
        restarts_ranks: Whether it restarts failed ranks itself.
        grace: Grace period in seconds for stopping its jobs; None: the default.
        package: The package whose version the servers have to find out, even if that takes long.
        goes_on_without_workers: Whether a launch goes on when a node other than the first ends.
    """

    plan: Callable[[LaunchRequest, Sequence[NodeFacts], Rendezvous, LaunchNames], LaunchPlan]
    check: Callable[[Sequence[NodeFacts]], None]
    read_command: Callable[[str], CommandLine] = CommandLine
    first_node: FirstNode | None = None
    needs_python: bool = False
    restarts_ranks: bool = False
    grace: float | None = None
    package: str = "torch"
    goes_on_without_workers: bool = False

    @classmethod
    def named(cls, name: str) -> Launcher:
        """Return a registered launcher; its module is imported on demand."""
        launcher = import_module(f"remote_tool.launchers.{LAUNCHERS[name].module}").LAUNCHER
        assert isinstance(launcher, cls)
        return launcher
