"""Options that the jobs of every command have: of job-run, of a launch, of a fan-out."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING

from remote_tool.config.artifacts import read_artifacts
from remote_tool.config.devices import VISIBLE, check_devices
from remote_tool.config.limits import check_request, check_texts, check_workdir, names_of
from remote_tool.errors import UsageError
from remote_tool.launchers.options import EndOptions, JobOptions, QueueOptions
from remote_tool.protocol.limits import MOST_AFTER
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
class JobRequest(JobOptions, QueueOptions, EndOptions):
    """A command to start on servers, with the options of every command that starts jobs.

    See :mod:`remote_tool.launchers.options` for the options that are not listed here.

    Attributes:
        command: For the shell.
        servers: Empty: all.
        environment: Variables of every job; written nowhere.
        tags: For every job.
        sync: Send changed files first.
        artifacts: Globs of files to pull, in addition to the configured ones.
        devices: GPUs to expose on each server, by number or UUID; empty: as configured.
        env: More variables, which override ``environment``.
        workdir: The working folder, relative to the project; None: as configured, else the project's own.
        after: Keys or ids of jobs on the same server that must have succeeded before.
        after_any: Begin even if those did not succeed.
        rerun_of: Id of the job that this repeats; empty: of none.
        code: Run in these copies instead; None: do not.
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
    workdir: str | None = None
    after: tuple[str, ...] = ()
    after_any: bool = False
    rerun_of: str = ""
    code: KeptCode | None = None

    def _check_options(
        self,
        env: Mapping[str, str] | None,
        example: str,
        *,
        artifacts: Sequence[str] | None = None,
        tags_besides: int = 0,
        may_wait: bool = False,
        needs_command: bool = True,
    ) -> None:
        """Refuse invalid options; ``example`` is a command for the hint."""
        names_of(self.servers)
        for variables in (self.environment, env or {}):
            check_texts(self.command, variables)
        object.__setattr__(self, "environment", {**self.environment, **(env or {})})
        if needs_command and not self.command.strip():
            raise UsageError("--cmd is empty", hint=f"remote-tool {example}")
        check_workdir(self.workdir)
        self._check_job_options()
        self._check_queue_options()
        read_artifacts(self.artifacts if artifacts is None else artifacts)
        check_devices(self.devices, self.environment)
        self._check_wait(may_wait=may_wait)
        hide(self.environment.values())
        check_request(self.command, self.tags, self.environment, tags_besides=tags_besides)

    def _check_wait(self, *, may_wait: bool) -> None:
        """Refuse options about GPUs and other jobs that contradict each other, or that need a job that may wait."""
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
