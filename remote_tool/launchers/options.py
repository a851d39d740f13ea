"""The options of commands that start jobs, each declared once: type, default, flag, help and check.

A field of a group below is an option of the command line (``cli/groups.py`` makes it from the field's ``Option``), an
attribute of every request, and a field of the records of sweeps and fan-outs. A job has it if ``jobs/job.py`` and
``protocol/job_fields.py`` do, and takes the value of ``config/model.py`` of the same name where none is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from remote_tool.errors import UsageError
from remote_tool.protocol.limits import HIGHEST_PRIORITY, MOST_GPUS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.protocol.artifact_patterns import ArtifactPattern


@dataclass(frozen=True)
class Option:
    """An option on the command line.

    Attributes:
        flag: Its name there; two are separated by a slash: ``--frozen/--no-frozen``.
        metavar: The placeholder of its value in the help; None without a value.
        help: The help text.
        typed: The type of the value as typed, if the field has more; None: the field's.
        completes: The function of ``cli/completion.py`` that completes its value, such as ``job``; empty: none.
    """

    flag: str
    metavar: str | None
    help: str
    typed: type | None = None
    completes: str = ""


# These classes are not compared or shown: making these methods would take a few milliseconds of each command's start.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JobOptions:
    """Options of every command that starts jobs.

    Attributes:
        gpus: Wait until this many GPUs of a server are free, and reserve them; 0: do not wait.
        frozen: Run in a copy of the project as it is now; None: as configured.
        nice: Run the command with this niceness, 0 to 19; None: unchanged.
        max_duration: Stop a job after this many seconds, or text such as 12h; 0: never; None: as configured.
        stop_if_idle: Stop a job after its GPUs were idle for this long; 0: never; None: as configured.
        stop_signal: Begin a stop of a job with this signal in place of SIGTERM; None: as configured.
        name: Name of every job, for lists; empty: none.
        overwrite: Also replace files that were changed on the server, or never sent.
    """

    gpus: Annotated[int, Option("--gpus", "N", "Wait for N free GPUs on each server, and reserve them.")] = 0
    frozen: Annotated[
        bool | None,
        Option(
            "--frozen/--no-frozen",
            None,
            "Run in a copy of the project as it is now; default: snapshots in configs.yaml.",
        ),
    ] = None
    nice: Annotated[int | None, Option("--nice", "N", "Lower its CPU priority by N, 0 to 19, as nice -n does.")] = None
    max_duration: Annotated[
        float | str | None,
        Option(
            "--max-duration",
            "TIME",
            "Stop the job after this time, e.g. 12h; 0: never; default: max_duration in configs.yaml.",
            typed=str,
        ),
    ] = None
    stop_if_idle: Annotated[
        float | str | None,
        Option(
            "--stop-if-idle",
            "TIME",
            "Stop the job when its GPUs were idle this long, e.g. 30m; 0: never; default: as configured.",
            typed=str,
        ),
    ] = None
    stop_signal: Annotated[
        str | None,
        Option(
            "--stop-signal",
            "SIGNAL",
            "Begin a stop of the job with this signal; default: stop_signal in configs.yaml, else SIGTERM.",
        ),
    ] = None
    name: Annotated[str, Option("--name", "NAME", "Name the jobs, as shown in lists.")] = ""
    overwrite: Annotated[
        bool, Option("--overwrite", None, "Also replace files that were changed on the server or never sent.")
    ] = False

    def _check_job_options(self) -> None:
        """Refuse invalid options, and turn durations into seconds."""
        from remote_tool.config import forms, limits  # noqa: PLC0415 - --help needs these options, and no check

        limits.check_whole_number("--gpus", self.gpus, MOST_GPUS)
        limits.check_nice(self.nice)
        object.__setattr__(self, "max_duration", limits.read_duration("--max-duration", self.max_duration))
        object.__setattr__(self, "stop_if_idle", limits.read_duration("--stop-if-idle", self.stop_if_idle))
        if self.stop_signal is not None and not forms.SIGNAL.accepts(self.stop_signal):
            raise UsageError(f"--stop-signal must be {forms.SIGNAL.expected}, found {self.stop_signal!r:.40}")
        limits.check_name(self.name)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class QueueOptions:
    """Options of commands that start jobs which wait on their own: a launch waits as a whole.

    Attributes:
        priority: 0 to 100; of the jobs that wait on a server, those with the highest begin first.
        backfill: Begin before an earlier job that waits for more GPUs, if enough are free for this one.
    """

    priority: Annotated[int, Option("--priority", "N", "0 to 100; waiting jobs with a higher one start first.")] = 0
    backfill: Annotated[
        bool, Option("--backfill", None, "Start before an earlier job that waits for more GPUs, if this one fits.")
    ] = False

    def _check_queue_options(self) -> None:
        from remote_tool.config import limits  # noqa: PLC0415 - --help needs these options, and no check

        limits.check_whole_number("--priority", self.priority, HIGHEST_PRIORITY)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EndOptions:
    """Options about the end of a job.

    Attributes:
        on_end: Command that the server runs when a job has ended; None: as configured; empty: none.
    """

    on_end: Annotated[
        str | None,
        Option(
            "--on-end",
            "COMMAND",
            "Run this on the server when the job has ended; default: on_end in configs.yaml.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ProgramOptions:
    """Options of commands that start one program: a job, or a launch.

    Attributes:
        from_job: Key of a job whose artifacts are brought to every server first; empty: of none.
    """

    from_job: Annotated[
        str,
        Option(
            "--from-job",
            "KEY",
            "Send the artifacts of this job to every server first, to resume from its checkpoint.",
            completes="job",
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunOptions(ProgramOptions, QueueOptions):
    """Options of ``job-run`` alone.

    Attributes:
        any_server: Start one job, on the server where its GPUs are free first.
        retries: Run the command again up to N times when it fails; None: as configured, but never on a terminal.
    """

    any_server: Annotated[
        bool,
        Option("--any-server", None, "With --gpus, start one job, on the server where GPUs are free first."),
    ] = False
    retries: Annotated[int | None, Option("--retries", "N", "Run the command again up to N times when it fails.")] = (
        None
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LaunchOptions(ProgramOptions):
    """Options of commands that start one program on several servers.

    Attributes:
        lost_after: Stop the launch when a server is silent for this many seconds; None: as configured.
        wait: With ``gpus``: wait until they are free on all servers; otherwise, nothing is started then.
    """

    lost_after: Annotated[
        float | None,
        Option(
            "--lost-after",
            "SECONDS",
            "Stop the launch when a server is silent this long; default: lost_after in configs.yaml, else 60.",
        ),
    ] = None
    wait: Annotated[
        bool,
        Option("--wait", None, "With --gpus, wait until they are free on all servers; Ctrl-C starts nothing."),
    ] = False

    def _check_launch_options(self, gpus: int) -> None:
        from remote_tool.config import limits  # noqa: PLC0415 - --help needs these options, and no check

        limits.check_lost_after(self.lost_after)
        if self.wait and not gpus:
            raise UsageError("--wait is for launches that reserve GPUs", hint="--gpus 1 --wait")


class JobKeywords(TypedDict, total=False):
    """Keywords of the methods that start one program; see :class:`~remote_tool.launchers.job_request.JobRequest`."""

    sync: bool
    artifacts: Sequence[str | ArtifactPattern]
    devices: Sequence[str | int]
    workdir: str | None
    gpus: int
    frozen: bool | None
    nice: int | None
    max_duration: float | str | None
    stop_if_idle: float | str | None
    stop_signal: str | None
    name: str
    overwrite: bool
    from_job: str


class StartKeywords(JobKeywords, total=False):
    """Keywords of ``Workspace.start``; see :class:`~remote_tool.workflows.start.start.StartRequest`."""

    priority: int
    after: Sequence[str]
    after_any: bool
    backfill: bool
    retries: int | None
    retry_on: Sequence[str] | None


class LaunchKeywords(JobKeywords, total=False):
    """Keywords of ``Workspace.launch_torch``; see :class:`~remote_tool.launchers.request.LaunchRequest`."""

    max_restarts: int
    master_port: int | None
    wait: bool
    lost_after: float | None


def as_fields(options: JobKeywords) -> dict[str, Any]:
    """Return keywords as the fields of a request have them: every list as a tuple."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
