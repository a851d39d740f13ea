"""The request for a launch."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Literal

from remote_tool.errors import UsageError
from remote_tool.launchers.job_request import JobRequest
from remote_tool.launchers.options import LaunchOptions
from remote_tool.launchers.registry import LAUNCHERS

if TYPE_CHECKING:
    from collections.abc import Mapping

SMALLEST_PORT, LARGEST_PORT = 1024, 65535


@dataclass(frozen=True)
class _Positions:
    """The order of arguments without names, which never changes."""

    command: str
    servers: tuple[str, ...] = ()
    processes: int | Literal["auto", "cpu", "gpu"] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    master_port: int | None = None
    use_env: bool = False
    max_restarts: int = 0


@dataclass(frozen=True)
class LaunchRequest(JobRequest, LaunchOptions, _Positions):
    """A launch of one program on several servers; see :class:`JobRequest` for the options that are not listed here.

    Attributes:
        command: Script and arguments, as after ``torchrun``; with another launcher, a shell command. With the
            launcher ray it runs on the first server; empty: the cluster stays until it is stopped.
        servers: In the order of their node ranks; empty: all.
        processes: Per server; gpu or cpu: one per GPU or CPU; auto: one per GPU, else 1; None: as in the host
            list, else 1.
        master_port: On the first server; None: a free one.
        use_env: Accepted for labml_remote; torchrun always passes the ranks in the environment.
        max_restarts: Restart failed workers up to N times, by torchrun's elastic rendezvous; with the launcher shell,
            restart the launch up to N times while it is followed.
        nproc_per_node: Another name for ``processes``, as the option has it.
        launcher: A name of :data:`~remote_tool.launchers.registry.LAUNCHERS`.
        nnodes: Use only the first N of the servers; None: all.
        restart_workers: With the launcher ray, let a server whose Ray has ended join the cluster again.
    """

    _: KW_ONLY
    nproc_per_node: InitVar[int | Literal["auto", "cpu", "gpu"] | None] = None
    launcher: str = "torchrun"
    nnodes: int | None = None
    restart_workers: bool = False

    def __post_init__(
        self, env: Mapping[str, str] | None, nproc_per_node: int | Literal["auto", "cpu", "gpu"] | None
    ) -> None:
        """Refuse an invalid request."""
        object.__setattr__(self, "processes", self.processes if nproc_per_node is None else nproc_per_node)
        if self.launcher not in LAUNCHERS:
            raise UsageError(f"launcher must be one of {', '.join(LAUNCHERS)}, found {self.launcher!r}")
        # The first node has a tag that says so.
        launcher = LAUNCHERS[self.launcher]
        self._check_options(env, launcher.example, tags_besides=1, needs_command=launcher.needs_command)
        if self.processes not in {"auto", "cpu", "gpu", None} and int(self.processes or 0) < 1:
            raise UsageError(f"--nproc-per-node must be at least 1, or auto, gpu or cpu, found {self.processes}")
        if self.restart_workers and self.launcher != "ray":
            raise UsageError(f"restart_workers is for the launcher ray, found {self.launcher}")
        if self.launcher == "ray" and (self.processes is not None or self.max_restarts):
            raise UsageError("the launcher ray starts one Ray on each server, without processes or max_restarts")
        if self.nnodes is not None and self.nnodes < 1:
            raise UsageError(f"--nnodes must be at least 1, found {self.nnodes}")
        self._check_launch_options(self.gpus)
        if self.max_restarts < 0:
            raise UsageError(f"--max-restarts must be at least 0, found {self.max_restarts}")
        if self.master_port is not None and not SMALLEST_PORT <= self.master_port <= LARGEST_PORT:
            raise UsageError(f"--master-port must be from {SMALLEST_PORT} to {LARGEST_PORT}, found {self.master_port}")
