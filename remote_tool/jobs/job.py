"""A job: what is asked for, what is known of it, and its states."""

from __future__ import annotations

import secrets
import signal as signals
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.supervisor.artifact_patterns import ArtifactPattern

HIDDEN_TAG = "hidden"
MASTER_TAG = "master"
DEFAULT_GRACE = 10.0
# torchrun itself gives its workers 30 seconds, and was measured to need 32.
TORCHRUN_GRACE = 45.0


class JobState(StrEnum):
    """Where a job stands."""

    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"
    UNREACHABLE = "unreachable"

    @property
    def is_running(self) -> bool:
        return self in {JobState.STARTING, JobState.RUNNING}

    @property
    def is_finished(self) -> bool:
        return self in {JobState.SUCCEEDED, JobState.FAILED, JobState.KILLED, JobState.LOST}


@dataclass(frozen=True)
class LaunchWatch:
    """How the supervisors of a launch watch each other.

    Attributes:
        servers: All nodes, by rank.
        address: Of the first node, as the others reach it.
        port: Where its supervisor listens.
        secret: What they know each other by; it is on no disk.
    """

    servers: tuple[str, ...]
    address: str
    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True)
class JobSpec:
    """What is asked for.

    Attributes:
        id: From :func:`new_job_id`.
        server: Name of the server.
        command: One line or more for the shell.
        environment: All its variables; they travel with the start and are written nowhere.
        tags: Free words; ``hidden`` keeps a job out of lists.
        launch_id: Shared by the jobs of one launch; empty without one.
        node_rank: Place in the launch; None without one.
        grace: Seconds between SIGTERM and SIGKILL.
        rank_offset: Global rank of this node's local rank 0; None when torchrun decides.
        snapshot: Which state of the project was synced; empty when not known.
        watch: How the nodes of its launch watch each other; None without others.
        artifacts: Which files that it writes come home.
    """

    id: str
    server: str
    command: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    tags: tuple[str, ...] = ()
    launch_id: str = ""
    node_rank: int | None = None
    grace: float = DEFAULT_GRACE
    rank_offset: int | None = None
    snapshot: str = ""
    watch: LaunchWatch | None = None
    artifacts: tuple[ArtifactPattern, ...] = ()


@dataclass(frozen=True)
class Job:
    """What is known of a job.

    Attributes:
        key: A small number, counted per checkout.
        state: As last seen.
        exit_code: 0 to 255; None while it runs or when a signal ended it.
        signal: Name of the signal that ended it, like ``SIGKILL``; None without one.
        reason: One sentence when there is something to say, else empty.
        pid: Of the command, on the server.
        created_at: Seconds since the epoch, like the other times.
        seen_at: When the server last told us this.
        logs_complete: Whether everything that it wrote is here; only of a finished job.
        stopped_with_launch: Whether it was stopped because another node of its launch ended.
        lost_node: Node rank that its launch lost, and ended for; None without one.
        taken_port: Port of its launch that another program had taken when it was to listen; None without one.
        stop_signal: It is to be stopped with this signal as soon as its server answers; empty when nobody wants that.
        stop_grace: Seconds until SIGKILL then; None: as it was started with.
        artifacts: Which files that it writes come home.
        artifacts_complete: Whether they are all here; only of a finished job.
    """

    key: int
    id: str
    server: str
    command: str
    state: JobState
    tags: tuple[str, ...] = ()
    launch_id: str = ""
    node_rank: int | None = None
    rank_offset: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    reason: str = ""
    pid: int | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    seen_at: float | None = None
    logs_complete: bool = False
    stopped_with_launch: bool = False
    lost_node: int | None = None
    taken_port: int | None = None
    stop_signal: str = ""
    stop_grace: float | None = None
    artifacts: tuple[ArtifactPattern, ...] = ()
    artifacts_complete: bool = False

    @property
    def program_exit_code(self) -> int:
        """What ``job-wait`` passes on: the exit code, 128+N for signal N, 1 when the end is not known."""
        if self.exit_code is not None:
            return self.exit_code
        if self.signal is not None and self.signal in signals.Signals.__members__:
            return 128 + signals.Signals[self.signal]
        return 1

    @property
    def is_hidden(self) -> bool:
        return HIDDEN_TAG in self.tags

    @property
    def is_master(self) -> bool:
        return MASTER_TAG in self.tags


def new_job_id() -> str:
    """Return an id that sorts by time and is unique across laptops: ``20261121-053000-<32 hex digits>``."""
    moment = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%d-%H%M%S")
    return f"{moment}-{secrets.token_hex(16)}"


def as_iso(moment: float | None) -> str | None:
    """Seconds since the epoch as ISO 8601 UTC."""
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
