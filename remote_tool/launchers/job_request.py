"""Options that the jobs of every command have: of job-run, of a launch, of a fan-out."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING

from remote_tool.config.artifacts import read_artifacts
from remote_tool.config.devices import VISIBLE, check_devices
from remote_tool.config.limits import (
    check_name,
    check_nice,
    check_request,
    check_texts,
    check_workdir,
    names_of,
    read_duration,
)
from remote_tool.errors import UsageError
from remote_tool.protocol.limits import HIGHEST_PRIORITY, MOST_AFTER, MOST_GPUS
from remote_tool.redaction import hide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.protocol.artifact_patterns import ArtifactPattern


@dataclass(frozen=True)
class KeptCode:
    """Copies of the project that servers have kept from earlier jobs.

    Attributes:
        copies: The name of each server's copy.
        git_commit: The commit that the copies were made of; empty if unknown.
        git_branch: Empty when none was checked out.
        git_dirty: Whether they have uncommitted changes; None if unknown.
    """

    copies: Mapping[str, str]
    git_commit: str = ""
    git_branch: str = ""
    git_dirty: bool | None = None


@dataclass(frozen=True)
class JobRequest:
    """A command to start on servers, with the options of every command that starts jobs.

    Attributes:
        command: For the shell.
        servers: Empty: all.
        environment: Variables of every job; written nowhere.
        tags: For every job.
        sync: Send changed files first.
        artifacts: Globs of files to pull, in addition to the configured ones.
        devices: GPUs to expose on each server, by number or UUID; empty: as configured.
        env: More variables, which override ``environment``.
        overwrite: Also replace files that were changed on the server, or never sent.
        workdir: The working folder, relative to the project; None: as configured, else the project's own.
        nice: Run the command with this niceness, 0 to 19; None: unchanged.
        gpus: Wait until this many GPUs of a server are free, and reserve them; 0: do not wait.
        priority: 0 to 100; of the jobs that wait on a server, those with the highest begin first.
        after: Keys or ids of jobs on the same server that must have succeeded before.
        after_any: Begin even if those did not succeed.
        backfill: Begin before an earlier job that waits for more GPUs, if enough are free for this one.
        on_end: Command that the server runs when a job has ended; None: as configured; empty: none.
        name: Name of every job, for lists; empty: none.
        rerun_of: Id of the job that this repeats; empty: of none.
        frozen: Run in a copy of the project as it is now; None: as configured.
        code: Run in these copies instead; None: do not.
        max_duration: Stop a job after this many seconds, or text such as 12h; 0: never; None: as configured.
        stop_if_idle: Stop a job after its GPUs were idle for this long; 0: never; None: as configured.
    """

    command: str
    servers: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    tags: tuple[str, ...] = ()
    sync: bool = True
    artifacts: tuple[str | ArtifactPattern, ...] = ()
    devices: tuple[str | int, ...] = ()
    _: KW_ONLY
    env: InitVar[Mapping[str, str] | None] = None
    overwrite: bool = False
    workdir: str | None = None
    nice: int | None = None
    name: str = ""
    on_end: str | None = None
    max_duration: float | str | None = None
    stop_if_idle: float | str | None = None
    gpus: int = 0
    priority: int = 0
    after: tuple[str, ...] = ()
    after_any: bool = False
    backfill: bool = False
    rerun_of: str = ""
    frozen: bool | None = None
    code: KeptCode | None = None

    def _check_options(
        self,
        env: Mapping[str, str] | None,
        example: str,
        *,
        artifacts: Sequence[str] | None = None,
        tags_besides: int = 0,
        may_wait: bool = False,
    ) -> None:
        """Refuse invalid options; ``example`` is a command for the hint."""
        names_of(self.servers)
        for variables in (self.environment, env or {}):
            check_texts(self.command, variables)
        object.__setattr__(self, "environment", {**self.environment, **(env or {})})
        if not self.command.strip():
            raise UsageError("--cmd is empty", hint=f"remote-tool {example}")
        check_workdir(self.workdir)
        check_nice(self.nice)
        check_name(self.name)
        object.__setattr__(self, "max_duration", read_duration("--max-duration", self.max_duration))
        object.__setattr__(self, "stop_if_idle", read_duration("--stop-if-idle", self.stop_if_idle))
        read_artifacts(self.artifacts if artifacts is None else artifacts)
        check_devices(self.devices, self.environment)
        self._check_queue(may_wait=may_wait)
        hide(self.environment.values())
        check_request(self.command, self.tags, self.environment, tags_besides=tags_besides)

    def _check_queue(self, *, may_wait: bool) -> None:
        """Refuse options about GPUs and other jobs that are invalid, or that only a job that may wait can have."""
        for option, value, most in (("gpus", self.gpus, MOST_GPUS), ("priority", self.priority, HIGHEST_PRIORITY)):
            if not (type(value) is int and 0 <= value <= most):
                raise UsageError(f"--{option} must be a whole number from 0 to {most}, found {value!r:.40}")
        if len(names_of(self.after)) > MOST_AFTER:
            raise UsageError(f"--after is given {len(self.after)} times; at most {MOST_AFTER} are possible")
        for option, is_given in (("--devices", self.devices), (f"--env {VISIBLE}", VISIBLE in self.environment)):
            if self.gpus and is_given:
                raise UsageError(f"--gpus and {option} cannot be combined", hint="--gpus takes any that are free")
        options = {"--after": self.after, "--priority": self.priority, "--backfill": self.backfill}
        given = [option for option, is_given in options.items() if is_given]
        if given and not may_wait:
            raise UsageError(f"{given[0]} is only for job-run")
        if given[-1:] not in ([], ["--after"]) and not self.gpus:
            raise UsageError(f"{given[-1]} is for jobs that wait for GPUs", hint=f"job-run --gpus 1 {given[-1]}")
