"""What a user asks a launch for."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Literal

from remote_tool.config.artifacts import read_artifacts
from remote_tool.config.devices import check_devices
from remote_tool.config.limits import check_lost_after, check_nice, check_request, check_workdir
from remote_tool.errors import UsageError
from remote_tool.launchers.registry import LAUNCHERS
from remote_tool.redaction import hide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.protocol.artifact_patterns import ArtifactPattern

SMALLEST_PORT, LARGEST_PORT = 1024, 65535


@dataclass(frozen=True)
class LaunchRequest:
    """A launch of one program on several servers.

    Attributes:
        command: Script and arguments, as after ``torchrun``; with another launcher, a shell command.
        servers: In the order of their node ranks; empty: all.
        processes: Per server; gpu or cpu: one per GPU or CPU; auto: one per GPU, else 1; None: as in the host
            list, else 1.
        environment: Variables for every rank.
        env: More variables, which override ``environment``.
        nproc_per_node: Another name for ``processes``, as the option has it.
        tags: For every job of the launch.
        master_port: On the first server; None: a free one.
        use_env: Accepted for labml_remote; torchrun always passes the ranks in the environment.
        max_restarts: Restart failed workers up to N times, by torchrun's elastic rendezvous; with the launcher shell,
            restart the launch up to N times while it is followed.
        sync: Send changed files first.
        artifacts: Globs of files to pull, in addition to the configured ones.
        devices: GPUs to expose on each server, by number or UUID; empty: as configured.
        overwrite: Also replace files that were changed on the server, or never sent.
        lost_after: Seconds to wait for a server that does not answer; None: as configured.
        workdir: The working folder, relative to the project; None: as configured, else the project's own.
        nice: Run the command with this niceness, 0 to 19; None: unchanged.
        launcher: A name of :data:`~remote_tool.launchers.registry.LAUNCHERS`.
        from_job: Key of a job whose artifacts are brought to every server first; empty: of none.
    """

    command: str
    servers: tuple[str, ...] = ()
    processes: int | Literal["auto", "cpu", "gpu"] | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    env: InitVar[Mapping[str, str] | None] = field(default=None, kw_only=True)
    nproc_per_node: InitVar[int | Literal["auto", "cpu", "gpu"] | None] = field(default=None, kw_only=True)
    tags: tuple[str, ...] = ()
    master_port: int | None = None
    use_env: bool = False
    max_restarts: int = 0
    sync: bool = True
    artifacts: tuple[str | ArtifactPattern, ...] = ()
    devices: tuple[str | int, ...] = ()
    overwrite: bool = False
    lost_after: float | None = None
    workdir: str | None = None
    launcher: str = "torchrun"
    from_job: str = ""
    nice: int | None = None

    def __post_init__(
        self, env: Mapping[str, str] | None, nproc_per_node: int | Literal["auto", "cpu", "gpu"] | None
    ) -> None:
        """Refuse an invalid request."""
        object.__setattr__(self, "environment", {**self.environment, **(env or {})})
        object.__setattr__(self, "processes", self.processes if nproc_per_node is None else nproc_per_node)
        if self.launcher not in LAUNCHERS:
            raise UsageError(f"launcher must be one of {', '.join(LAUNCHERS)}, found {self.launcher!r}")
        if not self.command.strip():
            raise UsageError("--cmd is empty", hint=f"remote-tool {LAUNCHERS[self.launcher].example}")
        check_workdir(self.workdir)
        check_nice(self.nice)
        read_artifacts(self.artifacts)
        check_devices(self.devices, self.environment)
        hide(self.environment.values())
        # The first node has a tag that says so.
        check_request(self.command, self.tags, self.environment, tags_besides=1)
        if self.processes not in {"auto", "cpu", "gpu", None} and int(self.processes or 0) < 1:
            raise UsageError(f"--nproc-per-node must be at least 1, or auto, gpu or cpu, found {self.processes}")
        check_lost_after(self.lost_after)
        if self.max_restarts < 0:
            raise UsageError(f"--max-restarts must be at least 0, found {self.max_restarts}")
        if self.master_port is not None and not SMALLEST_PORT <= self.master_port <= LARGEST_PORT:
            raise UsageError(f"--master-port must be from {SMALLEST_PORT} to {LARGEST_PORT}, found {self.master_port}")
