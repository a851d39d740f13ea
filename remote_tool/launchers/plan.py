"""A launch as data: what the servers are, where they meet, and what each of them runs."""

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
    """What a server says of itself before a launch.

    Attributes:
        server: Its name.
        python: Version of the environment's Python.
        torch: Version of torch there; empty when it has none.
        gpus: How many GPUs a command may use there.
        addresses: Its own addresses, the likeliest to be reached first.
        place: Which machine and which folder on it; the same for two names of one; empty when it does not say.
        devices: The GPUs that it is to use, by number or UUID; empty: all.
        variables: That the configuration has for it.
        nccl: Version of the NCCL that came with torch; empty when that is not known.
        listed: How many processes a host list gives it; None without one.
        cpus: How many CPUs a command may use there.
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
        processes: How many ranks it has; None when the command decides.
        rank_offset: Global rank of its local rank 0; None when torchrun gives the ranks itself.
        command: For the shell.
        environment: Variables of every rank.
    """

    server: str
    job_id: str
    node_rank: int
    processes: int | None
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
    def world_size(self) -> int | None:
        """How many ranks there are; None when the commands decide."""
        counts = [node.processes for node in self.nodes if node.processes is not None]
        return sum(counts) if counts else None

    def text(self) -> str:
        """For people: what would be started where."""
        size = f"{len(self.nodes)} nodes" if self.world_size is None else f"world size {self.world_size}"
        lines = [f"{size}, rendezvous {self.rendezvous.address}:{self.rendezvous.port}"]
        for node in self.nodes:
            interface = self.rendezvous.routes[node.server].interface or "any interface"
            processes = "" if node.processes is None else f", {counted(node.processes, 'process')}"
            lines.append(f"{node.server}: node rank {node.node_rank}{processes}, {interface}")
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


@dataclass(frozen=True)
class CommandLine:
    """A ``--cmd`` as a launcher runs it.

    Attributes:
        text: For the shell.
        notes: A sentence for each option that was left out.
        folder: The folder that it changes to first; empty: none.
    """

    text: str
    notes: tuple[str, ...] = ()
    folder: str = ""


@dataclass(frozen=True)
class FirstNode:
    """What the other nodes run where only the first one can say it, once it runs itself.

    Attributes:
        operation: The operation of the agent that waits for it; the answer has it under the same name.
        seconds: How long to wait for the answer.
        commands: Returns the commands of the other nodes, by rank, from the answer, the request, the plan, and the
            folder of jobs.
        program: What runs on the first node, for messages.
        hint: How to see whether the program is there.
    """

    operation: str
    seconds: float
    commands: Callable[[object, LaunchRequest, LaunchPlan, str], dict[int, str]]
    program: str
    hint: str


@dataclass(frozen=True)
class Launcher:
    """How one kind of program is launched: pure functions, which ``workflows/launch`` calls in turn.

    Attributes:
        plan: Returns what each node runs.
        check: Refuses servers that cannot work together.
        read_command: Returns what to run of a ``--cmd``, and notes on what was left out.
        first_node: Set where the other nodes run what the first one says.
        needs_python: Whether it needs a Python on the servers.
        restarts_ranks: Whether it restarts failed ranks itself.
        grace: Seconds between SIGTERM and SIGKILL when its jobs are stopped; None: those of any job.
    """

    plan: Callable[[LaunchRequest, Sequence[NodeFacts], Rendezvous, LaunchNames], LaunchPlan]
    check: Callable[[Sequence[NodeFacts]], None]
    read_command: Callable[[str], CommandLine] = CommandLine
    first_node: FirstNode | None = None
    needs_python: bool = False
    restarts_ranks: bool = False
    grace: float | None = None

    @classmethod
    def named(cls, name: str) -> Launcher:
        """Return a launcher of the registry; its module is loaded for those who use it."""
        launcher = import_module(f"remote_tool.launchers.{LAUNCHERS[name].module}").LAUNCHER
        assert isinstance(launcher, cls)
        return launcher
