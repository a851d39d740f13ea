"""A job: its specification, record and states."""

from __future__ import annotations

import getpass
import json
import os
import signal as signals
import socket
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from remote_tool.protocol.limits import DEFAULT_LOST_AFTER, LONGEST_STARTED_BY, SHELL
from remote_tool.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.protocol.artifact_patterns import ArtifactPattern

# labml_remote used the second.
HIDDEN_TAGS = frozenset({"hidden", "__hidden__"})
MASTER_TAG = "master"
# With the name of the fan-out or the sweep after it.
FAN_OUT_TAG, SWEEP_TAG = "fan-out-", "sweep-"
# Commands that start Jupyter Lab begin with this line, which lists show in their place.
JUPYTER_MARK = "# Jupyter Lab\n"
# The program of check --exercise travels in this variable.
EXERCISE_COMMAND = 'python -c "$REMOTE_TOOL_EXERCISE"'
DEFAULT_GRACE = 10.0


class JobState(StrEnum):
    """The state of a job."""

    STARTING = "starting"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"
    UNREACHABLE = "unreachable"

    @property
    def is_running(self) -> bool:
        """Return whether the job is starting or running."""
        return self in {JobState.STARTING, JobState.RUNNING}

    @property
    def is_finished(self) -> bool:
        """Return whether the job has ended or is lost."""
        return self.is_final or self is JobState.LOST

    @property
    def is_final(self) -> bool:
        """Return whether the end is known; a lost job may be found again."""
        return self in {JobState.SUCCEEDED, JobState.FAILED, JobState.KILLED}


@dataclass(frozen=True)
class LaunchWatch:
    """How the supervisors of a launch monitor each other.

    Attributes:
        servers: All nodes, by rank.
        address: Of the first node, as reached by the others.
        port: The port of its supervisor, or a name in its place.
        secret: Authenticates the nodes; never written to disk.
        lost_after: Seconds of silence after which a node counts as lost.
        goes_on_without_workers: Whether the launch goes on when a node other than the first ends.
    """

    servers: tuple[str, ...]
    address: str
    port: int | str
    secret: str = field(repr=False)
    lost_after: float = DEFAULT_LOST_AFTER
    goes_on_without_workers: bool = False


@cache
def own_name() -> str:
    """Return this user and computer, for others who use the same account of a server."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    name = f"{user}@{socket.gethostname()}".encode(errors="replace").decode(errors="replace")
    return name[:LONGEST_STARTED_BY]


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The fields that a job is started with and that its record keeps.

    Attributes:
        launch_id: Shared by the jobs of one launch; empty without one.
        node_rank: Place in the launch; None without one.
        rank_offset: Global rank of this node's local rank 0; None when torchrun decides.
        artifacts: Which of the files that it writes to bring home.
        workdir: Its working folder, relative to the project; empty for the project's own.
        git_commit: The commit that was sent; empty when it is not known.
        git_branch: Empty when none was checked out.
        git_dirty: Whether the project had uncommitted changes; None when that is not known.
        copy: The copy of the project that it runs in, or ``new`` for one to make; empty: it runs in the project.
        environment_hash: Of the environment's activation and packages; empty unless it runs in a copy.
        started_by: Who started it, as that client said: ``ann@laptop``; empty when it did not.
        nice: Its niceness, 0 to 19; None: as the server's logins have it.
        gpus: The GPUs that it was given, by number or UUID; None: it may use all. With ``gpu_count``: those from which
            its server chooses.
        gpu_count: The number of free GPUs that it waits for; None: it does not wait.
        priority: Of two waiting jobs, the higher one begins first; None: 0.
        after: The ids of jobs on its server that must have ended before it begins.
        after_any: Whether it begins however those ended; otherwise, all must have succeeded.
        backfill: Whether it may begin before an earlier job that waits for more GPUs.
        any_of: The servers that it may be moved to while it waits; empty: none.
        slots: How many jobs of its sweep may run at once on its server; None: as many as there are.
        name: As the user named it; empty without a name.
        terminal: The program on its terminal: its ``command``, or the user's ``shell``; empty without one.
        variables: Names of the variables that were given with its command; None when they are not known.
        configured_variables: Names of the variables that the configuration set; None when they are not known.
        rerun_of: Id of the job that it repeats, for a launch of its first node's; empty when it repeats none.
        launch_options: What its launch was asked for, only of the first node; empty without a launch.
        max_duration: Seconds after which it is stopped; None: never.
        stop_if_idle: Seconds after which it is stopped if its GPUs are idle for so long; None: never.
        first_signal: The signal with which a stop of it begins, in place of SIGTERM.
        retries: How many times its command is run again after a failure; None: never.
        retry_on: Exit codes and signals after which it is; empty: any failure.
    """

    launch_id: str = ""
    node_rank: int | None = None
    rank_offset: int | None = None
    artifacts: tuple[ArtifactPattern, ...] = ()
    workdir: str = ""
    git_commit: str = ""
    git_branch: str = ""
    git_dirty: bool | None = None
    copy: str = ""
    environment_hash: str = ""
    started_by: str = ""
    nice: int | None = None
    gpus: tuple[str, ...] | None = None
    gpu_count: int | None = None
    priority: int | None = None
    after: tuple[str, ...] = ()
    after_any: bool = False
    backfill: bool = False
    any_of: tuple[str, ...] = ()
    slots: int | None = None
    name: str = ""
    terminal: str = ""
    variables: tuple[str, ...] | None = None
    configured_variables: tuple[str, ...] | None = None
    rerun_of: str = ""
    launch_options: str = ""
    max_duration: float | None = None
    stop_if_idle: float | None = None
    first_signal: str = "SIGTERM"
    retries: int | None = None
    retry_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobSpec(JobSettings):
    """A job to start; see :class:`JobSettings` for the fields that its record keeps.

    Attributes:
        id: From :func:`new_job_id`.
        server: Name of the server.
        command: One line or more for the shell.
        environment: All its variables; they travel with the start and are written nowhere.
        tags: Free words; ``hidden`` and ``__hidden__`` keep a job out of lists.
        grace: Seconds between SIGTERM and SIGKILL.
        snapshot: Which state of the project was synced; empty when not known.
        watch: How the nodes of its launch watch each other; None without others.
        waits: Whether it may wait for its GPUs; otherwise, it fails if they are not free.
        on_end: The command that its server runs when it has ended, and its secret variables; never written to disk.
        changes: The uncommitted changes of the files that were sent; recorded here only.
        on_empty: The command that its server runs when it has ended and no job is left, its secret variables, and how
            many seconds it waits for another job; never written to disk.
        started_by: Who starts it, like ``ann@laptop``.
    """

    id: str
    server: str
    command: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    tags: tuple[str, ...] = ()
    grace: float = DEFAULT_GRACE
    snapshot: str = ""
    watch: LaunchWatch | None = None
    waits: bool = field(default=True, kw_only=True)
    on_end: tuple[str, Mapping[str, str]] | None = field(default=None, repr=False)
    changes: bytes = field(default=b"", repr=False)
    on_empty: tuple[str, Mapping[str, str], float] | None = field(default=None, repr=False)
    started_by: str = field(default_factory=own_name, kw_only=True)


@dataclass(frozen=True)
class Job(JobSettings):
    """The record of a job; see :class:`JobSettings` for the fields that it was started with.

    Attributes:
        key: A small number, counted per checkout.
        state: As last seen.
        exit_code: 0 to 255; None while it runs or when a signal ended it.
        signal: Name of the signal that ended it, like ``SIGKILL``; None without one.
        reason: One sentence when there is something to say, else empty.
        pid: Of the command, on the server.
        slurm_job: The id of the batch job that starts it; empty without Slurm.
        slurm_node: The name of the node on which it was last started there; empty if it never began.
        created_at: Seconds since the epoch, like the other times.
        seen_at: When the server last answered about it.
        folder_id: Of the folder of jobs in which its server has it; empty when not known.
        processes_left: Of a lost job: how many of its processes still run.
        logs_complete: Whether all its output is here; only of a finished job.
        stopped_with_launch: Whether it was stopped because another node of its launch ended.
        lost_node: Rank of the node whose loss ended its launch; None without one.
        taken_port: Port of its launch that another program had taken; None without one.
        trained_alone: Whether its ranks ran for long and never joined a process group.
        moved_to: The server for which it was given up while it waited; empty: none.
        moved_as: The id of the job in its place there.
        moved_copy: The copy of the project that this one runs in.
        stop_signal: The signal to stop it with as soon as its server answers; empty without a pending stop.
        stop_grace: Seconds until SIGKILL then; None: its own grace.
        artifacts_complete: Whether all its artifacts are here; only of a finished job.
        cleaned: Whether its server has removed it, so that only this record is left.
        note: The user's note about it; empty without one.
        leased_gpus: The UUIDs of the GPUs that its server has reserved for it; None: none.
        status_values: The progress last seen in its output, such as ``loss=0.21``.
        failed_attempts: How each attempt before the last ended, such as ``exit code 75``.
    """

    key: int
    id: str
    server: str
    command: str
    state: JobState
    tags: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: str | None = None
    reason: str = ""
    pid: int | None = None
    slurm_job: str = ""
    slurm_node: str = ""
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    seen_at: float | None = None
    folder_id: str = ""
    processes_left: int = 0
    logs_complete: bool = False
    stopped_with_launch: bool = False
    lost_node: int | None = None
    taken_port: int | None = None
    trained_alone: bool = False
    moved_to: str = ""
    moved_as: str = ""
    moved_copy: str = ""
    stop_signal: str = ""
    stop_grace: float | None = None
    artifacts_complete: bool = False
    cleaned: bool = False
    note: str = ""
    leased_gpus: tuple[str, ...] | None = None
    status_values: tuple[str, ...] = ()
    failed_attempts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Redact secrets, as this is written to disk; an end contradicting the state is dropped."""
        if self.reason:
            object.__setattr__(self, "reason", redact(self.reason))
        if not self.state.is_finished:
            # The answer to a start may hold both "running" and the end of a quick command.
            for name in ("exit_code", "signal", "ended_at"):
                object.__setattr__(self, name, None)

    @property
    def program_exit_code(self) -> int:
        """Return the exit code of ``job-wait``: the job's, 128+N for signal N, 1 if unknown."""
        if self.exit_code is not None:
            return self.exit_code
        if self.signal is not None and self.signal in signals.Signals.__members__:
            return 128 + signals.Signals[self.signal]
        return 1

    def duration(self, now: float) -> float | None:
        """Return how long its command has run in seconds; None if it never began or this is unknown."""
        if self.started_at is None or self.state in {JobState.LOST, JobState.UNREACHABLE}:
            return None
        return (now if self.ended_at is None else self.ended_at) - self.started_at

    @property
    def may_run(self) -> bool:
        """Return whether the job may still run: not ended, or lost with processes left."""
        return not self.state.is_finished or self.processes_left > 0

    @property
    def is_over(self) -> bool:
        """Return whether the job has ended, or is lost without processes left."""
        return self.state.is_finished and not self.may_run

    @property
    def never_began(self) -> bool:
        """Return whether the job has ended without a start of its command."""
        return self.state.is_finished and self.started_at is None

    @property
    def is_hidden(self) -> bool:
        """Return whether lists leave the job out."""
        return not HIDDEN_TAGS.isdisjoint(self.tags)

    @property
    def is_master(self) -> bool:
        """Return whether the job is that of the first server of a launch."""
        return MASTER_TAG in self.tags

    @property
    def sweep_tag(self) -> str:
        """Return the tag of the sweep that this job belongs to; empty if there is none."""
        return next((tag for tag in self.tags if self.launch_id and tag.startswith(SWEEP_TAG)), "")


def new_job_id() -> str:
    """Return an id that sorts by time and is unique across laptops: ``20261121-053000-<32 hex digits>``."""
    moment = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%d-%H%M%S")
    # The module secrets loads OpenSSL, which takes 4 ms of every command.
    return f"{moment}-{os.urandom(16).hex()}"


def job_id_of(moment: float | None, *facts: str) -> str:
    """Return the id that every program gives to the job which follows from the same facts, so that it starts once."""
    from hashlib import sha256  # noqa: PLC0415 - it loads OpenSSL, which few commands need

    day = datetime.fromtimestamp(moment or 0.0, UTC).strftime("%Y%m%d-%H%M%S")
    return f"{day}-{sha256(json.dumps(facts).encode()).hexdigest()[:32]}"


def launch_name(launch_id: str) -> str:
    """Return the short name of a fan-out or a sweep: the end of its id."""
    return launch_id[-6:]


def own_start(job: Job) -> tuple[str, str] | None:
    """Return what a job is that ``job-rerun`` does not start again, and the command that does; None for others."""
    if job.launch_id and any(tag.startswith(FAN_OUT_TAG) for tag in job.tags):
        name = launch_name(job.launch_id)
        return f"a part of fan-out {name}", f"helper-fan-out --resume {name}"
    if job.command.startswith(JUPYTER_MARK):
        return "Jupyter Lab", f"jupyter --server {job.server}"
    if job.terminal == SHELL:
        return "a shell", f"shell --server {job.server} --keep NAME"
    if job.command == EXERCISE_COMMAND:
        return "an exercise", "check --exercise"
    return None


def as_iso(moment: float | None) -> str | None:
    """Return seconds since the epoch as ISO 8601 UTC."""
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
